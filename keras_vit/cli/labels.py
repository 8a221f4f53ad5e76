"""Labels of --labels: classes, and the texts that describe them to a text tower."""

import json
import os
import pathlib

from keras_vit.cli.options import separated
from keras_vit.weights.cache import LARGEST_SIDECAR
from keras_vit.weights.class_names import PROMPTS, class_names, prompt_templates

IMAGENET = "imagenet_1k"


def with_labels(model, labels, prompts):
    """Return the classifier or detector that a model is by some labels, and one without labels as it is.

    Args:
        model: What `open_model` returns.
        labels: The value of --labels, or None.
        prompts: The value of --prompts, or None.

    Raises:
        ValueError: if a model without classes has no labels, or one without a text tower has some.
    """
    has_text = model.text is not None
    if not labels and not prompts and not (has_text and model.needs_texts):
        return model
    if not has_text:
        raise ValueError("--labels and --prompts need a model with a text tower, such as SigLIP or OWLv2")
    if not labels:
        raise ValueError("this model has no classes but those of texts; give --labels")
    if model.text_preprocessing is None:
        raise ValueError("this model has no tokenizer, which --labels needs")
    return model.with_labels(read_labels(labels, read_prompts(prompts)))


def read_labels(text, prompts=("{}",)):
    """Read the texts of each class.

    Args:
        text: Labels separated by commas, with quotes where they hold one; or a `.json` file of an object from
            classes to a text or a list of texts; or a `.txt` file with one class a line; or "imagenet_1k",
            for the synset ids with the names by which CLIP's authors classify.
        prompts: Templates into each of which each text is put, for {}.

    Returns:
        dict from classes to lists of texts. In a class that is its own text, _ becomes a space.

    Raises:
        ValueError: if a file cannot be read or has another form, or a class is there twice.

    Example:
        >>> read_labels('cat, "black, white",red_car')
        {'cat': ['cat'], 'black, white': ['black, white'], 'red_car': ['red car']}
        >>> read_labels("cat", ["a photo of a {}", "a drawing of a {}"])
        {'cat': ['a photo of a cat', 'a drawing of a cat']}
    """
    path = pathlib.Path(text).expanduser()
    if path.suffix == ".json":
        labels = _read_json(path)
    elif text == IMAGENET:
        names = class_names("imagenet_1k_clip")
        labels = {synset: [name] for synset, name in zip(class_names("imagenet_1k_synsets"), names)}
    else:
        names = class_names(path) if path.suffix == ".txt" else separated(text, "labels")
        names = [name.strip() for name in names]
        labels = {name: [name.replace("_", " ")] for name in names if name}
        if len(labels) != len(names):
            raise ValueError(f"expected different labels, none of them empty; got {text!r}")
    texts = {
        name: [prompt.replace("{}", each) for prompt in prompts for each in of] for name, of in labels.items()
    }
    if not texts:
        raise ValueError(f"expected one label or more; got {text!r}")
    return texts


def read_prompts(path):
    """Read templates of prompts, one a line, or those that `keras_vit.weights.prompt_templates` names.

    None is the text alone.

    >>> _ = (tmp / "prompts.txt").write_text("a photo of a {}.\\n\\nart of a {}.\\n")
    >>> read_prompts(tmp / "prompts.txt")
    ['a photo of a {}.', 'art of a {}.']
    """
    if path is None:
        return ["{}"]
    if path in PROMPTS:
        return [*prompt_templates(path)]
    templates = [line.strip() for line in _read(pathlib.Path(path).expanduser()).splitlines() if line.strip()]
    if not templates or not all("{}" in line for line in templates):
        raise ValueError(f"{os.fspath(path)!r} must hold a prompt with {{}} on each line")
    return templates


def _read_json(path):
    try:
        texts = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)!r} is not readable JSON: {error}") from None
    if isinstance(texts, dict):
        texts = {name: [of] if isinstance(of, str) else of for name, of in texts.items()}
        if all(isinstance(of, list) and of and all(isinstance(t, str) for t in of) for of in texts.values()):
            return texts
    raise ValueError(f"{os.fspath(path)!r} must hold an object from classes to a text or a list of texts")


def _read(path):
    if not path.is_file():
        raise ValueError(f"no such file: {os.fspath(path)!r}")
    if path.stat().st_size > LARGEST_SIDECAR:
        raise ValueError(f"{os.fspath(path)!r} has more than {LARGEST_SIDECAR} bytes")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)!r} is not UTF-8 text: {error}") from None
