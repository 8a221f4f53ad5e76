"""A few scenes of digits: all of them take seconds to draw."""

import functools
from unittest import mock

from keras_vit.data import load_dataset
from keras_vit.tasks import digits_scenes


@functools.cache
def few_scenes(task="detection", count=12):
    """The `Dataset` of the first scenes of each split, which are those of the whole data set."""
    with mock.patch.object(digits_scenes, "COUNTS", dict.fromkeys(digits_scenes.COUNTS, count)):
        return load_dataset("digits_scenes", task=task)
