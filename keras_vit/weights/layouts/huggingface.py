"""The layout of Hugging Face's `transformers`: the model types of `huggingface_types.py`.

The weights of `ViTModel` are those of `ViTForImageClassification` without the prefix `vit.`; its pooler is
the paper's representation layer. A distilled DeiT has two classifiers. A model with an image and a text tower
is read as its image tower; the projection of CLIP's is a head without a bias. SigLIP 2's models for images of
any size (NaFlex) are read as models of one size, with the same outputs for images of this size, or with
`max_num_patches` as they are.
"""

import re

import numpy as np

from keras_vit.tasks import huggingface_additions
from keras_vit.weights import pretraining
from keras_vit.weights.layouts import huggingface_config
from keras_vit.weights.layouts.additions import merged
from keras_vit.weights.layouts.huggingface_type_table import TYPES, type_of_keys, written_type
from keras_vit.weights.layouts.huggingface_types import USAGE
from keras_vit.weights.layouts.layout import Layout, ModelForm
from keras_vit.weights.layouts.table import patch_kernel


class ImageGptForm(ModelForm):
    """How transformers stores an `ImageGPT`: its palette is in preprocessor_config.json, as `clusters`."""

    usage = USAGE

    def adapted(self, model, arrays, config):
        palette = "patch_embedding/palette"
        clusters = {"clusters": arrays[palette]}
        return {name: array for name, array in arrays.items() if name != palette}, {**config, **clusters}


class HuggingFace(Layout):
    name = "huggingface"
    library = "transformers"
    in_folder = True
    forms = {
        "classifier": ModelForm(
            'from transformers import pipeline\n\nmodel = pipeline("{task}", model="{repository}")'
        ),
        "image_gpt": ImageGptForm(),
        **merged(huggingface_additions(), "forms"),
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
        return type_of_keys(keys)[0].interpolation

    def interpolation_at_call(self, config):
        model_type = written_type(config)
        return model_type.interpolation if model_type.any_size else None

    def pretraining(self, keys):
        model_type, _ = type_of_keys(keys)
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
        stored, names = model_type.renamed(stored, names)
        mapped = super().read(stored)
        mapped = mapped.with_keys(names)
        names, keys = mapped.arrays, mapped.keys
        if (tokens := names.get("register_tokens/token")) is not None and not tokens.size:
            mapped.leave_out(("register_tokens/",))
        if "distillation_token/token" in names and "head_distillation/kernel" not in names:
            # Without a head of its own the token is a register.
            for by_name in (names, keys):
                by_name["register_tokens/token"] = by_name.pop("distillation_token/token")
        if keys.get("head/kernel", "").endswith("classifier.weight"):
            mapped.leave_out(model_type.before_classifier)
        if keys.get("head/kernel", "").endswith("visual_projection.weight"):
            names["head/bias"] = np.zeros(names["head/kernel"].shape[-1:], names["head/kernel"].dtype)
            keys["head/bias"] = keys["head/kernel"]
        for layers in model_type.biases:
            _add_zero_biases(mapped, layers)
        model_type.after_reading(mapped)
        return mapped

    def leave_out(self, mapped, metadata):
        if type_of_keys(mapped.keys.values())[0].spare_norm and metadata.get("final_norm") is False:
            mapped.leave_out(("encoder_norm/",))

    def adapted(self, arrays, config):
        return written_type(config).adapted(dict(arrays), config)

    def write(self, arrays, config):
        model_type = written_type(config)
        arrays = model_type.before_writing(dict(arrays), config)
        always = ("vision_model.", "transformer.")
        prefix = model_type.prefix if config["num_classes"] or model_type.prefix in always else ""
        written = {}
        for key, array in model_type.table(config["gated_mlp"]).write(arrays).items():
            if not self.without_prefix.fullmatch(key):
                key = prefix + key
            elif key.startswith("classifier") and config["distillation"]:
                key = "cls_" + key
            written[key] = array
        return model_type.after_writing(written, prefix, config["hidden_size"])

    def implied(self, keys, metadata):
        model_type, gated = type_of_keys(keys.values())
        defaults = huggingface_config.options_of(model_type, {})
        implied = {name: defaults[name] for name in ("norm_epsilon", "rotary") if name in defaults}
        if model_type.images is not None:
            implied["preprocessing"] = huggingface_config.default_preprocessing(model_type)
        implied |= {"prefix_positions": True, "activation": "silu" if gated else defaults["activation"]}
        implied |= model_type.implied(keys, metadata)
        return {name: value for name, value in implied.items() if value is not None}

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
        return written_type(config).unsupported_arrays(arrays)

    def unsupported_in_config(self, config):
        return written_type(config).unsupported_in_config(config) or super().unsupported_in_config(config)

    read_config = staticmethod(huggingface_config.read)
    configured_arrays = staticmethod(huggingface_config.palette)

    def write_config(self, config):
        return huggingface_config.written(config, written_type(config))


def _in_model(keys):
    """The keys by their names in the model; `ViTMSNForImageClassification` saves blocks without a prefix."""
    outside = "vit.embeddings.cls_token" in keys and not any(key.startswith("vit.encoder.") for key in keys)
    return {f"vit.{key}" if outside and key.startswith("encoder.layer.") else key: key for key in keys}


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
