"""The layout of open_clip: models with two towers, in a folder with an open_clip_config.json.

The image tower is open_clip's own (CLIP) or one of timm (SigLIP, under `visual.trunk.`), with a linear layer
behind it or none; the text tower is under `text.` or at the top. Without its text tower, a model is read as
an image tower whose head is that linear layer. Text towers of transformers (`hf_model_name`) are not read.

Source: `model.py`, `transformer.py` and `timm_model.py` of open_clip 3.3.0.
"""

import re

import numpy as np

from keras_vit.variants import VARIANTS
from keras_vit.weights.catalogue import NORMS
from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config, timm_config
from keras_vit.weights.layouts.hub_config import TORCHVISION_CROP
from keras_vit.weights.layouts.layout import COMMON, Layout, other_values, true_reasons
from keras_vit.weights.layouts.table import CONV, Row, Table, fused_rows, torch_rows
from keras_vit.weights.layouts.text_tower import TwoTowersForm
from keras_vit.weights.layouts.timm import Timm
from keras_vit.weights.pretraining import IMAGE_TEXT

CONFIG = "open_clip_config.json"
_TIMM, _TRUNK = Timm(), "visual.trunk."
_TEXT_KEYS = re.compile(
    r"text\..*|transformer\..*|token_embedding\.weight|positional_embedding|text_projection(\.weight|\.bias)?"
    r"|ln_final\..*|cls_emb|logit_(scale|bias)"
)
_BLOCK = {
    "attention_norm": "ln_1",
    "attention/out": "attn.out_proj",
    "mlp_norm": "ln_2",
    "mlp/dense_0": "mlp.c_fc",
    "mlp/dense_1": "mlp.c_proj",
}
_IN_PROJECTION = {"kernel": "_weight", "bias": "_bias"}


def _tower_rows(ours, theirs):
    blocks, inside = ours + "encoder_block_{i}/", theirs + "transformer.resblocks.{i}."
    parts = ("query", "key", "value")
    return [
        Row(f"{ours}position_embedding/table", f"{theirs}positional_embedding", leading=1),
        *torch_rows(_BLOCK, blocks, inside),
        *fused_rows(f"{blocks}attention/", parts, f"{inside}attn.in_proj", _IN_PROJECTION),
    ]


_PARAMETER = [Row("text_projection/kernel", "text_projection")]
_LINEAR = torch_rows({"text_projection": "text_projection"})
_TEXT = [
    *_tower_rows("text/", ""),
    Row("text/token_embedding/table", "token_embedding.weight"),
    *torch_rows({"text/encoder_norm": "ln_final"}),
    Row("logit_factors/scale", "logit_scale"),
    Row("logit_factors/bias", "logit_bias"),
]
_TEXT_TABLE = Table([*_TEXT, *_PARAMETER, *_LINEAR])
_PROJECTION = torch_rows({"head": "visual.head.proj"})
# timm's words for the sizes of SigLIP with our names of them, and its architectures.
_SIGLIP_SIZES = {"base": "B", "large": "L", "so400m": "So400m", "giantopt": "g-opt"}
_SIGLIP_NAMES = [
    *(f"vit_base_patch16_siglip_{size}" for size in (224, 256, 384, 512)),
    "vit_base_patch32_siglip_256",
    *(f"vit_large_patch16_siglip_{size}" for size in (256, 384, 512)),
    *(f"vit_so400m_patch14_siglip_{size}" for size in (224, 378, 384)),
    *(f"vit_so400m_patch16_siglip_{size}" for size in (256, 384, 512)),
    *(f"vit_giantopt_patch16_siglip_{size}" for size in (256, 384)),
]
# The options of open_clip's towers that change what they compute, and the values that ours have.
_PLAIN = {
    "ls_init_value": None,
    "block_type": None,
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner"), False),
    **dict.fromkeys(("scale_attn", "scale_fc"), False),
}
_PLAIN_VISION = {
    **_PLAIN,
    **{"attentional_pool": False, "no_ln_pre": False, "pos_embed_type": "learnable", "pool_type": "tok"},
}
_PLAIN_TEXT = {**_PLAIN, "embed_cls": False, "hf_model_name": None}
_TEXT_DEFAULTS = {"no_causal_mask": False, "pool_type": "argmax", "eos_id": 2, "heads": 8}
_MEAN, _STD = NORMS["clip"]
_RESIZES = {"shortest": "crop", "squash": "squash"}


class OpenClipTowers(TwoTowersForm):
    """How open_clip stores an `ImageTextModel`."""

    text_keys = re.compile(r"text\..*|(token_embedding|positional_embedding|transformer|ln_final)\b.*")

    def read(self, checkpoint, others, folder):
        mapped = _TEXT_TABLE.read(others, lambda key: key.removeprefix("text."))
        if folder and (folder / CONFIG).is_file():
            try:
                return mapped, text_options(folder)
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{CONFIG} is not in the format of open_clip: {error!r}") from None
        if checkpoint.arguments["pooling"] != "token":
            raise ValueError(f"no array shows the text tower's options; put {CONFIG} next to the file")
        activation = checkpoint.arguments["activation"]
        return mapped, {"activation": activation, "norm_epsilon": 1e-5, "causal": True, "pooling": "argmax"}

    def unsupported(self, model, config):
        text, native = model.text, model.image.pooling == "token"
        is_quick = [tower.activation == "quick_gelu" for tower in (model.image, text)]
        reasons = {
            f"the text tower's activation={text.activation!r}": text.activation not in COMMON["activation"],
            "quick_gelu in one tower only": native and is_quick[0] != is_quick[1],
            "image_projection=None with an image tower of CLIP": native and model.image_projection is None,
            "projection_bias=True with an image tower of CLIP": native and model.projection_bias,
        }
        return super().unsupported(model, config) + true_reasons(reasons)

    def write(self, model, arrays, text_arrays):
        native = model.image.pooling == "token"
        text_arrays = {
            re.sub("^image_projection/", "head/", name): array for name, array in text_arrays.items()
        }
        head = [Row("head/kernel", "visual.proj")] if native else _PROJECTION
        written = Table([*_TEXT, *(_LINEAR if model.projection_bias else _PARAMETER), *head]).write(
            text_arrays
        )
        for key in [key for key in written if not key.startswith("visual.")]:
            array = written.pop(key)
            if key.startswith("logit_"):
                arrays[key] = array.reshape(())
            else:
                arrays[key if native else f"text.{key}"] = array
        return {**arrays, **written}

    def written_config(self, model, values):
        config, tower, texts = values["model_cfg"], model.text, model.text_preprocessing
        config["embed_dim"] = model.image_encoder.output.shape[-1]
        if "timm_model_name" in config["vision_cfg"]:
            projection = "none" if model.image_projection is None else "linear"
            config["vision_cfg"] |= {"timm_proj": projection, "timm_proj_bias": model.projection_bias}
            # It has an effect on the text tower only.
            config |= {"custom_text": True, "quick_gelu": tower.activation == "quick_gelu"}
        if model.objective == "sigmoid":
            config["init_logit_bias"] = -10
        config["text_cfg"] = {
            "context_length": tower.length,
            "vocab_size": tower.vocabulary_size,
            "heads": tower.num_heads,
            **_written_sizes(vars(tower)),
            "no_causal_mask": not tower.causal,
            "pool_type": tower.pooling,
            **({"eos_id": tower.eos_id} if tower.pooling == "eos" else {}),
            "proj_type": "none" if model.text_projection is None else "linear",
            "proj_bias": model.projection_bias,
        }
        if texts:  # The name only says that the tokenizer is one of transformers; it is in the same folder.
            clean = "canonicalize" if texts.remove_punctuation else "lower" if texts.lower else "whitespace"
            config["text_cfg"] |= {"hf_tokenizer_name": ".", "tokenizer_kwargs": {"clean": clean}}
        return values


def text_options(folder):
    """The arguments of `TextTransformer` that open_clip_config.json holds and no array shows.

    Raises:
        ValueError: if the text tower is one that ours cannot express.
    """
    model = read_json(folder / CONFIG)["model_cfg"]
    _check_plain("text_cfg", model["text_cfg"], _PLAIN_TEXT)
    text = {**_TEXT_DEFAULTS, **model["text_cfg"]}
    return {
        "activation": _activation(model, text),
        "norm_epsilon": (text.get("norm_kwargs") or {}).get("eps", 1e-5),
        "causal": not text["no_causal_mask"],
        "pooling": text["pool_type"],
        "num_heads": text["heads"],
        **({"eos_id": text["eos_id"]} if text["pool_type"] == "eos" else {}),
    }


class OpenClip(Layout):
    name = "open_clip"
    file = "open_clip_model.safetensors"
    in_folder = True
    forms = {"image_text": OpenClipTowers()}
    config_files = (CONFIG,)
    table = Table(
        [
            Row("patch_embedding/kernel", "visual.conv1.weight", CONV),
            Row("class_token/token", "visual.class_embedding", leading=2),
            *_tower_rows("", "visual."),
            *torch_rows({"pre_norm": "visual.ln_pre", "encoder_norm": "visual.ln_post"}),
            Row("head/kernel", "visual.proj"),
        ]
    )
    anchors = ("visual.class_embedding", *(_TRUNK + anchor for anchor in Timm.anchors))
    supported = {
        **COMMON,
        "pooling": ("token", "map"),
        "pre_norm": (True, False),
        "norm_after_pooling": (True, False),
    }

    def position_interpolation(self, keys):
        return "bicubic_antialias"

    def pretraining(self, keys):
        return IMAGE_TEXT

    def skipped_keys(self, keys):
        trunk = _TIMM.skipped_keys([key for key in keys if key.startswith(_TRUNK)])
        return [*trunk, *(key for key in keys if _TEXT_KEYS.fullmatch(key))]

    def read(self, arrays):
        """Map the image tower's arrays, by the file's keys, to our names; the projection is the head."""
        trunk = {k.removeprefix(_TRUNK): array for k, array in arrays.items() if k.startswith(_TRUNK)}
        if not trunk:
            mapped = super().read(arrays)
        else:
            tower = _TIMM.read(trunk).with_keys({key: _TRUNK + key for key in trunk})
            mapped = Table(_PROJECTION).read({k: a for k, a in arrays.items() if not k.startswith(_TRUNK)})
            mapped = tower._replace(
                arrays=tower.arrays | mapped.arrays,
                keys=tower.keys | mapped.keys,
                unknown=[*tower.unknown, *mapped.unknown],
            )
        if "head/kernel" in mapped.arrays and "head/bias" not in mapped.arrays:
            kernel = mapped.arrays["head/kernel"]
            mapped.arrays["head/bias"] = np.zeros(kernel.shape[-1:], kernel.dtype)
            mapped.keys["head/bias"] = mapped.keys["head/kernel"]
        return mapped

    def adapted(self, arrays, config):
        if config["pooling"] != "token" or not config["norm_after_pooling"]:
            return arrays, config
        # The same outputs: the last norm is of each token alone.
        renamed = {re.sub("^pooled_norm/", "encoder_norm/", name): array for name, array in arrays.items()}
        return renamed, {**config, "norm_after_pooling": False}

    def write(self, arrays, config):
        if config["pooling"] == "token":
            return self.table.write(arrays)
        return {_TRUNK + key: array for key, array in _TIMM.write(arrays, config).items()}

    def implied(self, keys, metadata):
        if keys["patch_embedding/kernel"].startswith(_TRUNK):
            return _TIMM.implied(keys, metadata)
        return {"norm_epsilon": 1e-5, "pooling": "token", "prefix_positions": True}

    def unsupported(self, config):
        c, reasons = config, super().unsupported(config)
        native, preprocessing = c["pooling"] == "token", c["preprocessing"]
        expected = {"pre_norm": native, "class_token": native, "in_channels": 3}
        if not native:
            expected |= {"norm_after_pooling": False, "norm_epsilon": 1e-6}
        reasons += other_values(c, expected, f"{{}} with pooling={c['pooling']!r}")
        if len({*c["patch_size"]}) > 1:
            reasons.append(f"patch_size={c['patch_size']} (supported: squares)")
        if preprocessing["resize"] not in _RESIZES.values():
            reasons.append(f"resize={preprocessing['resize']!r} of images (supported: 'crop' or 'squash')")
        if preprocessing["resize"] == "crop" and preprocessing["crop_fraction"] != 1:
            reasons.append(f"crop_fraction={preprocessing['crop_fraction']!r} of images (supported: 1)")
        if preprocessing["interpolation"] not in ("bilinear", "bicubic"):
            reasons.append(f"interpolation={preprocessing['interpolation']!r} of images")
        if not native and c["pooling"] == "map" and not reasons and _siglip(c) is None:
            reasons.append(
                "sizes and an activation of none of timm's SigLIP models, which it selects by name"
            )
        return reasons

    def read_config(self, folder):
        config = read_json(folder / CONFIG)
        model, images = config["model_cfg"], {**config.get("preprocess_cfg", {})}
        vision, mode = model["vision_cfg"], images.get("resize_mode", "shortest")
        if mode not in _RESIZES:
            raise ValueError(f"{CONFIG}: resize_mode must be one of {', '.join(_RESIZES)}; got {mode!r}")
        size = vision["image_size"]
        options = {
            "image_size": (size, size) if isinstance(size, int) else tuple(size),
            "preprocessing": {
                "resize": _RESIZES[mode],
                **({"crop_fraction": 1.0} if mode == "shortest" else {}),
                "interpolation": images.get("interpolation", "bicubic"),
                **hub_config.resizing_options(config, _RESIZES[mode], TORCHVISION_CROP),
                "mean": tuple(images.get("mean", _MEAN)),
                "std": tuple(images.get("std", _STD)),
            },
        }
        if vision.get("timm_model_name"):
            return {**_trunk_options(model, vision), **options}
        _check_plain("vision_cfg", vision, _PLAIN_VISION)
        return {
            **options,
            "activation": _activation(model, vision),
            "norm_epsilon": (vision.get("norm_kwargs") or {}).get("eps", 1e-5),
            "num_heads": vision["width"] // vision.get("head_width", 64),
        }

    def write_config(self, config):
        """The values of open_clip_config.json without its text tower."""
        c, preprocessing = config, config["preprocessing"]
        size = hub_config.stored_image_size(c)
        vision = {"image_size": size[0] if size[0] == size[1] else [*size]}
        if c["pooling"] == "token":
            vision |= {
                "patch_size": c["patch_size"][0],
                "head_width": c["hidden_size"] // c["num_heads"],
                **_written_sizes(c),
            }
        else:
            vision |= {"timm_model_name": _siglip(c), "timm_model_pretrained": False, "timm_pool": "map"}
        modes = {ours: theirs for theirs, ours in _RESIZES.items()}
        values = {
            "model_cfg": {"vision_cfg": vision, "quick_gelu": c["activation"] == "quick_gelu"},
            "preprocess_cfg": {
                **{name: [*preprocessing[name]] for name in ("mean", "std")},
                "interpolation": preprocessing["interpolation"],
                "resize_mode": modes[preprocessing["resize"]],
            },
            **hub_config.resizing_entry(preprocessing, TORCHVISION_CROP),
        }
        return [values]


def _check_plain(part, given, plain):
    for name, value in plain.items():
        if given.get(name, value) != value:
            raise ValueError(
                f"{CONFIG}: no tower of ours has {name}={given[name]!r} of {part} (expected {value!r})"
            )


def _activation(model, part):
    if model.get("quick_gelu"):
        return "quick_gelu"
    approximate = (part.get("act_kwargs") or {}).get("approximate")
    return "gelu_tanh" if approximate == "tanh" else "gelu_erf"


def _trunk_options(model, vision):
    """The options of an image tower of timm."""
    described = {"architecture": vision["timm_model_name"]}
    if vision.get("timm_pool", "avg"):
        described["global_pool"] = vision.get("timm_pool", "avg")
    if vision.get("timm_proj", "linear") == "none":
        described["num_features"] = model["embed_dim"]
    return timm_config.options_of(described)


def _siglip(config):
    """The name of the architecture of timm with the sizes and the activation of a SigLIP, or None."""
    sizes = tuple(config[name] for name in ("hidden_size", "num_layers", "mlp_dim", "num_heads"))
    word = next((word for word, variant in _SIGLIP_SIZES.items() if VARIANTS[variant] == sizes), None)
    height, width = hub_config.stored_image_size(config)
    name = f"vit_{word}_patch{config['patch_size'][0]}_siglip_{height}"
    if height != width or name not in _SIGLIP_NAMES:
        return None
    known = timm_config.options_of({"architecture": name})
    return name if known["activation"] == config["activation"] else None


def _written_sizes(options):
    """The entries of a tower's configuration that both towers have, but for the number of heads."""
    return {
        "width": options["hidden_size"],
        "layers": options["num_layers"],
        "mlp_ratio": timm_config.ratio(options["mlp_dim"], options["hidden_size"]),
        "norm_kwargs": {"eps": options["norm_epsilon"]},
        **({"act_kwargs": {"approximate": "tanh"}} if options["activation"] == "gelu_tanh" else {}),
    }
