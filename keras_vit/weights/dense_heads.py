"""Segmenters and detectors in checkpoints: their heads, and the options of transformers' EoMT and OWL-ViT."""

import re

import numpy as np

from keras_vit.layers.segmentation_head import QueryAttentionBias
from keras_vit.models.detection.object_detector import ObjectDetector
from keras_vit.models.segmentation.image_segmenter import ImageSegmenter
from keras_vit.weights.architecture import shape_of
from keras_vit.weights.class_names import is_same_class
from keras_vit.weights.image_text import text_arguments
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.huggingface_types import MASK_PROBABILITIES
from keras_vit.weights.stored_parts import StoredParts

HEADED = {cls.kind: cls for cls in (ImageSegmenter, ObjectDetector)}
_CLASSES = ("head", "class_head", "class_queries")  # the layers whose shapes depend on the classes
_TEXT = ("text/", "text_projection/")
_OF_CLASSES = ("num_classes", "class_ids", "class_names", "split_seed")  # other classes have others
_LAYERS = rf"queries|mask_dense_\d|{'|'.join(_CLASSES)}|head_norm|head_projection|upscale_\d+|query_mask_\d+"
_LAYERS += r"|box_head|objectness_head|merge_norm|class_(projection|shift|scale)|text|text_projection"
_HEAD = re.compile(rf"({_LAYERS})/.*|{MASK_PROBABILITIES}")


def stored_kind(checkpoint):
    """The kind of a `StoredModel` with a head of `HEADED`, of a file of any layout; None of others."""
    if checkpoint.around is not None:
        return checkpoint.around[0]
    is_eomt = {"queries/token", "class_head/kernel"} <= checkpoint.arrays.keys()
    return ImageSegmenter.kind if is_eomt else None


def read_words(checkpoint, folder):
    """The kind of a detector with a text tower, and its arguments; its positions are truncated.

    Args:
        checkpoint: `StoredModel`, whose arrays have those of the text tower.
        folder: pathlib.Path of the file's folder, or None if its configuration is not read.
    """
    arrays = checkpoint.arrays
    layout = LAYOUTS[checkpoint.layout]
    form = layout.forms["word_detector"]
    checkpoint.position_resize = "truncate"
    return ObjectDetector.kind, {
        **form.head,
        "query_size": shape_of(arrays, "class_projection/kernel", 2)[1],
        "objectness": "objectness_head/dense_0/kernel" in arrays,
        "text": text_arguments(checkpoint, layout, form.text_options(folder)),
    }


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
        checkpoint, encoder: As for `_options`.
        num_classes: Other than the file's, or None.
        class_names: The file's, others that are asked for, or None.
        read_tokenizer: Function of options of `read_text_preprocessing` to the file's `TextPreprocessing`, or
            to None.
        is_asked: Whether the names are asked for.
    """
    stored = _options(checkpoint, encoder)
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
    return HEADED[stored_kind(checkpoint)](encoder, **options)


def _options(checkpoint, encoder):
    """The arguments of the model around the encoder of a file.

    Args:
        checkpoint: `StoredModel`. An EoMT's array of all probabilities is replaced by one for each block
            with queries, or removed if no block masks.
        encoder: `VisionTransformer`.
    """
    if checkpoint.around is not None:
        return dict(checkpoint.around[1])
    arrays, keys = checkpoint.arrays, checkpoint.keys
    stored = arrays["class_head/kernel"].shape[-1] - 1
    probabilities = arrays.pop(MASK_PROBABILITIES, np.zeros(0))
    masked = bool(np.any(probabilities > 0))
    first = encoder.num_layers - len(probabilities)
    for i, probability in enumerate(probabilities if masked else ()):
        name = f"query_mask_{first + i}/probability"
        arrays[name], keys[name] = np.asarray(probability), keys[MASK_PROBABILITIES]
    return {
        "num_classes": stored,
        "head": "mask",
        "num_queries": arrays["queries/token"].shape[-2],
        "query_blocks": max(len(probabilities), 1),
        "upscale_blocks": sum(name.endswith("/depthwise/kernel") for name in arrays),
        # Theirs with DINOv2's gated MLPs has another activation in the head.
        "head_activation": encoder.activation if encoder.rotary else None,
        "masked_attention": masked,
    }


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
    own = [weight.path for weight in weights if "float" in weight.dtype]
    text = {path for path in own if path in arrays and path.startswith(_TEXT)}
    new = [path for path in own if path.startswith("query_mask")]
    stored = stored_kind(checkpoint)
    if head == "reset" or stored != model.kind or not _has_head_of(checkpoint, model):
        differs, new = "head", [path for path in own if path not in text]
    elif _has_classes_of(checkpoint, model, class_names):
        differs = ""
    else:
        differs, new = "classes", [*new, *_class_variables(model)]
    if head == "keep" and differs:
        raise ValueError(
            f"{checkpoint.path}: expected a {model.kind} with the same {differs}, for head='keep'"
        )
    if differs == "head" and stored:
        drop_head(arrays, text)
    for name in [name for name in arrays if name in new or name.startswith("query_mask")]:
        del arrays[name]
    return new


def _class_variables(model):
    """The shapes of the variables of the layer with the classes, by path; a text tower suits any classes."""
    layers = [layer for layer in model.own_layers() if layer.name in _CLASSES and model.text is None]
    return {weight.path: tuple(weight.shape) for layer in layers for weight in layer.weights}


def _has_head_of(checkpoint, model):
    """Whether the heads of a file and of a model differ in nothing but the classes."""
    stored = type(model)(model.encoder, **_options(checkpoint, model.encoder))
    return _head(stored) == _head(model)


def _head(model):
    changing = (*_CLASSES, *(layer.name for layer in model.layers if isinstance(layer, QueryAttentionBias)))
    layers = [layer for layer in model.own_layers() if layer.weights and layer.name not in changing]
    inputs = [getattr(model, name, None) for name in ("head", "blocks")]
    return inputs, [layer.get_config() for layer in layers]


def _has_classes_of(checkpoint, model, class_names):
    if model.text is not None:
        return True
    variables, arrays = _class_variables(model), checkpoint.arrays
    if any(arrays[path].shape != shape for path, shape in variables.items()):
        return False
    pairs = zip(class_names or (), model.class_names or ())
    return all(is_same_class(*pair) for pair in pairs)


class SegmenterParts(StoredParts):
    """The parts of an `ImageSegmenter`, of which one kind of head has a layout."""

    prefix_positions = False

    def __init__(self, model):
        super().__init__(model)
        self.form = f"{model.head}_segmenter"
        self.missing = (
            "of segmenters only head='mask' has a layout, 'huggingface'; save its `encoder` "
            f"(num_classes=0 of a file), or all of it as .keras; got head={model.head!r}"
        )

    def classifier(self):
        return self.model

    def hub_words(self):
        return "image-segmentation", f"segmentation into {self.model.num_classes} classes", ""


class DetectorParts(StoredParts):
    """The parts of an `ObjectDetector`, which a layout has only with a text tower."""

    missing = (
        "of detectors only those with a text tower have layouts, 'huggingface' and 'scenic'; save the "
        "`encoder` (num_classes=0 of a file), or all of it as .keras"
    )

    def __init__(self, model):
        super().__init__(model)
        self.form = "detector" if model.text is None else "word_detector"

    def classifier(self):
        return self.model

    def hub_words(self):
        if self.model.text is not None:
            return "zero-shot-object-detection", "detection of objects that words describe", ""
        return "object-detection", f"detection of objects of {self.model.num_classes} classes", ""
