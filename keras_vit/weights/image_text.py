"""Models with two towers in checkpoints: the arrays and options of the text tower, read and written."""

import json
import re
from typing import NamedTuple

from keras_vit.models.image_text.image_text_model import ImageTextModel
from keras_vit.models.image_text.text_transformer import TextTransformer
from keras_vit.rules import integer, number, text
from keras_vit.variants import VARIANTS
from keras_vit.weights.layouts import LAYOUTS, hub_config, open_clip
from keras_vit.weights.layouts.big_vision import stacked, unstacked
from keras_vit.weights.layouts.heads import merged_heads, split_heads
from keras_vit.weights.layouts.table import MappedArrays
from keras_vit.weights.layouts.text_towers import (
    BERT_LENGTH,
    BERT_PREFIX,
    FLAX,
    LEGACY_EOS,
    OPTIONS,
    TYPES,
    read_bert,
    written_bert,
)
from keras_vit.weights.metadata import read_json
from keras_vit.weights.stored_parts import PartsAround

_OURS = re.compile(r"(text|text_projection|image_projection|logit_factors)/.*")
_FLAX_KEYS = re.compile(r"(params/)?(txt/.*|t|b)")
_TEXT_TOWER = re.compile(
    r"(params/)?txt/.*|text(_model)?\..*|(token_embedding|positional_embedding|transformer|ln_final)\b.*"
)
_NUMBERS = ("logit_factors/scale", "logit_factors/bias")
_HEAD_SIZE = 64  # of every published text tower whose sizes are no variant's: CLIP's
_NOT_BERT = {"norm_after_residual": False, "pad_id": None}
_OF_FLAX = {
    **{"activation": "gelu_tanh", "norm_epsilon": 1e-6, "causal": False, "pooling": "last"},
    **_NOT_BERT,
}
_OF_BERT = {
    **{"activation": "gelu_tanh", "norm_epsilon": 1e-12, "causal": False, "pooling": "first"},
    **{"norm_after_residual": True, "pad_id": 0},
}


class TwoTowers(NamedTuple):
    """What a checkpoint holds beside the image tower.

    Attributes:
        mapped: `MappedArrays` of what is not the image tower's.
        text: dict of `TextTransformer` arguments.
        options: dict of `ImageTextModel` arguments, without the towers.
    """

    mapped: MappedArrays
    text: dict
    options: dict


def has_text_tower(keys):
    """Whether a file holds a text tower, by its keys that do not belong to the image tower.

    >>> has_text_tower(["logit_scale", "text_model.head.bias"]), has_text_tower(["opt/state"])
    (True, False)
    """
    return any(map(_TEXT_TOWER.fullmatch, keys))


def read_towers(checkpoint, others, described=True):
    """Read the text tower of a checkpoint, and take a linear layer after the image tower from its head.

    Args:
        checkpoint: `StoredModel` of the image tower; its head is removed.
        others: dict of the arrays by the file's keys that do not belong to the image tower.
        described: Whether the configuration file next to the weights is read.

    Returns:
        TwoTowers.

    Raises:
        ValueError: if the file holds no text tower, or one that `TextTransformer` cannot express.
    """
    read = {"huggingface": _read_huggingface, "open_clip": _read_open_clip}.get(checkpoint.layout, _read_flax)
    mapped, options = read(checkpoint, others, described)
    arrays, keys = mapped.arrays, mapped.keys
    if "text/token_embedding/table" not in arrays:
        raise ValueError("it holds no text tower that TextTransformer can express")
    arrays.update({name: arrays[name].reshape(()) for name in _NUMBERS if name in arrays})
    for leaf in ("kernel", "bias"):
        array, key = checkpoint.arrays.pop(f"head/{leaf}", None), checkpoint.keys.pop(f"head/{leaf}", None)
        is_own = leaf == "kernel" or key != keys.get("image_projection/kernel")
        if array is not None and is_own:  # CLIP's projection has no bias; a VisionTransformer's head has.
            arrays[f"image_projection/{leaf}"], keys[f"image_projection/{leaf}"] = array, key
    text = {**_sizes(arrays, keys), **options}
    if not LAYOUTS[checkpoint.layout].split_heads or text.get("norm_after_residual"):  # a BERT
        if "num_heads" not in text:
            text["num_heads"] = _usual_heads(text)
        split_heads(mapped, text)
    else:
        query = "text/encoder_block_0/attention/query/kernel"
        if query not in arrays or arrays[query].ndim != 3:
            raise ValueError(f"expected 3 axes of the checkpoint's {query}")
        text["num_heads"] = arrays[query].shape[1]
    return TwoTowers(mapped, text, _between(arrays))


def _sizes(arrays, keys):
    """The options of the text tower that the arrays show."""

    def shape(name, ndim):
        if name not in arrays or arrays[name].ndim != ndim or 0 in arrays[name].shape:
            actual = arrays[name].shape if name in arrays else "no such array"
            raise ValueError(f"expected {ndim} axes of the checkpoint's {keys.get(name, name)}; got {actual}")
        return arrays[name].shape

    vocabulary_size, hidden_size = shape("text/token_embedding/table", 2)
    matches = (re.match(r"text/encoder_block_(\d+)/", name) for name in arrays)
    return {
        "vocabulary_size": vocabulary_size,
        "length": shape("text/position_embedding/table", 3)[1],
        "hidden_size": hidden_size,
        "num_layers": 1 + max(int(match[1]) for match in matches if match),
        "mlp_dim": shape("text/encoder_block_0/mlp/dense_0/kernel", 2)[1],
    }


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


def _read_flax(checkpoint, others, described):
    """(`MappedArrays`, options) of a file of big_vision or of LiT."""
    inside = {k.removeprefix("params/"): a for k, a in others.items() if _FLAX_KEYS.fullmatch(k)}
    keys = {k.removeprefix("params/"): k for k in others if _FLAX_KEYS.fullmatch(k)}
    parts, stored_in = unstacked(inside, "txt/Encoder_0/encoderblock/")
    is_bert = any(key.startswith(BERT_PREFIX) for key in parts)
    mapped = read_bert(parts) if is_bert else FLAX.read(parts)
    mapped = mapped._replace(
        keys={name: keys[stored_in[key]] for name, key in mapped.keys.items()},
        unknown=sorted({keys[stored_in[key]] for key in mapped.unknown}),
    )
    return mapped, dict(_OF_BERT if is_bert else _OF_FLAX)


def _read_huggingface(checkpoint, others, described):
    """(`MappedArrays`, options) of transformers' files."""
    kind = TYPES["clip" if "text_projection.weight" in others else "siglip"]
    if not kind.projections[0] and "attention_pooling/probe" not in checkpoint.arrays:
        raise ValueError(
            "its image tower has no pooling (vision_use_head=False in config.json), and so no vector to "
            "compare with texts; load it without its text tower"
        )
    mapped = kind.table.read(others)
    config = checkpoint.path.with_name(hub_config.CONFIG)
    stored = read_json(config) if described and config.is_file() else {}
    # Of the two, transformers ignores the second.
    text_config = stored.get("text_config_dict") or stored.get("text_config")
    if not isinstance(text_config, dict | None):
        raise ValueError(f"{hub_config.CONFIG}: text_config must be an object; got {text_config!r}")
    values = {**kind.defaults, **(text_config or {})}
    text.check(f"{hub_config.CONFIG}: hidden_act", values["hidden_act"])
    for name in ("num_attention_heads", "hidden_size", "max_position_embeddings"):
        if name in values:
            integer(at_least=1).check(f"{hub_config.CONFIG}: {name}", values[name])
    number(above=0).check(f"{hub_config.CONFIG}: layer_norm_eps", values["layer_norm_eps"])
    options = {
        "activation": hub_config.activation(values["hidden_act"]),
        "norm_epsilon": values["layer_norm_eps"],
        "causal": kind.causal,
        "pooling": kind.poolings[0],
    }
    if text_config is not None:
        options["num_heads"] = values["num_attention_heads"]
    if kind.causal:
        end = values["eos_token_id"]
        integer(at_least=0).check(f"{hub_config.CONFIG}: eos_token_id", end)
        options |= {"pooling": "argmax"} if end == LEGACY_EOS else {"eos_id": end}
    return mapped, options


def _read_open_clip(checkpoint, others, described):
    """(`MappedArrays`, options) of open_clip's files."""
    mapped = open_clip.TEXT.read(others, lambda key: key.removeprefix("text."))
    folder = checkpoint.path.parent
    if described and (folder / open_clip.CONFIG).is_file():
        try:
            return mapped, open_clip.text_options(folder)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{open_clip.CONFIG} is not in the format of open_clip: {error!r}") from None
    if checkpoint.arguments["pooling"] != "token":
        raise ValueError(f"no array shows the text tower's options; put {open_clip.CONFIG} next to the file")
    activation = checkpoint.arguments["activation"]
    return mapped, {"activation": activation, "norm_epsilon": 1e-5, "causal": True, "pooling": "argmax"}


def _usual_heads(text):
    """The number of heads of a tower without a configuration file."""
    sizes = tuple(text[name] for name in ("hidden_size", "num_layers", "mlp_dim"))
    candidates = {heads for (*known, heads) in VARIANTS.values() if tuple(known) == sizes}
    return candidates.pop() if len(candidates) == 1 else max(text["hidden_size"] // _HEAD_SIZE, 1)


def image_text_model(checkpoint, image):
    """The `ImageTextModel` of a checkpoint with two towers, with new weights.

    Args:
        checkpoint: `StoredModel` with `towers`, whose arrays join those of the image tower.
        image: VisionTransformer.
    """
    mapped, options, between = checkpoint.towers
    checkpoint.arrays.update(mapped.arrays)
    checkpoint.keys.update(mapped.keys)
    checkpoint.unknown += mapped.unknown
    text = TextTransformer(**options, dtype=image.dtype_policy, dropout_rate=image.dropout_rate)
    return ImageTextModel(image, text, **between)


def tokenizer_family(checkpoint):
    """The family of the tokenizer of a `StoredModel` with `towers`, if the file shows it, or None."""
    if checkpoint.towers.text.get("norm_after_residual"):
        return "lit_bert"
    return "lit" if checkpoint.layout == "vit_jax" else None


class TwoTowerParts(PartsAround):
    """The parts of an `ImageTextModel`: its image tower, and what is beside it."""

    has_text_tower = True
    pattern = _OURS

    def unsupported(self, layout, config):
        if layout == "timm":
            return ["a text tower"]
        model, text, expected = self.model, self.model.text, _NOT_BERT
        if layout in ("big_vision", "vit_jax"):
            of_bert = {**_OF_BERT, "length": BERT_LENGTH, "num_heads": _usual_heads(vars(text))}
            expected = of_bert if text.norm_after_residual else _OF_FLAX
        reasons = [
            f"the text tower's {name}={getattr(text, name)!r} (supported: {value!r})"
            for name, value in expected.items()
            if getattr(text, name) != value
        ]
        if layout == "open_clip":
            return reasons + open_clip.text_conflicts(model)
        if layout != "huggingface":
            return reasons
        kind = TYPES[_type_of(model)]
        projections = (model.image_projection is not None, model.text_projection is not None)
        poolings = " or ".join(map(repr, kind.poolings))
        of_type = {
            f"the text tower's causal={text.causal}": text.causal != kind.causal,
            f"the text tower's pooling={text.pooling!r} (supported: {poolings})": (
                text.pooling not in kind.poolings
            ),
            "other projections than the type's": projections != kind.projections
            or model.projection_bias != kind.projection_bias,
            f"eos_id={LEGACY_EOS}": text.pooling == "eos" and text.eos_id == LEGACY_EOS,
        }
        image = LAYOUTS[layout].written_type(config).name
        of_type[f"an image tower of the type {image!r} with a text tower of {kind.model}"] = (
            image != kind.image
        )
        return reasons + [reason for reason, applies in of_type.items() if applies]

    def written(self, layout, arrays, scan=False):
        model, others = self.model, self.others
        if not LAYOUTS[layout].split_heads or model.text.norm_after_residual:
            others = merged_heads(others)
        if layout == "open_clip":
            return arrays | open_clip.written_text(model, others)
        if layout == "huggingface":
            kind = TYPES[_type_of(model)]
            shape = (1,) if kind.objective == "sigmoid" else ()
            written = kind.table.write(others)
            keys = [key for key in written if key.startswith("logit_")]
            return arrays | written | {key: written[key].reshape(shape) for key in keys}
        write = written_bert if model.text.norm_after_residual else FLAX.write
        written = write(others)  # in which a number has one axis
        if layout == "big_vision":
            written = stacked(written, "txt/Encoder_0/encoderblock_") if scan else written
            arrays = {key.removeprefix("params/"): array for key, array in arrays.items()}
        prefix = "params/" if layout == "big_vision" else ""
        written |= {f"img/{key}": array for key, array in arrays.items()}
        return {prefix + key: array for key, array in written.items()}

    def described(self, config):
        # Without the text tower, the layer after the image tower is its head.
        return {**super().described(config), "num_classes": self.model.image_projection}

    def config_text(self, layout, text):
        if layout == "open_clip":
            return open_clip.written_config(self.model, text)
        model, name, text_tower = self.model, _type_of(self.model), self.model.text
        vision = json.loads(text)
        own = {key: vision.pop(key) for key in ("keras_vit",) if key in vision}
        for key in ("architectures", "id2label", "label2id"):
            vision.pop(key)
        options = {theirs: getattr(text_tower, ours) for theirs, ours in OPTIONS.items()}
        options |= {
            "model_type": f"{name}_text_model",
            "hidden_act": hub_config.written_activation(text_tower.activation),
        }
        config = {"architectures": [TYPES[name].model], "model_type": name}
        if name == "clip":
            options["eos_token_id"] = LEGACY_EOS if text_tower.pooling == "argmax" else text_tower.eos_id
            for part in (config, options, vision):
                part["projection_dim"] = model.text_projection
        else:
            options["projection_size"] = model.text_projection
        return json.dumps({**config, **own, "text_config": options, "vision_config": vision}, indent=2) + "\n"

    def files(self):
        return self.model.text_preprocessing.files() if self.model.text_preprocessing else {}

    def hub_words(self):
        task = "zero-shot-image-classification"
        return task, "the similarity of images and texts", ', kind="image_text"'


def _type_of(model):
    if model.objective == "softmax":
        return "clip"
    return "siglip2" if model.image.preprocessing.packs else "siglip"
