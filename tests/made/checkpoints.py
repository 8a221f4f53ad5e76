"""Small checkpoints of every layout, as arrays in memory, to be changed and written to files."""

import dataclasses
import functools
import pathlib
import re
import tempfile

import ml_dtypes
import numpy as np
from reference.comparing import randomise
from reference.goldens import GOLDENS
from safetensors.numpy import load_file, save_file

from keras_vit import VisionTransformer, save_weights
from keras_vit.weights.checkpoint import read_checkpoint

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
TIMM = {"activation": "gelu_erf"}
HEADS = {"num_heads": 3}  # which no file of torch's tells

# name → (layout, arguments of the model besides SIZES, arguments of save_weights,
#         arguments of from_pretrained, whether what tells about it stands beside the file)
MADE = {
    "timm_registers": ("timm", {"num_registers": 4, **TIMM}, {}, HEADS, False),
    "timm_registers_apart": (
        "timm",
        {"num_registers": 4, "prefix_positions": False, **TIMM},
        {},
        HEADS,
        False,
    ),
    "timm_deit3": ("timm", {"layer_scale": 0.1, "prefix_positions": False, **TIMM}, {}, HEADS, False),
    "timm_distilled": ("timm", {"distillation": True, **TIMM}, {}, HEADS, False),
    "timm_map": ("timm", {"pooling": "map", **TIMM}, {}, {**HEADS, **TIMM}, False),
    "timm_clip": ("timm", {"pre_norm": True, **TIMM}, {}, {**HEADS, **TIMM}, False),
    "timm_hybrid": (
        "timm",
        {"resnet": (1, 2), "resnet_width": 32, "resnet_form": "timm", "patch_size": 1, **TIMM},
        {},
        HEADS,
        False,
    ),
    "timm_hybrid_root": (
        "timm",
        {"resnet": (), "resnet_width": 32, "resnet_form": "timm", "patch_size": 4, **TIMM},
        {},
        HEADS,
        False,
    ),
    "timm_told": ("timm", {"layer_scale": 0.1, **TIMM}, {}, {}, True),
    "timm_bfloat16": ("timm", TIMM, {"dtype": "bfloat16"}, HEADS, False),
    "timm_mu": ("timm", {**MU, **TIMM}, {}, {}, False),
    "bigvision_token": ("big_vision", {"prefix_positions": False}, {}, {}, False),
    "bigvision_scan": (
        "big_vision",
        {"pooling": "map", "prefix_positions": False},
        {"scan": True},
        {},
        False,
    ),
    "bigvision_bfloat16": ("big_vision", {"pooling": "gap"}, {"dtype": "bfloat16"}, {}, False),
    "token_float16": ("vit_jax", {}, {"dtype": "float16"}, {}, False),
    "token_told": ("vit_jax", {}, {}, {}, True),
    "token_mu": ("vit_jax", MU, {}, {}, False),
    "hf_deit": ("huggingface", {"distillation": True, "activation": "gelu_erf"}, {}, {}, True),
    "hf_bare": (
        "huggingface",
        {"num_classes": None, "representation_size": 24, "activation": "gelu_erf"},
        {},
        {},
        True,
    ),
    "hf_alone": ("huggingface", {"activation": "gelu_erf"}, {}, HEADS, False),
    "hf_mu": ("huggingface", {**MU, "activation": "gelu_erf", "norm_epsilon": 1e-12}, {}, {}, True),
}
NAMES = (*GOLDENS, *MADE)


@dataclasses.dataclass(frozen=True)
class Base:
    """A checkpoint in memory.

    Attributes:
        name: Its name here.
        layout: Name of its layout.
        file: Name of its file.
        arrays: dict of arrays by the file's keys, in the stored types.
        options: What `from_pretrained` has to be told.
        beside: dict of names of files beside it to their texts.
    """

    name: str
    layout: str
    file: str
    arrays: dict
    options: dict
    beside: dict

    def write(self, folder, arrays=None, beside=None):
        """Write it, or other arrays in its place; the path of the file."""
        for name, text in (self.beside if beside is None else beside).items():
            (folder / name).write_text(text)
        return write(self.arrays if arrays is None else arrays, folder / self.file)

    @functools.cached_property
    def ours(self):
        """dict of the file's keys to the tuples of our names that they hold."""
        with tempfile.TemporaryDirectory() as folder:
            keys = read_checkpoint(self.write(pathlib.Path(folder)), **self._of_the_file).keys
        found = {}
        for name, key in keys.items():
            found[key] = (*found.get(key, ()), name)
        return found

    @property
    def _of_the_file(self):
        return {name: value for name, value in self.options.items() if name != "image_size"}


def write(arrays, path):
    """Write arrays as they are, without the package; the path."""
    if path.suffix == ".safetensors":
        save_file({key: np.array(array, order="C") for key, array in arrays.items()}, path)
    else:
        raw = {k: a.view("V2") if a.dtype == ml_dtypes.bfloat16 else a for k, a in arrays.items()}
        np.savez(path, **raw)
    return path


def read(path):
    """The arrays of a file as they are, without the package."""
    if path.suffix == ".safetensors":
        return load_file(path)
    with np.load(path) as file:
        return dict(file)


def made_model(name):
    """The model that a made checkpoint holds."""
    return randomise(VisionTransformer(**{**SIZES, **MADE[name][1]}))


@functools.cache
def base(name):
    """The checkpoint of that name."""
    if name in GOLDENS:
        file, layout, options = GOLDENS[name]
        path = GOLDEN / file
        beside = (
            {p.name: p.read_text() for p in path.parent.glob("*.json")} if layout == "huggingface" else {}
        )
        return Base(name, layout, path.name, read(path), options, beside)
    layout, _, how, options, told = MADE[name]
    model = made_model(name)
    with tempfile.TemporaryDirectory() as folder:
        name_there = {"huggingface": "folder", "timm": "model.safetensors"}.get(layout, "model.npz")
        path = save_weights(model, pathlib.Path(folder) / name_there, layout, **how)
        arrays = {
            key: array.view(ml_dtypes.bfloat16) if array.dtype == "V2" else array
            for key, array in read(path).items()
        }
        beside = {p.name: p.read_text() for p in path.parent.glob("*.json")} if told else {}
        if name in ("hf_deit", "hf_bare"):  # as transformers writes it
            del beside["model.json"]
        elif told:  # as an earlier version writes it; the arrays are changed in some tests
            beside["model.json"] = re.sub(r'\n "digest": .*', "", beside["model.json"])
    return Base(name, layout, path.name, arrays, options, beside)
