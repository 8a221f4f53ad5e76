"""What selects, permutes or interpolates is exact where devices round the factors of matmuls.

GPUs compute float32 matmuls in TensorFloat-32, with mantissas of 10 bits, and TPUs in bfloat16, with 7.
"""

from unittest import mock

import keras
import numpy as np
from keras.src import backend
from made.tables import by_table
from reference.comparing import numpy

from keras_vit.layers import rotate
from keras_vit.layers.aligned_resize import aligned_resize
from keras_vit.layers.depth_head import DepthBins
from keras_vit.layers.palette_embedding import nearest_colors
from keras_vit.layers.text_tokens import TokenPooling
from keras_vit.preprocessing.inputs import with_channels
from keras_vit.tasks.detection.loss import DetectionLoss
from keras_vit.tasks.segmentation.loss import query_loss

PRODUCTS = ("matmul", "einsum", "tensordot", "dot")


def numbers(*shape):
    """The same random numbers in each call."""
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def rounded(function):
    """The function of tensors that it first rounds to bfloat16."""

    def compute(*arguments, **options):
        arguments = (x if isinstance(x, str) else _rounded(x) for x in arguments)
        return function(*arguments, **options)

    return compute


def _rounded(x):
    x = keras.ops.convert_to_tensor(x)
    return keras.ops.cast(keras.ops.cast(x, "bfloat16"), x.dtype)


def with_rounded_products():
    products = {name: rounded(getattr(backend.numpy, name)) for name in PRODUCTS}
    return mock.patch.multiple(backend.numpy, **products)


def test_products_are_rounded_here():
    x = np.full((1, 1), 1.001, "float32")
    with with_rounded_products():
        products = keras.ops.matmul(x, x), keras.ops.einsum("ij,jk->ik", x, x)
    assert [float(product[0, 0]) for product in products] == [1.0, 1.0]


GRAYS = np.linspace(0, 1, 256, dtype="float32")[:, np.newaxis]
TOKENS, IDS = numbers(3, 4, 8), np.array([[1, 9, 9, 0], [1, 2, 3, 9], [9, 1, 1, 1]])
BOXES = np.array([[[0.1003, 0.2007, 0.5011, 0.9013, 1, 0, 0.5], [0, 0, 0, 0, -1, 0, 0]]], "float32")
OUTPUTS = np.array([[[0.3, 0.55, 0.4, 0.7, -3, 3], [0.5, 0.5, 0.1, 0.1, -3, -3]]], "float32") + 0.0007
MASKS, LABELS = 3 * numbers(2, 4, 4, 3), np.random.default_rng(0).integers(0, 2, (2, 8, 8))
EXACT = {
    "rotation of interleaved pairs": lambda: rotate(
        numbers(2, 5, 3, 8), numbers(2, 4, 1, 4), interleaved=True
    ),
    "rotation of halves": lambda: rotate(numbers(2, 5, 3, 8), numbers(2, 4, 1, 4), interleaved=False),
    "nearest colors": lambda: nearest_colors(GRAYS, GRAYS),
    "aligned resize": lambda: aligned_resize(numbers(1, 3, 4, 2), (5, 9)),
    "expected depths": lambda: DepthBins(1.0, 4.0)(np.abs(numbers(1, 2, 3, 16))),
    "pooled token": lambda: TokenPooling("eos", 9)(TOKENS, IDS),
    "boxes of objects": lambda: DetectionLoss()(BOXES, OUTPUTS),
    "masks of queries": lambda: query_loss(
        MASKS,
        np.array([[[4.0, 0, 0], [0, 4, 0], [0, 0, 4]]] * 2, "float32"),
        LABELS,
        num_points=16,
        draw=lambda shape: np.random.default_rng(1).random(shape, "float32"),
    ),
    "gray of colors": lambda: with_channels(keras.ops.convert_to_tensor(numbers(2, 3, 3)), 1, backend.numpy),
}


@by_table("name", EXACT)
def test_what_takes_no_product_of_numbers_is_exact(name):
    expected = numpy(EXACT[name]())
    with with_rounded_products():
        np.testing.assert_array_equal(numpy(EXACT[name]()), expected)
