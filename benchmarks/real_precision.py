"""Tokens of the trained model by size and precision; a part of real.py."""

import os
import sys
from unittest import mock

import numpy as np
from harness import HERE, measure

sys.path.append(str(HERE.parent / "tests"))  # of made.trained, also in a process of its own

TITLE = "Tokens"
TEXT = """\
The tokens after the last norm of four photographs, resized to the given pixels, beside those of transformers'
`Dinov2Model` in float32. The difference is the largest one by the largest value, and the cosine the smallest
of any token. A row without a backend is of TensorFlow."""
COLUMNS = "pixels", "model", "difference", "smallest cosine"
SIZES = (518, 518), (224, 224), (322, 490), (490, 322), (112, 224), (98, 98)
NAMES = "astronaut", "cat", "china", "coffee"
BACKENDS, DTYPES = ("tensorflow", "jax"), ("float32", "mixed_bfloat16", "mixed_float16")


def rows():
    from made import trained

    folder, found = trained.weights_folder(), []
    for size in SIZES:
        images = photographs(size)
        expected = peer_tokens(folder, images)
        for name, dynamic in (("of this size", False), ("of any size", True)):
            tokens = our_tokens(folder, images, image_size=(None, None) if dynamic else size)
            found.append(
                (f"{size[0]} × {size[1]}", f"float32, {name}", *_texts(*differences(tokens, expected)))
            )
    for backend in BACKENDS:
        for dtype, numbers in compared(backend, (224, 224)).items():
            found.append(("224 × 224", f"{dtype}, {backend}", *_texts(*numbers)))
    return found


def compared(backend, size):
    """The `differences` by type of computation, from a process of a Keras backend."""
    with mock.patch.dict(os.environ, KERAS_BACKEND=backend):
        return measure("real_precision.compare", size=size)


def compare(size):
    """The `differences` of each of DTYPES from transformers' tokens in float32."""
    from made import trained

    folder, images = trained.weights_folder(), photographs(tuple(size))
    expected = peer_tokens(folder, images)
    return {
        dtype: differences(our_tokens(folder, images, image_size=tuple(size), dtype=dtype), expected)
        for dtype in DTYPES
    }


def photographs(size):
    """Photographs resized and normalized as the model takes them: float32 (4, height, width, 3)."""
    from made import trained
    from PIL import Image

    images = [
        Image.fromarray(trained.photograph(name)).resize(size[::-1], Image.Resampling.BICUBIC)
        for name in NAMES
    ]
    mean, std = (np.float32(trained.IMAGENET[name]) for name in ("image_mean", "image_std"))
    return (np.stack(images).astype("float32") / 255 - mean) / std


def our_tokens(folder, images, **options):
    """The tokens after the last norm of the model that `from_pretrained` reads."""
    import keras_vit

    model = keras_vit.from_pretrained(folder, **options)
    tokens = model.feature_extractor(["tokens"]).predict(images, batch_size=1, verbose=0)["tokens"]
    return tokens.astype("float32")


def peer_tokens(folder, images):
    """Those of transformers, computed in the type of the images."""
    from systems import declare_torchvision

    declare_torchvision()
    import torch
    import transformers

    pixels = torch.tensor(images).permute(0, 3, 1, 2)
    model = transformers.Dinov2Model.from_pretrained(folder).eval().to(pixels.dtype)
    with torch.inference_mode():
        return model(pixels).last_hidden_state.numpy()


def differences(tokens, expected):
    """The largest difference by the largest value, and the smallest cosine of a token."""
    largest = np.abs(tokens - expected).max() / np.abs(expected).max()
    lengths = np.linalg.norm(tokens, axis=-1) * np.linalg.norm(expected, axis=-1)
    return float(largest), float(((tokens * expected).sum(-1) / lengths).min())


def _texts(largest, cosine):
    return f"{largest:.1e}", f"{cosine:.6f}"
