"""The rows of arrays that batches get are those of their samples."""

import dataclasses

import numpy as np
import pytest

from keras_vit.data import load_dataset
from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.preprocessing import Preprocessing
from keras_vit.training.batch_rows import batch_indices, with_inputs


@pytest.fixture(scope="module")
def numbered():
    """Eighteen images whose labels are their numbers."""
    samples = load_dataset("digits").split("test").take(range(18))
    return dataclasses.replace(samples, labels=tuple(range(18)))


@pytest.mark.slow
@pytest.mark.parametrize("worker, workers", [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("trains", [True, False])
def test_each_worker_has_the_rows_of_its_images(trains, worker, workers, numbered):
    """Training from step 1 passes the end of an epoch; the last batch of an evaluation is small."""
    arrays = {"row": np.arange(36, dtype="float16").reshape(18, 2)}
    part, order = {"worker": worker, "workers": workers}, {}
    if trains:
        order = {"seed": 3, "steps": 4, "first_step": 1}
        batches = training_batches(numbered, Preprocessing(8), 8, **order, **part)
    else:
        batches = evaluation_batches(numbered, Preprocessing(8), 8, **part)
    batches = with_inputs(batches, batch_indices(18, 8, **order, **part), arrays)
    seen = []
    for inputs, numbers in batches.as_numpy_iterator():
        assert [*inputs] == ["images", "row"] and len(inputs["images"]) == len(numbers)
        np.testing.assert_array_equal(inputs["row"], arrays["row"][numbers].astype("float32"))
        seen.append(len(numbers))
    first, second = [8, 8, 2], [[4, 4, 2], [4, 4, 0]]
    assert seen == ([8 // workers] * 3 if trains else first if workers == 1 else second[worker])
