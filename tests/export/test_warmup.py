import itertools

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import empty_pb2
from google.protobuf.unknown_fields import UnknownFieldSet
from reference.small import one_block
from tensorflow.core.framework import tensor_pb2

from keras_vit.export.description import describe
from keras_vit.export.warmup import FILE, warmup_requests, write_warmup


def fields(message):
    """(number, content) of the fields of a protobuf message whose type is not known."""
    unknown = UnknownFieldSet(empty_pb2.Empty.FromString(message))
    return [(field.field_number, field.data) for field in unknown]


def requests(folder):
    """(signature, {input: array}) of each request, as TF Serving reads `PredictionLog`s."""
    for record in tf.data.TFRecordDataset(str(folder / FILE)).as_numpy_iterator():
        ((predict, log),) = fields(record)
        ((request, message),) = fields(log)
        assert (predict, request) == (6, 1)  # PredictionLog.predict_log, PredictLog.request
        inputs = {}
        for number, content in fields(message):
            if number == 1:  # PredictRequest.model_spec
                model = dict(fields(content))
            else:
                assert number == 2  # PredictRequest.inputs
                entry = dict(fields(content))
                tensor = tensor_pb2.TensorProto.FromString(entry[2])
                inputs[entry[1].decode()] = tf.make_ndarray(tensor)
        yield model[3].decode(), inputs


def test_an_exports_requests_are_answered(saved_model, loaded):
    seen = []
    for signature, inputs in requests(saved_model):
        ((name, value),) = inputs.items()
        value = value.astype(object) if name == "image_bytes" else value
        outputs = loaded.signatures[signature](**{name: tf.constant(value)})
        assert all(np.isfinite(x).all() for x in outputs.values() if x.dtype != tf.string)
        seen.append((signature, name, len(value)))
    assert seen == [("serving_default", "images", 1), ("serving_bytes", "image_bytes", 1)]


@pytest.mark.parametrize("any_size", [False, True])
def test_requests_have_the_models_size_and_take_no_space(any_size, tmp_path):
    """A million equal pixels are stored as one number."""
    size = {"image_size": (None, None), "position_grid": (2, 3)} if any_size else {"image_size": (16, 24)}
    description = describe(one_block(**size, in_channels=1))
    write_warmup(tmp_path, warmup_requests(description, (1, 1000), encoded=True))
    assert (tmp_path / FILE).stat().st_size < 1000
    found = [(signature, *inputs.values()) for signature, inputs in requests(tmp_path)]
    expected = itertools.product(("serving_default", "serving_bytes"), (1, 1000))
    assert [(signature, len(value)) for signature, value in found] == [*expected]
    for signature, value in found:
        images = value if signature == "serving_default" else tf.io.decode_png(value[0])[None]
        assert images.shape[1:3] == (16, 24)
