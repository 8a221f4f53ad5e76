"""Models with two towers in checkpoints: the arrays and options beside the image tower, in every layout."""

import re

from keras_vit.tasks.image_text.model import ImageTextModel
from keras_vit.tasks.image_text.text_transformer import TextTransformer
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.text_tower import TwoTowersForm, text_arguments
from keras_vit.weights.stored_parts import StoredParts

_NUMBERS = ("logit_factors/scale", "logit_factors/bias")


def text_form(layout):
    """How a `Layout` stores the text tower of an `ImageTextModel`: in no key, if it has no form for one."""
    return layout.forms.get("image_text") or TwoTowersForm()


def read_towers(checkpoint, others, folder=None):
    """Read the text tower of a checkpoint, and take a linear layer after the image tower from its head.

    Args:
        checkpoint: `StoredModel` of the image tower. Its head is removed, and the other arrays are added.
        others: dict of the arrays by the file's keys that do not belong to the image tower.
        folder: pathlib.Path of the file's folder, or None if its configuration is not read.

    Returns:
        dict of `ImageTextModel` arguments, without the image tower; "text" is a dict.

    Raises:
        ValueError: if the file holds no text tower, or one that `TextTransformer` cannot express.
    """
    layout = LAYOUTS[checkpoint.layout]
    mapped, options = text_form(layout).read(checkpoint, others, folder)
    arrays, keys = mapped.arrays, mapped.keys
    if "text/token_embedding/table" not in arrays:
        raise ValueError("it holds no text tower that TextTransformer can express")
    arrays.update({name: arrays[name].reshape(()) for name in _NUMBERS if name in arrays})
    for leaf in ("kernel", "bias"):
        array, key = checkpoint.arrays.pop(f"head/{leaf}", None), checkpoint.keys.pop(f"head/{leaf}", None)
        is_own = leaf == "kernel" or key != keys.get("image_projection/kernel")
        if array is not None and is_own:  # CLIP's projection has no bias; a VisionTransformer's head has.
            arrays[f"image_projection/{leaf}"], keys[f"image_projection/{leaf}"] = array, key
    text = text_arguments(mapped, layout, options)
    checkpoint.add(mapped)
    return {"text": text, **_between(arrays)}


def _between(arrays):
    """The arguments of `ImageTextModel`, without the towers."""
    sizes, biases = {}, set()
    for name in ("image_projection", "text_projection"):
        if f"{name}/kernel" in arrays:
            sizes[name] = arrays[f"{name}/kernel"].shape[-1]
            biases.add(f"{name}/bias" in arrays)
    if len(biases) > 1:
        raise ValueError("expected a bias in both projections or in neither")
    objective = "sigmoid" if "logit_factors/bias" in arrays else "softmax"
    return {"objective": objective, **sizes, "projection_bias": biases == {True}}


def image_text_model(image, text, **options):
    """The `ImageTextModel` around an image tower, with new weights; its text tower has the same types."""
    text = TextTransformer(**text, dtype=image.dtype_policy, dropout_rate=image.dropout_rate)
    return ImageTextModel(image, text, **options)


def tokenizer_family(checkpoint):
    """The family of the tokenizer of a `StoredModel` with a text tower, if the file shows it, or None."""
    if checkpoint.model_options["text"].get("norm_after_residual"):
        return "lit_bert"
    return text_form(LAYOUTS[checkpoint.layout]).tokenizer_family


class TwoTowerParts(StoredParts):
    """The parts of an `ImageTextModel`: its image tower, and what is beside it."""

    form = "image_text"
    missing = "a text tower"
    pattern = re.compile(r"(text|text_projection|image_projection|logit_factors)/.*")

    def described(self, config):
        # Without the text tower, the layer after the image tower is its head.
        return {**super().described(config), "num_classes": self.model.image_projection}

    def hub_words(self):
        task = "zero-shot-image-classification"
        return task, "the similarity of images and texts", ', kind="image_text"'
