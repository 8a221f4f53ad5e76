"""Small checkpoints of every layout, as arrays in memory that tests change and write to files."""

import dataclasses
import functools
import pathlib
import re
import tempfile
from typing import NamedTuple

import ml_dtypes
import numpy as np
from reference.comparing import randomize
from reference.goldens import GOLDENS
from safetensors.numpy import load_file, save_file

from keras_vit import VisionTransformer, save_weights

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
SIZES = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 24,
    "num_layers": 2,
    "mlp_dim": 40,
    "num_heads": 3,
    "num_classes": 7,
}
MU = {"hidden_size": 32, "num_layers": 1, "mlp_dim": 128, "num_heads": 2, "patch_size": 16, "num_classes": 5}
ERF = {"activation": "gelu_erf"}
HEADS = {"num_heads": 3}  # not stored in torch files
HYBRID = {"resnet": (1, 2), "resnet_width": 32, "resnet_form": "timm", "patch_size": 1}


class Made(NamedTuple):
    """How a checkpoint is made: options of the model besides SIZES, of saving and of loading.

    With `metadata`, the files with metadata are kept next to the weights.
    """

    layout: str
    model: dict
    load: dict = {}
    save: dict = {}
    metadata: bool = False


MADE = {
    "timm_registers": Made("timm", {"num_registers": 4, **ERF}, HEADS),
    "timm_deit3": Made("timm", {"layer_scale": 0.1, "prefix_positions": False, **ERF}, HEADS),
    "timm_distilled": Made("timm", {"distillation": True, **ERF}, HEADS),
    "timm_map": Made("timm", {"pooling": "map", **ERF}, {**HEADS, **ERF}),
    "timm_clip": Made("timm", {"pre_norm": True, **ERF}, {**HEADS, **ERF}),
    "timm_hybrid": Made("timm", {**HYBRID, **ERF}, HEADS),
    "timm_metadata": Made("timm", {"layer_scale": 0.1, **ERF}, metadata=True),
    "timm_bfloat16": Made("timm", ERF, HEADS, {"dtype": "bfloat16"}),
    "timm_mu": Made("timm", {**MU, **ERF}),
    "bigvision_token": Made("big_vision", {"prefix_positions": False}),
    "bigvision_scan": Made("big_vision", {"pooling": "map", "prefix_positions": False}, {}, {"scan": True}),
    "bigvision_bfloat16": Made("big_vision", {"pooling": "gap"}, {}, {"dtype": "bfloat16"}),
    "token_metadata": Made("vit_jax", {}, metadata=True),
    "token_mu": Made("vit_jax", MU),
    "hf_deit": Made("huggingface", {"distillation": True, **ERF}, metadata=True),
    "hf_bare": Made("huggingface", {"num_classes": None, "representation_size": 24, **ERF}, metadata=True),
    "hf_alone": Made("huggingface", ERF, HEADS),
    "hf_mu": Made("huggingface", {**MU, **ERF, "norm_epsilon": 1e-12}, metadata=True),
}
NAMES = (*GOLDENS, *MADE)


@dataclasses.dataclass(frozen=True)
class Base:
    """A checkpoint in memory.

    Attributes:
        name: Its name in `NAMES`.
        layout: Name of its layout.
        file: Name of its file.
        arrays: dict of arrays by the file's keys, in the stored types.
        options: Arguments of `from_pretrained` that the file does not determine.
        metadata: dict from names of metadata files to their texts.
    """

    name: str
    layout: str
    file: str
    arrays: dict
    options: dict
    metadata: dict

    def write(self, folder, arrays=None, metadata=None):
        """Write it, or other arrays in its place, to a new folder; return the path of the file."""
        folder.mkdir(exist_ok=True, parents=True)
        for name, text in (self.metadata if metadata is None else metadata).items():
            (folder / name).write_text(text)
        return write(self.arrays if arrays is None else arrays, folder / self.file)

    @property
    def stored_options(self):
        """The options that `read_checkpoint` takes."""
        return {name: value for name, value in self.options.items() if name != "image_size"}

    def without(self, pattern):
        """The arrays but for those whose key matches a pattern."""
        return {key: array for key, array in self.arrays.items() if not re.fullmatch(pattern, key)}

    def changed(self, key, change):
        """The arrays with a function applied to one of them."""
        return {**self.arrays, key: change(self.arrays[key])}


def write(arrays, path):
    """Write arrays without the package; return the path."""
    if path.suffix == ".safetensors":
        save_file({key: np.array(array, order="C") for key, array in arrays.items()}, path)
    else:
        raw = {k: a.view("V2") if a.dtype == ml_dtypes.bfloat16 else a for k, a in arrays.items()}
        np.savez(path, **raw)
    return path


def read(path):
    """Read arrays without the package."""
    if path.suffix == ".safetensors":
        return load_file(path)
    with np.load(path) as file:
        return {k: a.view(ml_dtypes.bfloat16) if a.dtype == "V2" else a for k, a in file.items()}


def made_model(name):
    """The model of a made checkpoint."""
    return randomize(VisionTransformer(**{**SIZES, **MADE[name].model}))


@functools.cache
def base(name):
    """The checkpoint of this name."""
    if name in GOLDENS:
        file, layout, options = GOLDENS[name]
        path = GOLDEN / file
        texts = {p.name: p.read_text() for p in path.parent.glob("*.json")} if layout == "huggingface" else {}
        return Base(name, layout, path.name, read(path), options, texts)
    made = MADE[name]
    with tempfile.TemporaryDirectory() as folder:
        target = {"huggingface": "folder", "timm": "model.safetensors"}.get(made.layout, "model.npz")
        path = save_weights(made_model(name), pathlib.Path(folder) / target, made.layout, **made.save)
        texts = {p.name: p.read_text() for p in path.parent.glob("*.json")} if made.metadata else {}
        if made.layout == "huggingface" and made.metadata:  # as transformers saves it
            del texts["model.json"]
        elif made.metadata:  # Some tests change the arrays.
            texts["model.json"] = re.sub(r'\n "digest": .*', "", texts["model.json"])
        return Base(name, made.layout, path.name, read(path), made.load, texts)
