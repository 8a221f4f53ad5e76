import numpy as np
import pytest
import tensorflow as tf
from reference.small import one_block
from tensorflow.core.framework import tensor_pb2

from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.warmup import FILE


def fields(message):
    """(number, content) of the length-delimited fields of a protobuf message, as in its wire format."""

    def varint(place):
        number = shift = 0
        while True:
            number |= (message[place] & 0x7F) << shift
            place, shift = place + 1, shift + 7
            if message[place - 1] < 0x80:
                return number, place

    place = 0
    while place < len(message):
        key, place = varint(place)
        assert key & 7 == 2
        length, place = varint(place)
        yield key >> 3, message[place : place + length]
        place += length


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


@pytest.mark.parametrize(
    "options, size",
    [
        ({}, (16, 16)),
        ({"image_size": (None, None), "position_grid": (2, 3)}, (16, 24)),
        ({"in_channels": 1}, (16, 16)),
    ],
)
def test_the_requests_are_answered(options, size, tmp_path):
    model = one_block(**options)
    folder = export_saved_model(model, tmp_path / "1", warmup=(1, 8))
    loaded = tf.saved_model.load(folder)
    seen = []
    for signature, inputs in requests(folder):
        ((name, value),) = inputs.items()
        if signature == "serving_default":
            assert value.shape[1:] == (*size, model.in_channels)
        else:
            assert tf.io.decode_png(value[0]).shape == (*size, 3)
            value = value.astype(object)
        outputs = loaded.signatures[signature](**{name: tf.constant(value)})
        assert all(np.isfinite(x).all() for x in outputs.values() if x.dtype != tf.string)
        seen.append((signature, name, len(value)))
    assert seen == [
        ("serving_default", "images", 1),
        ("serving_default", "images", 8),
        ("serving_bytes", "image_bytes", 1),
        ("serving_bytes", "image_bytes", 8),
    ]


def test_the_requests_take_no_space(tmp_path):
    """A million equal numbers are stored as one."""
    folder = export_saved_model(one_block(), tmp_path / "1", warmup=(1, 1000))
    assert (folder / FILE).stat().st_size < 1000


def test_there_need_not_be_any(tmp_path):
    assert not (export_saved_model(one_block(), tmp_path / "1", warmup=()) / "assets.extra").exists()
    folder = export_saved_model(one_block(in_channels=4), tmp_path / "2")
    assert [signature for signature, _ in requests(folder)] == ["serving_default"]
