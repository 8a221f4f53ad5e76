"""Models with an encoder and a head in checkpoints, such as segmenters and detectors."""

import re

from keras_vit.layers.segmentation_head import QueryAttentionBias
from keras_vit.tasks import get_task, headed_models
from keras_vit.weights.class_names import is_same_class
from keras_vit.weights.layouts import LAYOUTS

# The classes of models with an encoder and a head, by their kinds.
HEADED = headed_models()
_TEXT = ("text/", "text_projection/")
_OF_CLASSES = ("num_classes", "class_ids", "class_names", "split_seed")  # other classes have others
_HEAD = re.compile(rf"({'|'.join(cls.head_layers for cls in HEADED.values())})/.*")


def stored_kind(checkpoint):
    """The kind of a `StoredModel` with a head of `HEADED`, of a file of any layout; None of others."""
    return checkpoint.around and checkpoint.around[0]


def read_head(checkpoint, folder):
    """The kind of the model with a head in a file, and its arguments; None for a file without such a head.

    Args:
        checkpoint: `StoredModel`, whose arrays have those of the head.
        folder: pathlib.Path of the file's folder, or None if its configuration is not read.
    """
    layout = LAYOUTS[checkpoint.layout]
    forms = (form for form in layout.forms.values() if form.has_head(checkpoint.arrays))
    return next(((form.kind, form.head_options(checkpoint, layout, folder)) for form in forms), None)


def with_stored_text(checkpoint, head, read_tokenizer):
    """The arguments of a detector with the text tower of a file, and what else its own detector has.

    Args:
        checkpoint: `StoredModel` of a detector with a text tower, or of two towers.
        head: dict of `ObjectDetector` arguments, of which "text" is "stored".
        read_tokenizer: As for `headed`.

    Raises:
        ValueError: if the file holds no text tower, or one whose vectors are not a linear projection.
    """
    arrays, towers = checkpoint.arrays, checkpoint.model_options or {}
    checkpoint.model_options = None
    if checkpoint.around is not None and checkpoint.around[1].get("text"):
        stored = {name: x for name, x in checkpoint.around[1].items() if name not in _OF_CLASSES}
    elif towers.get("text") and towers.get("text_projection") and not towers["projection_bias"]:
        for name in [name for name in arrays if name.startswith(("image_projection/", "logit_factors/"))]:
            del arrays[name]
        stored = {"text": towers["text"], "query_size": towers["text_projection"]}
    else:
        raise ValueError(
            f"{checkpoint.path}: expected an open-vocabulary detector or a CLIP for text='stored'"
        )
    return _with_tokenizer({**stored, **head, "text": stored["text"]}, read_tokenizer)


def _with_tokenizer(options, read_tokenizer):
    """The arguments of a detector with a text tower in the types of its encoder, and with the tokenizer."""
    text = {name: value for name, value in options["text"].items() if name != "dtype"}
    prepare = options.get("text_preprocessing") or read_tokenizer(default="clip", length=text["length"])
    return {**options, "text": text, "text_preprocessing": prepare}


def drop_head(arrays, kept=()):
    """Remove the arrays of the head but some, which leaves the encoder; return None."""
    for name in [name for name in arrays if _HEAD.fullmatch(name) and name not in kept]:
        del arrays[name]


def headed(checkpoint, encoder, num_classes, class_names, read_tokenizer, is_asked):
    """The model of `HEADED` of a file, with new weights.

    Args:
        checkpoint: `StoredModel`.
        encoder: `VisionTransformer`.
        num_classes: Other than the file's, or None.
        class_names: The file's, others that are asked for, or None.
        read_tokenizer: Function of options of `read_text_preprocessing` to the file's `TextPreprocessing`, or
            to None.
        is_asked: Whether the names are asked for.
    """
    stored_kind_name, stored = checkpoint.around
    options = {**stored, "class_names": class_names}
    if stored.get("text"):
        options = _with_tokenizer(options, read_tokenizer)
        if is_asked and class_names != stored.get("class_names"):
            options |= {"num_classes": None, "class_ids": None}
        elif options["text_preprocessing"] is None and not options.get("class_ids"):
            options["class_names"] = None  # which no ids belong to
    if num_classes not in (None, options.get("num_classes") or len(options["class_names"] or "?")):
        options |= {"num_classes": num_classes, "class_names": None}
        if stored.get("text"):
            options["class_ids"] = None
    return HEADED[stored_kind_name](encoder, **options)


def reset_classes(checkpoint, model, head):
    """Remove the layer with the classes if it is reset; return the names of its variables.

    Args:
        checkpoint: `StoredModel`.
        model: Of a class of `HEADED`.
        head: As for `from_pretrained`.
    """
    if head == "reset" and model.text is not None:
        raise ValueError("the classes of a detector with a text tower are texts; head='reset' has no effect")
    names = _class_variables(model)
    same = all(checkpoint.arrays[path].shape == shape for path, shape in names.items())
    if head == "keep" or (head == "auto" and same):
        return []
    for name in names:
        del checkpoint.arrays[name]
    return [*names]


def reset_head(checkpoint, model, class_names, head):
    """Remove what a new head cannot have of a file's: all of it, or the classes.

    Its annealing of masks begins anew in any case.

    Args:
        checkpoint: `StoredModel` of any model.
        model: Of a class of `HEADED`, with the file's encoder.
        class_names: The file's, or None.
        head: As for `from_pretrained`.

    Returns:
        The names of the variables that keep their initial values.

    Raises:
        ValueError: if `head` is "keep" and the file's head or its classes are others.
    """
    arrays = checkpoint.arrays
    weights = [weight for layer in model.own_layers() for weight in layer.weights]
    paths = [weight.path for weight in weights if "float" in weight.dtype]
    text = {path for path in paths if path in arrays and path.startswith(_TEXT)}
    new = [path for path in paths if path.startswith("query_mask")]
    file_kind = stored_kind(checkpoint)
    stored = type(model)(model.encoder, **checkpoint.around[1]) if file_kind == model.kind else None
    if head == "reset" or stored is None or _head(stored) != _head(model):
        differs, new = "head", [path for path in paths if path not in text]
    elif _has_classes_of(checkpoint, stored, model, class_names):
        differs = ""
    else:
        differs, new = "classes", [*new, *_class_variables(model)]
    if head == "keep" and differs:
        raise ValueError(
            f"{checkpoint.path}: expected a {model.kind} with the same {differs}, for head='keep'"
        )
    if differs == "head" and file_kind:
        drop_head(arrays, text)
    masks = (name for name in arrays if name.startswith("query_mask"))
    for name in {*masks, *(arrays.keys() & {*new})}:
        del arrays[name]
    return new


def _class_variables(model):
    """The shapes of the variables of the layer with the classes, by path; a text tower suits any classes."""
    class_layers = model.class_layers if model.text is None else ()
    layers = [layer for layer in model.own_layers() if layer.name in class_layers]
    return {weight.path: tuple(weight.shape) for layer in layers for weight in layer.weights}


def _head(model):
    """What heads that differ in nothing but the classes have in common."""
    masks = [layer.name for layer in model.layers if isinstance(layer, QueryAttentionBias)]
    changing = (*model.class_layers, *masks)
    layers = [layer for layer in model.own_layers() if layer.weights and layer.name not in changing]
    inputs = [getattr(model, name, None) for name in model.head_options]
    return inputs, [layer.get_config() for layer in layers]


def _has_classes_of(checkpoint, stored, model, class_names):
    if model.text is not None:
        return True
    variables, arrays = _class_variables(model), checkpoint.arrays
    if any(arrays[path].shape != shape for path, shape in variables.items()):
        return False
    if any(getattr(stored, name) != getattr(model, name) for name in model.class_options):
        return False
    pairs = zip(class_names or (), model.class_names or ())
    is_same = get_task(model.task).is_same_class or is_same_class
    return all(is_same(*pair) for pair in pairs)
