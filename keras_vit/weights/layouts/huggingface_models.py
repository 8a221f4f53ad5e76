"""The models of transformers that hold more than a Vision Transformer, by their files and config.json.

Sources: the modules `siglip`, `siglip2`, `clip`, `owlvit`, `owlv2`, `vit_mae`, `eomt` and `eomt_dinov3` of
transformers 5.23.
"""

import re
from typing import NamedTuple

import numpy as np

from keras_vit.layers.segmentation_head import QueryAttentionBias
from keras_vit.tasks.segmentation.loss import NO_OBJECT_WEIGHT
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.decoder import DECODER_BLOCK, DecoderForm
from keras_vit.weights.layouts.huggingface_type_table import written_type
from keras_vit.weights.layouts.huggingface_types import (
    MASK_PROBABILITIES,
    PACKED,
    VIT_BLOCK,
    VIT_BLOCK_IN_MEMORY,
    text_rows,
)
from keras_vit.weights.layouts.layout import HeadOptions, ModelForm, other_values, true_reasons
from keras_vit.weights.layouts.table import LINEAR, Row, Table, torch_rows
from keras_vit.weights.layouts.text_tower import NOT_BERT, TwoTowersForm, WordDetectorForm, unsupported_text

_USAGE = 'from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained("{repository}")'
_TEXT = [
    *text_rows(),
    Row("logit_factors/scale", "logit_scale"),
    Row("logit_factors/bias", "logit_bias"),
]


class _TwoTowers(NamedTuple):
    """A model of transformers with two towers.

    Attributes:
        model: Name of its class.
        image: `model_type` of its image tower.
        table: `Table` of the arrays that are not the image tower's.
        defaults: The values of options that the arrays do not show, if config.json has none.
        causal: Whether its text tower has a causal mask.
        poolings: Those that it can express.
        projections: Whether there are linear layers after the towers: (image, text).
        projection_bias: Whether these have biases.
    """

    model: str
    image: str
    table: Table
    defaults: dict
    causal: bool
    poolings: tuple
    projections: tuple
    projection_bias: bool


_SIGLIP = _TwoTowers(
    "SiglipModel",
    "siglip_vision_model",
    Table([*_TEXT, *torch_rows({"text_projection": "text_model.head"})]),
    {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    causal=False,
    poolings=("last",),
    projections=(False, True),
    projection_bias=True,
)
_CLIP = _TwoTowers(
    "CLIPModel",
    "clip_vision_model",
    Table(
        [
            *_TEXT,
            Row("text_projection/kernel", "text_projection.weight", LINEAR),
            Row("image_projection/kernel", "visual_projection.weight", LINEAR),
        ]
    ),
    {"num_attention_heads": 8, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "eos_token_id": 49407},
    causal=True,
    poolings=("eos", "argmax"),
    projections=(True, True),
    projection_bias=False,
)
_SIGLIP2 = _SIGLIP._replace(model="Siglip2Model", image=PACKED)  # of one size it is the type before
TWO_TOWERS = {"siglip": _SIGLIP, "siglip2": _SIGLIP2, "clip": _CLIP}
_LEGACY_EOS = 2  # of configurations whose models read the token with the highest id
_TEXT_OPTIONS = {  # of config.json to `TextTransformer`'s
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "mlp_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "length",
    "layer_norm_eps": "norm_epsilon",
}


def _type_of(model):
    if model.objective == "softmax":
        return "clip"
    return "siglip2" if model.image.preprocessing.packs else "siglip"


class HuggingFaceTowers(TwoTowersForm):
    """How transformers stores an `ImageTextModel`."""

    usage = _USAGE
    text_keys = re.compile(r"text_model\..*")

    def read(self, checkpoint, others, folder):
        towers = TWO_TOWERS["clip" if "text_projection.weight" in others else "siglip"]
        if not towers.projections[0] and "attention_pooling/probe" not in checkpoint.arrays:
            raise ValueError(
                "expected an image tower with pooling; got vision_use_head=False in config.json: load it "
                "without its text tower"
            )
        values, options = _text_options(folder, towers.defaults)
        options |= {"causal": towers.causal, "pooling": towers.poolings[0]}
        if towers.causal:
            end = values["eos_token_id"]
            options |= {"pooling": "argmax"} if end == _LEGACY_EOS else {"eos_id": end}
        return towers.table.read(others), options

    def unsupported(self, model, config):
        tower, towers, image = model.text, TWO_TOWERS[_type_of(model)], written_type(config).name
        poolings = " or ".join(map(repr, towers.poolings))
        projections = (model.image_projection is not None, model.text_projection is not None)
        other_pooling = f"the text tower's pooling={tower.pooling!r} (supported: {poolings})"
        reasons = {
            f"the text tower's causal={tower.causal}": tower.causal != towers.causal,
            other_pooling: tower.pooling not in towers.poolings,
            "other projections than the type's": projections != towers.projections
            or model.projection_bias != towers.projection_bias,
            f"eos_id={_LEGACY_EOS}": tower.pooling == "eos" and tower.eos_id == _LEGACY_EOS,
            f"an image tower of the type {image!r} with a text tower of {towers.model}": image
            != towers.image,
        }
        return super().unsupported(model, config) + true_reasons(reasons)

    def write(self, model, arrays, others):
        towers = TWO_TOWERS[_type_of(model)]
        shape = (1,) if model.objective == "sigmoid" else ()
        written = towers.table.write(others)
        numbers = {key: array.reshape(shape) for key, array in written.items() if key.startswith("logit_")}
        return {**arrays, **written, **numbers}

    def written_config(self, model, vision):
        name, tower = _type_of(model), model.text
        kept, _ = _apart(vision)
        options = _written_text_options(tower, f"{name}_text_model")
        config = {"architectures": [TWO_TOWERS[name].model], "model_type": name}
        if name == "clip":
            options["eos_token_id"] = _LEGACY_EOS if tower.pooling == "argmax" else tower.eos_id
            for part in (config, options, vision):
                part["projection_dim"] = model.text_projection
        else:
            options["projection_size"] = model.text_projection
        return {**config, **kept, "text_config": options, "vision_config": vision}


def _apart(vision):
    """Remove what is not of the image tower from its configuration: our own entry, and the architectures."""
    for key in ("id2label", "label2id"):
        vision.pop(key)
    kept = {key: vision.pop(key) for key in ("keras_vit",) if key in vision}
    return kept, vision.pop("architectures")


def _text_options(folder, defaults):
    """The values of a text tower's configuration, and the `TextTransformer` arguments that no array shows.

    Args:
        folder: pathlib.Path of the folder with config.json, or None if it is not read.
        defaults: dict of the values without a configuration.
    """
    stored = read_json(folder / hub_config.CONFIG, {}) if folder else {}
    # Of the two, transformers ignores the second.
    config = stored.get("text_config_dict") or stored.get("text_config")
    if not isinstance(config, dict | None):
        raise ValueError(f"{hub_config.CONFIG}: text_config must be an object; got {config!r}")
    values = {**defaults, **(config or {})}
    heads = {} if config is None else {"num_heads": values["num_attention_heads"]}
    return values, {
        "activation": hub_config.activation(values["hidden_act"]),
        "norm_epsilon": values["layer_norm_eps"],
        **heads,
    }


def _written_text_options(tower, model_type):
    """The `text_config` of a `TextTransformer`."""
    return {
        **{theirs: getattr(tower, ours) for theirs, ours in _TEXT_OPTIONS.items()},
        "model_type": model_type,
        "hidden_act": hub_config.written_activation(tower.activation),
    }


_ONLY_IN_MEMORY = dict(VIT_BLOCK_IN_MEMORY.items() - VIT_BLOCK.items())
_DECODER_OPTIONS = {  # transformers' names of options that no array shows, and ours
    "decoder_num_attention_heads": "decoder_num_heads",
    "mask_ratio": "mask_fraction",
    "norm_pix_loss": "normalize_targets",
}


class ViTMAE(DecoderForm):
    """How transformers stores a `MaskedAutoencoder`: `ViTMAEForPreTraining`, whose encoder is a `vit`."""

    usage = _USAGE

    def __init__(self):
        blocks = [
            *torch_rows(VIT_BLOCK, DECODER_BLOCK, "decoder_layers.{i}."),
            *torch_rows(VIT_BLOCK, DECODER_BLOCK, "decoder_encoder.layer.{i}."),  # of transformers 5
            *torch_rows(_ONLY_IN_MEMORY, DECODER_BLOCK, "decoder_layers.{i}."),
        ]
        super().__init__(blocks, "decoder.", _DECODER_OPTIONS, normalize_targets=False)

    def unsupported(self, model, config):
        towers = written_type(config).name
        other_type = f"an encoder of the type {towers!r} (supported: 'vit')"
        return super().unsupported(model, config) + [other_type] * (towers != "vit")

    def write(self, model, arrays, others):
        return super().write(model, {f"vit.{key}": array for key, array in arrays.items()}, others)

    def written_config(self, model, values):
        return {
            **values,
            **{"architectures": ["ViTMAEForPreTraining"], "model_type": "vit_mae"},
            **{theirs: getattr(model, ours) for theirs, ours in self.names.items()},
            "decoder_hidden_size": model.decoder_hidden_size,
            "decoder_num_hidden_layers": model.decoder_num_layers,
            "decoder_intermediate_size": model.decoder_mlp_dim or 4 * model.decoder_hidden_size,
        }


class ImageGptForm(ModelForm):
    """How transformers stores an `ImageGPT`: its palette is in preprocessor_config.json, as `clusters`."""

    usage = _USAGE

    def adapted(self, model, arrays, config):
        palette = "patch_embedding/palette"
        clusters = {"clusters": arrays[palette]}
        return {name: array for name, array in arrays.items() if name != palette}, {**config, **clusters}


class Eomt(ModelForm):
    """How transformers stores an `ImageSegmenter` with head "mask".

    `config["segmentation"]` has the options of the head, for the configuration.
    """

    usage = _USAGE
    kind = "segmenter"

    def has_head(self, arrays):
        return {"queries/token", "class_head/kernel"} <= arrays.keys()

    def head_options(self, checkpoint, layout, folder):
        arrays, keys, encoder = checkpoint.arrays, checkpoint.keys, checkpoint.arguments
        probabilities = arrays.pop(MASK_PROBABILITIES, np.zeros(0))
        masked = bool(np.any(probabilities > 0))
        first = encoder["num_layers"] - len(probabilities)
        # One array for each block with queries, if these mask.
        for i, probability in enumerate(probabilities if masked else ()):
            name = f"query_mask_{first + i}/probability"
            arrays[name], keys[name] = np.asarray(probability), keys[MASK_PROBABILITIES]
        return {
            "num_classes": arrays["class_head/kernel"].shape[-1] - 1,
            "head": "mask",
            "num_queries": arrays["queries/token"].shape[-2],
            "query_blocks": max(len(probabilities), 1),
            "upscale_blocks": sum(name.endswith("/depthwise/kernel") for name in arrays),
            # Theirs with DINOv2's gated MLPs has another activation in the head.
            "head_activation": encoder["activation"] if encoder.get("rotary") else None,
            "masked_attention": masked,
        }

    def adapted(self, model, arrays, config):
        masks = [layer for layer in model.layers if isinstance(layer, QueryAttentionBias)]
        probabilities = [float(layer.probability.numpy()) for layer in masks] or [0.0] * model.query_blocks
        mask_paths = {layer.probability.path for layer in masks}
        upscale = sum(name.endswith("/depthwise/kernel") for name in arrays)
        options = {
            "num_queries": model.num_queries,
            "query_blocks": model.query_blocks,
            "upscale_blocks": upscale,
            "activation": model.get_layer("upscale_0").activation if upscale else model.encoder.activation,
        }
        arrays = {name: array for name, array in arrays.items() if name not in mask_paths}
        arrays[MASK_PROBABILITIES] = np.array(probabilities, "float32")
        return arrays, {**config, "segmentation": HeadOptions(options)}

    def write(self, model, arrays, others):
        weights = np.ones(model.num_classes + 1, "float32")
        weights[-1] = NO_OBJECT_WEIGHT
        return {**arrays, "criterion.empty_weight": weights}


class OwlViT(WordDetectorForm):
    """How transformers stores an `ObjectDetector` with a text tower: OWL-ViT, or OWLv2 with objectness.

    The projection of CLIP's image tower and the scale of its logits are in their files, but detection does
    not use them: they are written as zero and as CLIP's start.
    """

    usage = _USAGE
    head = {"merge_class_token": True, "merge_norm_epsilon": None, "head_activation": "gelu_erf"}

    def text_options(self, folder):
        _, options = _text_options(folder, _CLIP.defaults)
        return {**options, **_OWL_TEXT}

    def unsupported(self, model, config):
        head = {**self.head, "query_size": model.text.hidden_size}
        resize = config["preprocessing"]["resize"]
        known = ("squash", "pad") if model.objectness else ("squash",)
        reason = f"preprocessing with resize={resize!r} (supported: {' or '.join(map(repr, known))})"
        return [
            *true_reasons({reason: resize not in known}),
            *other_values(vars(model), head),
            *unsupported_text(model.text, {**NOT_BERT, **_OWL_TEXT}),
        ]

    def write(self, model, arrays, others):
        prefix, size = f"{_owl_type(model)}.", (model.query_size, model.encoder.hidden_size)
        unused = {"visual_projection.weight": np.zeros(size), "logit_scale": np.array(_LOGIT_SCALE)}
        return {**arrays, **{prefix + key: array.astype("float32") for key, array in unused.items()}}

    def written_config(self, model, vision):
        name = _owl_type(model)
        kept, architectures = _apart(vision)
        return {
            "architectures": architectures,
            "model_type": name,
            **kept,
            "projection_dim": model.query_size,
            "text_config": _written_text_options(model.text, f"{name}_text_model"),
            "vision_config": vision,
        }


_OWL_TEXT = {"causal": True, "pooling": "argmax"}
_LOGIT_SCALE = 2.6592  # of CLIP before training: the logarithm of 1 / 0.07


def _owl_type(model):
    return "owlv2" if model.objectness else "owlvit"
