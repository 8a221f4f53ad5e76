import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.tables import by_table
from reference.comparing import numpy

from keras_vit import Preprocessing
from keras_vit.layers import extract_patches
from keras_vit.preprocessing.packing import packed_size

SIDES = st.integers(1, 5000)
PACKING = {"patch_size": 8, "max_num_patches": 12}


@given(SIDES, SIDES, st.tuples(st.integers(1, 32), st.integers(1, 32)), st.integers(1, 1024))
def test_an_image_has_as_many_patches_as_its_aspect_ratio_allows(height, width, patch_size, most):
    size = packed_size(height, width, patch_size, most)
    rows, columns = (side // patch for side, patch in zip(size, patch_size))
    assert (rows * patch_size[0], columns * patch_size[1]) == size
    assert 1 <= rows * columns <= most
    # One more row or column, at the same scale in the other direction, would be too many.
    scale = min(rows * patch_size[0] / height, columns * patch_size[1] / width)
    if scale < 99:  # the authors' largest is 100
        more = [-(-side * scale * 1.001 // patch) for side, patch in zip((height, width), patch_size)]
        assert max(more[0], rows + 1) * max(more[1], columns) > most or (
            max(more[0], rows) * max(more[1], columns + 1) > most
        )


def test_images_of_any_size_are_packed_row_by_row(rng):
    """Images of a size that fits exactly are not resized."""
    images = [rng.random((height, width, 3)).astype("float32") for height, width in ((16, 48), (24, 32))]
    batch = Preprocessing(None, **PACKING, antialias=True)(images)
    assert batch["patches"].shape == (2, 12, 8 * 8 * 3) and batch["patches"].dtype == "float32"
    assert batch["grids"].tolist() == [[2, 6], [3, 4]] and batch["grids"].dtype == "int32"
    for found, image in zip(batch["patches"], images):
        expected = numpy(extract_patches(image[np.newaxis] * 2 - 1, 8)).reshape(12, -1)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_padding_is_zero_and_files_are_read(tmp_path):
    keras.utils.save_img(tmp_path / "tall.png", np.full((90, 10, 3), 255), scale=False)
    batch = Preprocessing(None, **PACKING)([tmp_path / "tall.png", np.ones((8, 8, 1), "float32")])
    assert batch["grids"].tolist() == [[9, 1], [3, 3]]
    assert (batch["patches"][0, :9] == 1).all() and (batch["patches"][0, 9:] == 0).all()
    assert (batch["patches"][1, :9] == 1).all() and (batch["patches"][1, 9:] == 0).all()


def test_no_images_are_an_empty_batch():
    batch = Preprocessing(None, **PACKING)([])
    assert batch["patches"].shape == (0, 12, 192) and batch["grids"].shape == (0, 2)


@by_table(
    "options, message",
    [
        ({"max_num_patches": 4}, "belong together"),
        ({"patch_size": 8}, "belong together"),
        ({**PACKING, "image_size": 16}, "with image_size=None"),
        ({**PACKING, "resize": "crop"}, "resize='squash'"),
        ({**PACKING, "max_num_patches": 0}, "max_num_patches must be a positive int or None; got 0"),
        ({**PACKING, "max_num_patches": 10**8}, "must ask for at most .* pixels"),
    ],
)
def test_other_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**{"image_size": None, **options})


def test_tensors_are_refused():
    pack = Preprocessing(None, **PACKING)
    with pytest.raises(ValueError, match="expected arrays or files of images to pack; got a tensor"):
        pack(keras.ops.zeros((1, 16, 16, 3)))
