"""Warm-up requests, which TF Serving sends to a model before it serves users."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from keras_vit.types import Path, Shape

if TYPE_CHECKING:
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    from keras_vit.export.description import Description

FILE = "assets.extra/tf_serving_warmup_requests"
MODEL = "vision_transformer"  # in the requests; TF Serving ignores it


def write_warmup(saved_model: Path, requests: Iterable[tuple[str, str, TensorProto]]) -> None:
    """Write requests into a SavedModel's folder, as a TFRecord of `PredictionLog`s.

    Args:
        saved_model: The folder.
        requests: Triples of (signature, name of its input, TensorProto).

    Example:
        >>> write_warmup("served/1", [("serving_default", "images", tf.make_tensor_proto(0.5, shape=(1, 4)))])
        >>> os.listdir("served/1/assets.extra")
        ['tf_serving_warmup_requests']

    Source: TF Serving, "SavedModel Warmup", and `prediction_log.proto`, `predict.proto`.
    """
    path = os.path.join(saved_model, FILE)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for request in requests:
            writer.write(_prediction_log(*request))


def warmup_requests(
    description: Description, batch_sizes: Sequence[int], encoded: bool
) -> list[tuple[str, str, TensorProto]]:
    """Requests with gray images at each batch size, also with encoded images if the model reads them.

    Args:
        description: The model's `Description`.
        batch_sizes: Of the requests.
        encoded: Whether it has the signature `serving_bytes`.

    Returns:
        list of triples, as for `write_warmup`. Equal pixels are stored once.

    Example:
        >>> from keras_vit.export.description import describe
        >>> [signature for signature, _, _ in warmup_requests(describe(model), (1, 8), False)]
        ['serving_default', 'serving_default']
    """
    size = description.native_image_size
    png = tf.io.encode_png(tf.fill((*size, 3), tf.constant(128, tf.uint8))).numpy()
    inputs: list[tuple[str, str, float | bytes, Shape]]
    inputs = [("serving_default", "images", 0.5, (*size, description.channels))]
    inputs += [("serving_bytes", "image_bytes", png, ())] if encoded else []
    return [
        (signature, name, tf.make_tensor_proto(value, shape=(batch, *shape)))
        for signature, name, value, shape in inputs
        for batch in batch_sizes
    ]


def _prediction_log(signature: str, name: str, tensor: TensorProto) -> bytes:
    """A `PredictionLog` in protobuf's wire format, which saves a dependency on TF Serving's package."""
    model = _field(1, MODEL.encode()) + _field(3, signature.encode())  # ModelSpec: name, signature_name
    entry = _field(1, name.encode()) + _field(2, tensor.SerializeToString(deterministic=True))
    request = _field(1, model) + _field(2, entry)  # PredictRequest: model_spec, inputs
    return _field(6, _field(1, request))  # PredictionLog: predict_log; PredictLog: request


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
