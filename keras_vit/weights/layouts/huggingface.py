"""The layout of Hugging Face's `transformers`: the model types of `huggingface_types.py`.

The weights of `ViTModel` are those of `ViTForImageClassification` without the prefix `vit.`; its pooler is
the paper's representation layer. A distilled DeiT has two classifiers. A model with an image and a text tower
is read as its image tower; the projection of CLIP's is a head without a bias. SigLIP 2's models for images of
any size (NaFlex) are read as models of one size, with the same outputs for images of this size, or with
`max_num_patches` as they are.
"""

import re

import numpy as np

from keras_vit.weights import pretraining
from keras_vit.weights.layouts import huggingface_config, huggingface_depth
from keras_vit.weights.layouts.huggingface_models import (
    Eomt,
    HuggingFaceTowers,
    ImageGptForm,
    OwlViT,
    ViTMAE,
)
from keras_vit.weights.layouts.huggingface_type_table import TYPES, type_of_keys, written_type
from keras_vit.weights.layouts.huggingface_types import PACKED
from keras_vit.weights.layouts.layout import Layout, ModelForm
from keras_vit.weights.layouts.table import add_first_position, flat_patches, patch_kernel

_MASK_TOKEN = "embeddings.mask_token"  # of masked training
_REGISTER_TOKENS = "embeddings.register_tokens"
_CONV1D = re.compile(r"(transformer\.)?h\.\d+\.(attn|mlp)\.c_\w+\.weight")
_EMBEDDINGS, _START = "wte.weight", "start.weight"


class HuggingFace(Layout):
    name = "huggingface"
    library = "transformers"
    in_folder = True
    forms = {
        "classifier": ModelForm(
            'from transformers import pipeline\n\nmodel = pipeline("{task}", model="{repository}")'
        ),
        "mask_segmenter": Eomt(),
        "word_detector": OwlViT(),
        "image_text": HuggingFaceTowers(),
        "masked_autoencoder": ViTMAE(),
        "image_gpt": ImageGptForm(),
        **huggingface_depth.FORMS,
    }
    config_files = huggingface_config.FILES
    table = TYPES["vit"].table(gated=False)
    without_prefix = re.compile(r"((cls_|distillation_)?classifier|visual_projection|lm_head)\..*")
    anchors = (
        *(kind.anchor for kind in TYPES.values() if kind.anchor),
        "embeddings.patch_embeddings.projection.weight",
        "embeddings.patch_embeddings.weight",
        "embeddings.patch_embedding.weight",
        "wte.weight",
    )
    prefixes = ("", *dict.fromkeys(kind.prefix for kind in TYPES.values() if kind.prefix))

    def table_of(self, keys):
        model_type, gated = type_of_keys(keys)
        return model_type.table(gated)

    def position_interpolation(self, keys):
        name = type_of_keys(keys)[0].name
        if name == "dinov2" and any(key.endswith(_REGISTER_TOKENS) for key in keys):
            name = "dinov2_with_registers"
        return TYPES[name].interpolation

    def interpolation_at_call(self, config):
        model_type = written_type(config)
        return model_type.interpolation if model_type.any_size else None

    def pretraining(self, keys):
        model_type, _ = type_of_keys(keys)
        if model_type.name == "vit" and any(re.fullmatch(model_type.others, key) for key in keys):
            return pretraining.of_type("vit_mae", has_classifier=False)
        return pretraining.of_type(model_type.name, any("classifier." in key for key in keys))

    def skipped_keys(self, keys):
        model_type, _ = type_of_keys(keys)
        return [key for key in keys if re.fullmatch(model_type.others, key)]

    def read(self, arrays):
        """Map the model's arrays, by the file's keys, to our names, in the form of our model."""
        names, model_type = _in_model(arrays), type_of_keys(arrays)[0]
        stored = {name: arrays[key] for name, key in names.items()}
        for name in stored:
            if name.endswith("embeddings.patch_embedding.weight"):  # without axes in a SigLIP 2 for any size
                stored[name] = patch_kernel(name, stored[name])
        if model_type.name == "imagegpt":
            stored, names = _from_image_gpt(stored, names)
        mapped = super().read(stored)
        mapped = mapped.with_keys(names)
        names, keys = mapped.arrays, mapped.keys
        if "distillation_token/token" in names and "head_distillation/kernel" not in names:
            # Without a head of its own the token is a register.
            for by_name in (names, keys):
                by_name["register_tokens/token"] = by_name.pop("distillation_token/token")
        if keys.get("head/kernel", "").endswith("classifier.weight"):
            _leave_out(mapped, model_type.before_classifier)
        if keys.get("head/kernel", "").endswith("visual_projection.weight"):
            names["head/bias"] = np.zeros(names["head/kernel"].shape[-1:], names["head/kernel"].dtype)
            keys["head/bias"] = keys["head/kernel"]
        for layers in model_type.biases:
            _add_zero_biases(mapped, layers)
        if model_type.name.startswith(("dinov", "eomt")) and "register_tokens/token" in names:
            if not names["register_tokens/token"].size:
                _leave_out(mapped, ("register_tokens/",))
            elif not model_type.segments:
                add_first_position(names)
        return mapped

    def leave_out(self, mapped, metadata):
        if type_of_keys(mapped.keys.values())[0].spare_norm and metadata.get("final_norm") is False:
            _leave_out(mapped, ("encoder_norm/",))

    def adapted(self, arrays, config):
        model_type, arrays = written_type(config), dict(arrays)
        if model_type.name == "clip_vision_model" and not config["norm_after_pooling"]:
            # The same outputs; of the last tokens transformers normalizes only the pooled one.
            for leaf in ("gamma", "beta"):
                arrays[f"pooled_norm/{leaf}"] = arrays.pop(f"encoder_norm/{leaf}")
            config = {**config, "norm_after_pooling": True}
        if model_type.name == "dinov2_with_registers":
            table, last = arrays["position_embedding/table"], 1 + config["num_registers"]
            arrays["register_tokens/token"] = arrays["register_tokens/token"] + table[:, 1:last]
            arrays["position_embedding/table"] = np.concatenate([table[:, :1], table[:, last:]], axis=1)
            config = {**config, "prefix_positions": False}
        return arrays, config

    def write(self, arrays, config):
        """Map arrays to the file's keys; a register becomes a DeiT's distillation token without a head."""
        model_type, arrays = written_type(config), dict(arrays)
        hidden = (1, 0, config["hidden_size"])
        if model_type.name == "deit" and "register_tokens/token" in arrays:
            arrays["distillation_token/token"] = arrays.pop("register_tokens/token")
        if model_type.name == "clip_vision_model":
            arrays.pop("head/bias", None)
        if model_type.name == "dinov3_vit" or model_type.segments:
            arrays.setdefault("register_tokens/token", np.zeros(hidden, "float32"))
        always = ("vision_model.", "transformer.")
        prefix = model_type.prefix if config["num_classes"] or model_type.prefix in always else ""
        written = {}
        for key, array in model_type.table(config["gated_mlp"]).write(arrays).items():
            if not self.without_prefix.fullmatch(key):
                key = prefix + key
            elif key.startswith("classifier") and config["distillation"]:
                key = "cls_" + key
            if model_type.name == PACKED and key.endswith("embeddings.patch_embedding.weight"):
                array = flat_patches(array)
            written[key] = array
        if model_type.name.startswith("dinov"):
            # transformers' modules have it even if nothing is masked.
            shape = (1, 1, hidden[-1]) if model_type.name == "dinov3_vit" else (1, hidden[-1])
            written[prefix + _MASK_TOKEN] = np.zeros(shape, "float32")
        return _as_image_gpt(written) if model_type.name == "imagegpt" else written

    def implied(self, keys, metadata):
        model_type, gated = type_of_keys(keys.values())
        defaults = huggingface_config.options_of(model_type, {})
        implied = {name: defaults[name] for name in ("norm_epsilon", "rotary") if name in defaults}
        if model_type.images is not None:
            implied["preprocessing"] = huggingface_config.default_preprocessing(model_type)
        registers = model_type.name == "dinov2" and "register_tokens/token" in keys
        implied["prefix_positions"] = not (registers or model_type.segments)
        if model_type.name == "clip_vision_model":  # exists with several activations
            implied["pooling"] = "gap" if keys.get("head/kernel", "").startswith("classifier") else "token"
        else:
            implied["activation"] = "silu" if gated else defaults["activation"]
        if model_type.name == "vit" and "class_token/token" not in keys:  # I-JEPA
            if "pre_logits/kernel" in keys:
                raise ValueError(
                    f"{keys['pre_logits/kernel']} would read the first patch, not the pooled vector"
                )
            if "norm_epsilon" not in metadata:
                raise ValueError(
                    "without a class token the epsilon is unknown; put the config.json next to the file"
                )
        return implied

    def unsupported(self, config):
        height, width = config["patch_size"]
        model_type = written_type(config)
        reasons = [
            f"as {model_type.name!r}: {reason}" for part in model_type.unsupported(config) for reason in part
        ]
        if config["num_layers"] is None:
            reasons.append("num_layers=None")
        if height != width:
            reasons.append(f"patch_size={config['patch_size']} (supported: squares)")
        return reasons

    def unsupported_arrays(self, arrays, config):
        if written_type(config).name == "clip_vision_model" and np.any(arrays.get("head/bias", 0)):
            return ["a head with a bias (CLIP's projection has none)"]
        return []

    def unsupported_in_config(self, config):
        if written_type(config).name == "clip_vision_model" and config["num_classes"]:
            return ["a head (transformers classifies by CLIP's tokens before the last norm)"]
        return super().unsupported_in_config(config)

    read_config = staticmethod(huggingface_config.read)
    configured_arrays = staticmethod(huggingface_config.palette)

    def write_config(self, config):
        return huggingface_config.written(config, written_type(config))


def _in_model(keys):
    """The keys by their names in the model; `ViTMSNForImageClassification` saves blocks without a prefix."""
    outside = "vit.embeddings.cls_token" in keys and not any(key.startswith("vit.encoder.") for key in keys)
    return {f"vit.{key}" if outside and key.startswith("encoder.layer.") else key: key for key in keys}


def _from_image_gpt(arrays, keys):
    """The arrays of an ImageGPT as other types have them, and the file's key of each.

    Its layers are convolutions of one position, whose kernels are (in, out), and the last row of its
    embeddings is the start token.
    """
    arrays = {name: array.T if _CONV1D.fullmatch(name) else array for name, array in arrays.items()}
    for name in [name for name in arrays if name.endswith(_EMBEDDINGS) and arrays[name].ndim == 2]:
        start = name.removesuffix(_EMBEDDINGS) + _START
        arrays[start], arrays[name] = arrays[name][-1:], arrays[name][:-1]
        keys = {**keys, start: keys[name]}
    return arrays, keys


def _as_image_gpt(arrays):
    """The reverse of `_from_image_gpt`."""
    arrays = {
        key: np.ascontiguousarray(array.T) if _CONV1D.fullmatch(key) else array
        for key, array in arrays.items()
    }
    start, table = arrays.pop("transformer." + _START), arrays["transformer." + _EMBEDDINGS]
    return {**arrays, "transformer." + _EMBEDDINGS: np.concatenate([table, start])}


def _add_zero_biases(mapped, layers):
    """Let all of these layers of a block have a bias if one has, since our option is for all of them."""
    ends = tuple(f"/{layer}/" for layer in layers)
    kernels = [name for name in mapped.arrays if name.endswith(tuple(f"{end}kernel" for end in ends))]
    if any(name.endswith(tuple(f"{end}bias" for end in ends)) for name in mapped.arrays):
        for name in kernels:
            bias = name.removesuffix("kernel") + "bias"
            if bias not in mapped.arrays:
                kernel = mapped.arrays[name]
                mapped.arrays[bias] = np.zeros(kernel.shape[-1:], kernel.dtype)
                mapped.keys[bias] = mapped.keys[name]


def _leave_out(mapped, prefixes):
    """Move arrays whose names begin with one of the prefixes to the skipped keys."""
    for name in [name for name in mapped.arrays if name.startswith(prefixes)]:
        del mapped.arrays[name]
        key = mapped.keys.pop(name)
        if key not in mapped.skipped:  # a fused array has several names
            mapped.skipped.append(key)
