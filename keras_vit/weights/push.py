"""A model to a repository on Hugging Face: weights, configuration and model card."""

import pathlib
import re
import tempfile

from keras_vit.weights.cache import one_line
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.model_card import model_card
from keras_vit.weights.save import cannot_express, save_weights

PUSHED = ("huggingface", "timm")  # the first that expresses a model is taken


def push_to_hub(
    model,
    repository,
    *,
    layout=None,
    private=None,
    licence=None,
    dataset=None,
    metrics=None,
    tags=(),
    message="Upload a Vision Transformer",
):
    """Upload a model to Hugging Face, for transformers or timm and for `from_pretrained`.

    The repository gets `model.safetensors`, the configuration that transformers or timm reads, and a
    model card, in one commit. It is made if it does not exist; files of the same names are replaced, and
    stay in its history. The token is huggingface_hub's: from `hf auth login`, or HF_TOKEN.

    Args:
        model: VisionTransformer.
        repository: "ORG/NAME" or "USER/NAME".
        layout: "huggingface" (transformers) or "timm"; None: the first of these that expresses the model.
        private: Whether a new repository is private; None: as the account's default is.
        licence: Of the weights, by its SPDX name in lower case, such as "apache-2.0".
        dataset: What it was trained on: the name of a dataset on Hugging Face, or in words.
        metrics: dict of scores by metric, such as {"accuracy": 0.93}, on the test split of the dataset.
        tags: Words to find it by, besides "keras_vit" and "vision-transformer".
        message: Of the commit.

    Returns:
        str, the URL of the repository.

    Raises:
        ValueError: if no layout expresses the model, with what stands in the way, or metrics are given
            without their dataset, before anything is sent; if the hub refuses or does not answer.

    Example:
        >>> push_to_hub(model, "flowers")
        Traceback (most recent call last):
        ValueError: repository must be ORG/NAME or USER/NAME; got 'flowers'

    Source: huggingface_hub's `create_repo` and `create_commit`.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"repository must be ORG/NAME or USER/NAME; got {repository!r}")
    from huggingface_hub import CommitOperationAdd, HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary, "repository")
        write_repository(
            model, folder, repository, layout, licence=licence, dataset=dataset, metrics=metrics, tags=tags
        )
        files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
        api = HfApi()
        try:
            url = api.create_repo(repository, private=private, exist_ok=True)
            api.create_commit(repository, files, commit_message=message)
        except Exception as error:  # the library raises many kinds
            raise ValueError(one_line(f"{repository}: {_problem(error, api.endpoint)}")) from error
    return str(url)


def write_repository(model, folder, repository, layout=None, **facts):
    """Write the files of a repository into a new folder.

    Args:
        model, repository, layout: As for `push_to_hub`.
        folder: pathlib.Path.
        **facts: `licence`, `dataset`, `metrics` and `tags` of `push_to_hub`.

    Raises:
        ValueError: as `push_to_hub`.
    """
    config = model.get_config()
    layout = _layout(config, layout)
    card = model_card(config, model.count_params(), layout, repository, **facts)
    folder.mkdir()
    form = LAYOUTS[layout]
    save_weights(model, folder if form.in_folder else folder / f"model{form.suffix}", layout)
    for name, text in zip(form.config_files, form.write_config(config)):
        (folder / name).write_text(text)
    (folder / "model.json").unlink()  # which only a folder on this machine needs
    (folder / "README.md").write_text(card, encoding="utf-8")


def _layout(config, wanted):
    """The layout that is asked for, or the first that can express the model."""
    if wanted not in (None, *PUSHED):
        raise ValueError(f"layout {wanted!r} cannot be pushed; choose one of {', '.join(PUSHED)}")
    refusals = []
    for layout in (wanted,) if wanted else PUSHED:
        reasons = cannot_express(layout, config) + LAYOUTS[layout].config_conflicts(config)
        if not reasons:
            return layout
        refusals.append(f"the layout {layout!r} cannot express this model: {', '.join(reasons)}")
    raise ValueError("; ".join(refusals))


def _problem(error, hub):
    """What went wrong, and what to do about it."""
    cause = error.__cause__ or error  # of a file that could not be uploaded
    response = getattr(cause, "response", None)
    if response is not None and response.status_code in (401, 403):
        return (
            f"{hub} answered {response.status_code}; log in ('hf auth login', or HF_TOKEN) with an account "
            "that may write there"
        )
    if isinstance(error, ValueError):  # the library's word on the card
        return error
    return f"the upload to {hub} failed ({type(cause).__name__}: {cause})"
