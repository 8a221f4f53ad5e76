import numpy as np
import pytest
from PIL import Image

from keras_vit.data.chunked_records import ChunkedRecords
from keras_vit.data.mixed_samples import MixedSamples, Part
from keras_vit.data.samples import Samples
from keras_vit.labels import kind_of_samples, label_kind
from keras_vit.labels.box_rows import encode_boxes
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.tasks import label_storages

IMAGE = image_bytes(Image.new("RGB", (4, 4)))


def test_samples_with_maps_name_their_task():
    """Two kinds of maps with numbers of one type have equal records."""
    labels = {"segmentation": np.zeros((4, 4, 1), "uint8"), "depth": np.ones((4, 4, 1), "float32")}
    for task, label in labels.items():
        samples = label_storages()[task].samples_of((IMAGE,), (label,))
        assert kind_of_samples(samples, axes=3) is label_kind(task)
        assert kind_of_samples(MixedSamples((Part("one", samples),)), axes=3) is label_kind(task)


def test_other_samples_have_the_first_kind_with_as_many_axes():
    for label, axes, task in (
        (3, 0, "single_label"),
        ((0.5,), 1, "multi_label"),
        (encode_boxes([]), 2, "detection"),
    ):
        assert kind_of_samples(Samples((IMAGE,), (label,)), axes) is label_kind(task)


def test_maps_without_a_task_are_refused():
    samples = ChunkedRecords((1,), read=None, parse=None)
    with pytest.raises(ValueError, match="expected samples with a `task`, for labels of 3 axes; got none"):
        kind_of_samples(samples, axes=3)
