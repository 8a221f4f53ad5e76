"""How transformers stores models of images and texts.

Sources: the modules `siglip`, `siglip2` and `clip` of transformers 5.23.
"""

import re
from typing import NamedTuple

from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.additions import HuggingFaceAdditions
from keras_vit.weights.layouts.huggingface_type_table import written_type
from keras_vit.weights.layouts.huggingface_types import PACKED, USAGE, text_rows
from keras_vit.weights.layouts.layout import true_reasons
from keras_vit.weights.layouts.table import LINEAR, Row, Table, torch_rows
from keras_vit.weights.layouts.text_tower import TwoTowersForm

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
CLIP = _TwoTowers(
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
TWO_TOWERS = {"siglip": _SIGLIP, "siglip2": _SIGLIP2, "clip": CLIP}
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

    usage = USAGE
    text_keys = re.compile(r"text_model\..*")

    def read(self, checkpoint, others, folder):
        towers = TWO_TOWERS["clip" if "text_projection.weight" in others else "siglip"]
        if not towers.projections[0] and "attention_pooling/probe" not in checkpoint.arrays:
            raise ValueError(
                "expected an image tower with pooling; got vision_use_head=False in config.json: load it "
                "without its text tower"
            )
        values, options = text_options(folder, towers.defaults)
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
        kept, _ = apart(vision)
        options = written_text_options(tower, f"{name}_text_model")
        config = {"architectures": [TWO_TOWERS[name].model], "model_type": name}
        if name == "clip":
            options["eos_token_id"] = _LEGACY_EOS if tower.pooling == "argmax" else tower.eos_id
            for part in (config, options, vision):
                part["projection_dim"] = model.text_projection
        else:
            options["projection_size"] = model.text_projection
        return {**config, **kept, "text_config": options, "vision_config": vision}


def apart(vision):
    """Remove what is not of the image tower from its configuration: our own entry, and the architectures."""
    for key in ("id2label", "label2id"):
        vision.pop(key)
    kept = {key: vision.pop(key) for key in ("keras_vit",) if key in vision}
    return kept, vision.pop("architectures")


def text_options(folder, defaults):
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


def written_text_options(tower, model_type):
    """The `text_config` of a `TextTransformer`."""
    return {
        **{theirs: getattr(tower, ours) for theirs, ours in _TEXT_OPTIONS.items()},
        "model_type": model_type,
        "hidden_act": hub_config.written_activation(tower.activation),
    }


ADDITIONS = HuggingFaceAdditions({"image_text": HuggingFaceTowers()})
