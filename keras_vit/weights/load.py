"""A checkpoint file to a model: detect → map → infer → resize → check → assign."""

import zipfile
import zlib

import numpy as np

from keras_vit.layers import resize_position_grid
from keras_vit.models import VisionTransformer
from keras_vit.models.arguments import is_free, stem_stride
from keras_vit.weights.architecture import infer_arguments
from keras_vit.weights.fetch import fetch
from keras_vit.weights.layouts import vit_jax

LAYOUTS = {"vit_jax": vit_jax}
HEADS = ("auto", "keep", "reset")


def from_pretrained(
    source,
    *,
    image_size=None,
    num_classes=None,
    pooling="auto",
    representation_size="auto",
    head="auto",
    **overrides,
):
    """A Vision Transformer with the weights of a checkpoint file.

    The architecture is read from the arrays. Loading is strict: every array is used once and every
    variable set once, but for what the arguments drop or reset.

    Args:
        source: Path of an official `.npz` checkpoint, with names as published or Linen names.
        image_size: (height, width) or one int; None: as in the file. The position grid is resized
            to it. (None, None) accepts any size at call time.
        num_classes: Classes of the head; None: as in the file; 0: no head.
        pooling: "auto": as in the file. "gap" on a class-token file drops the class token.
        representation_size: "auto": as in the file. None drops `pre_logits`, as official
            fine-tuning does.
        head: "keep" the stored head, "reset" it to zero, or "auto": keep it if the class count and
            the layer before it are as in the file, else reset it.
        **overrides: Other arguments of `VisionTransformer`, such as `dropout_rate` or `class_names`;
            `position_grid` says how a stored table that is no square is laid out.

    Returns:
        VisionTransformer.

    Raises:
        ValueError: if the file is missing, damaged, holds pickled objects or is no checkpoint that
            this can read; or with the lists of what does not fit.

    Example:
        >>> model = from_pretrained("tests/golden/token.npz", image_size=48, num_classes=10)
        >>> model.image_size, model.position_embedding, model.num_classes
        ((48, 48), 'learned', 10)

    Source: `vit_jax/checkpoint.py`, without its silences.
    """
    if head not in HEADS:
        raise ValueError(f"head {head!r} is unknown; choose one of {HEADS}")
    if head == "keep" and num_classes == 0:
        raise ValueError("num_classes=0 leaves out the head that head='keep' wants")
    path = fetch(source)
    arrays, keys, unknown = read_checkpoint(path)
    stored = infer_arguments(arrays, overrides.pop("position_grid", None))
    stored_grid = stored.pop("position_grid", None)

    wanted = {**stored, **overrides}
    if pooling != "auto":
        wanted["pooling"] = pooling
    if representation_size != "auto":
        wanted["representation_size"] = representation_size
    if num_classes is not None:
        wanted["num_classes"] = num_classes or None
    wanted["image_size"] = _image_size(stored, stored_grid, image_size)
    if is_free(wanted["image_size"]):
        wanted["position_grid"] = stored_grid

    model = VisionTransformer(**wanted)
    dropped = _drop(arrays, model, stored, head)
    if "position_embedding/table" in arrays:
        arrays["position_embedding/table"] = _resized_table(
            arrays["position_embedding/table"], stored_grid, model
        )
    _assign(path, model, arrays, keys, unknown, dropped)
    return model


def read_checkpoint(path):
    """The arrays of a checkpoint by our variables' names.

    Returns:
        (arrays by our names, the file's keys by our names, keys that the layout does not know).

    Raises:
        ValueError: if the file is damaged, holds pickled objects, or is in no known layout.
    """
    try:
        with open(path, "rb") as file:  # np.load would leave a damaged file open
            start = file.read(2)
            if start != b"PK":  # of a zip archive
                raise ValueError("pickle" if start[:1] == b"\x80" else "it is no archive of arrays")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            arrays = {key: archive[key] for key in archive.files}
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        zlib.error,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
    ) as error:
        reason = " ".join(str(error).split())
        if "pickle" in reason.lower() or "Object arrays" in reason:
            reason = "it holds pickled objects, which are refused because loading them can run code"
        raise ValueError(f"{path} is not an .npz checkpoint that can be read: {reason}") from None
    for key, array in arrays.items():
        if not (isinstance(array, np.ndarray) and np.issubdtype(array.dtype, np.floating)):
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"{path} is no checkpoint: {key} holds {kind}; wanted floating-point arrays")
    for layout in LAYOUTS.values():
        if layout.detect(arrays):
            return layout.read(arrays)
    some = ", ".join(sorted(arrays)[:5]) or "no arrays"
    raise ValueError(
        f"{path} is in no known layout ({', '.join(LAYOUTS)}); it holds {len(arrays)} arrays: {some}, …"
    )


def _image_size(stored, stored_grid, image_size):
    if image_size is not None:
        return image_size
    if stored_grid is None:
        raise ValueError("the checkpoint holds no positions and so no image size; give image_size")
    stride = stem_stride(stored.get("resnet"))
    return tuple(g * p * stride for g, p in zip(stored_grid, stored["patch_size"]))


def _drop(arrays, model, stored, head):
    """Take out of the arrays what the arguments leave behind; name the variables to be left alone."""
    if stored["representation_size"] and model.representation_size is None:
        _remove(arrays, "pre_logits/")
    if "class_token/token" in arrays and not model.class_token:
        _remove(arrays, "class_token/")
        if "position_embedding/table" in arrays:
            arrays["position_embedding/table"] = arrays["position_embedding/table"][:, 1:]
    if model.num_classes is None:
        _remove(arrays, "head/")
        return ()
    same = ("num_classes", "representation_size")
    if head == "reset" or (head == "auto" and any(getattr(model, n) != stored[n] for n in same)):
        _remove(arrays, "head/")
        return ("head/kernel", "head/bias")
    return ()


def _remove(arrays, prefix):
    for name in [name for name in arrays if name.startswith(prefix)]:
        del arrays[name]


def _resized_table(table, stored_grid, model):
    """The position table for the model's grid: the cells resized, the prefix rows as they are."""
    grid = model.get_layer("position_embedding").grid_size
    if grid == stored_grid:
        return table
    cells = stored_grid[0] * stored_grid[1]
    prefix, grid_rows = table[:, :-cells], table[0, -cells:]
    resized = resize_position_grid(grid_rows.reshape(*stored_grid, -1), grid)
    return np.concatenate([prefix, resized.reshape(1, grid[0] * grid[1], -1)], axis=1)


def _assign(path, model, arrays, keys, unknown, left_alone):
    """Set each variable from its array, or raise ValueError with all that does not fit."""
    variables = {variable.path: variable for variable in model.weights}
    only_file = sorted([*unknown, *(keys[name] for name in arrays if name not in variables)])
    only_model = sorted(name for name in variables if name not in arrays and name not in left_alone)
    wrong = [
        f"{keys[name]} {array.shape} for {name} {tuple(variables[name].shape)}"
        for name, array in sorted(arrays.items())
        if name in variables and array.shape != tuple(variables[name].shape)
    ]
    if only_file or only_model or wrong:
        lists = (
            ("only in the file", only_file),
            ("only in the model", only_model),
            ("wrong shape", wrong),
        )
        text = "; ".join(f"{title}: {', '.join(names) or 'none'}" for title, names in lists)
        raise ValueError(f"{path} does not fit the model. {text}")
    for name, array in arrays.items():
        variables[name].assign(array)
