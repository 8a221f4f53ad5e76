"""A model to a checkpoint file in another project's layout."""

import contextlib
import pathlib

import numpy as np

from keras_vit.models import VisionTransformer
from keras_vit.models.adapting import plain_arrays
from keras_vit.models.arguments import prefix_tokens
from keras_vit.weights.archive import FLOATS, write_arrays
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.configs import (
    CONFIG,
    PREPROCESSOR,
    configuration_digest,
    written_config,
    written_transformers_config,
)
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.writing import atomic_path, check_writable


def save_weights(model, path, layout, *, dtype="float32", overwrite=False, **options):
    """Write a model's weights so that another project reads them.

    What a layout's arrays do not tell (activation, epsilon, preprocessing, class names) is written
    into `NAME.json` beside `NAME.npz`, which `from_pretrained` reads; Hugging Face's layout also
    gets its own `config.json` and `preprocessor_config.json`. The weights and `NAME.json` hold the same
    digest, by which `from_pretrained` refuses old weights beside the `NAME.json` of an interrupted save.
    LoRA factors are merged into their kernels, and quantized kernels are written as the float numbers that
    they stand for.

    Args:
        model: VisionTransformer.
        path: File to write: `.npz` for "vit_jax" and "big_vision", `.safetensors` for "timm"; for
            "huggingface" a folder, in which `model.safetensors` is written.
        layout: "vit_jax", "big_vision", "timm" or "huggingface".
        dtype: How numbers are stored: "float32", "float16", "bfloat16" or "float64".
        overwrite: Whether to replace files that are already there.
        **options: `scan=True` stacks the blocks of "big_vision" along a first axis.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: if the layout cannot express the model, naming the options that stand in the
            way; for a wrong ending, an unknown layout or dtype, or a file that is already there.

    Example:
        >>> path = save_weights(model, tmp / "model.npz", "vit_jax")
        >>> keras_vit.from_pretrained(path).hidden_size == model.hidden_size
        True
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"wanted a VisionTransformer; got a {type(model).__name__}")
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    module, config = LAYOUTS[layout], model.get_config()
    if dtype not in FLOATS:
        raise ValueError(f"dtype {dtype!r} cannot be stored; choose one of {', '.join(FLOATS)}")
    if unknown := [name for name in options if name not in module.OPTIONS]:
        raise ValueError(f"the layout {layout!r} has no option {unknown[0]!r}; it has {module.OPTIONS}")
    if reasons := cannot_express(layout, config):
        raise ValueError(f"the layout {layout!r} cannot express this model: {'; '.join(reasons)}")
    file, *beside = files_to_write(path, layout, overwrite)

    arrays, config = _with_prefix_positions(plain_arrays(model), config, module.PREFIX_POSITIONS)
    written = module.write(arrays if module.HEADS_APART else merged_heads(arrays), config, **options)
    digest = configuration_digest(config)
    texts = [written_config(config, layout, digest)]
    if layout == "huggingface":
        texts += written_transformers_config(config)
    new_folder = not file.parent.exists()
    file.parent.mkdir(exist_ok=True)
    try:
        with contextlib.ExitStack() as stack:
            # Renamed in reverse order, the weights last, so that they never exist without their
            # configuration. If the process ends before that, the digests of the new configuration and the
            # old weights differ, and `from_pretrained` refuses the pair.
            weights, *sidecars = [stack.enter_context(atomic_path(path)) for path in (file, *beside)]
            for sidecar, text in zip(sidecars, texts, strict=True):
                sidecar.write_text(text)
            write_arrays(written, weights, dtype, digest)
    finally:
        if new_folder and not any(file.parent.iterdir()):
            file.parent.rmdir()
    return file


def files_to_write(path, layout, overwrite, option="overwrite=True"):
    """The file of the arrays, and those that are written beside it.

    Args:
        path, layout, overwrite: As for `save_weights`.
        option: What replaces a file, for the message.

    Raises:
        ValueError: for a path that cannot be written, or a file that is there and is not to be replaced.
    """
    files = _files(pathlib.Path(path).expanduser(), layout, LAYOUTS[layout].SUFFIX)
    there = [file for file in files if file.exists()]
    if there and not overwrite:
        raise ValueError(f"{str(there[0])!r} is already there; give another name or {option}")
    if files[0].parent.is_dir():
        for file in files:
            check_writable(file)
    return files


def _files(path, layout, suffix):
    if layout != "huggingface" and path.suffix != suffix:
        raise ValueError(f"files of the layout {layout!r} end with {suffix}; got {str(path)!r}")
    if layout == "huggingface" and (path.suffix in (".safetensors", ".npz", ".bin") or path.is_file()):
        raise ValueError(f"the layout 'huggingface' is a folder, not a file; got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r} to write into")
    if layout != "huggingface":
        return path, path.with_suffix(".json")
    return tuple(path / name for name in ("model.safetensors", "model.json", CONFIG, PREPROCESSOR))


def cannot_express(layout, config):
    """What in a model's configuration a layout has no place for, as one phrase an option.

    >>> cannot_express("huggingface", {**model.get_config(), "layer_scale": 1e-5})
    ['layer_scale=1e-05 (it has None)']
    """
    module = LAYOUTS[layout]
    reasons = [
        f"{name}={config[name]!r} (it has {' or '.join(map(repr, possible))})"
        for name, possible in module.EXPRESSES.items()
        if config[name] not in possible
    ]
    transformer = config["num_layers"] is not None
    if not transformer and (layout != "vit_jax" or config["resnet"] is None):
        reasons.append("num_layers=None")
    pooling, class_token = config["pooling"], config["class_token"]
    official = layout in ("vit_jax", "big_vision") and transformer
    if official and pooling is not None and class_token != (pooling == "token"):
        reasons.append(f"class_token={class_token} with pooling={pooling!r}")
    if layout == "timm" and pooling == "map":
        if prefix_tokens(config):
            reasons.append("pooling='map' with prefix tokens")
        if not config["qkv_bias"]:
            reasons.append("qkv_bias=False with pooling='map'")
        if config["pre_norm"]:  # reading takes it for another family's probe
            reasons.append("pre_norm=True with pooling='map'")
    if layout == "huggingface":
        height, width = config["patch_size"]
        if height != width:
            reasons.append(f"patch_size={config['patch_size']} (it has squares)")
        if config["representation_size"] not in (None, config["hidden_size"]):
            reasons.append(f"representation_size={config['representation_size']} (it has the hidden size)")
        if config["representation_size"] and config["num_classes"]:
            reasons.append("representation_size with a head")
        if config["distillation"] and not config["num_classes"]:
            reasons.append("distillation without a head")
        if config["num_registers"] and config["distillation"]:
            reasons.append("num_registers with distillation")
    return reasons


def _with_prefix_positions(arrays, config, wanted):
    """Give the prefix tokens rows in the position table, or fold their rows into them: the same sums."""
    table = arrays.get("position_embedding/table")
    if wanted is None or table is None or config["prefix_positions"] == wanted:
        return arrays, config
    arrays, row = dict(arrays), 0
    tokens = [(f"{name}/token", count) for name, count, _ in reversed(prefix_tokens(config))]
    if wanted:
        rows = np.zeros((1, sum(count for _, count in tokens), table.shape[-1]), table.dtype)
        arrays["position_embedding/table"] = np.concatenate([rows, table], axis=1)
    else:
        for name, count in tokens:
            arrays[name] = arrays[name] + table[:, row : row + count]
            row += count
        arrays["position_embedding/table"] = table[:, row:]
    return arrays, {**config, "prefix_positions": wanted}
