import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.inspection import class_colors, class_overlay, palette_png
from keras_vit.tasks.segmentation.figures import segmentation_figure
from keras_vit.tasks.segmentation.samples import read_mask


def test_the_colors_are_those_of_vocs_masks():
    """Of the classes in its table, and of ignored pixels."""
    colors = class_colors()
    known = {8: (64, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}
    assert {number: (*colors[number].tolist(),) for number in known} == known
    assert len({*map(bytes, colors)}) == 256


def test_a_palette_png_is_read_as_the_mask_that_it_was(rng):
    classes = rng.integers(0, 256, (5, 7))
    content = palette_png(classes)
    np.testing.assert_array_equal(read_mask(content), classes)
    with Image.open(io.BytesIO(content)) as image:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), class_colors()[classes])
    with pytest.raises(ValueError, match="expected classes from 0 to 255.*got classes from 0 to 256"):
        palette_png([[0, 256]])


def test_a_figure_may_have_more_classes_than_a_palette():
    maps = [np.full((4, 6), number) for number in (3, 299)]
    figure = segmentation_figure(np.zeros((2, 4, 6, 3)), maps, None, "ab", [*map(str, range(300))], "Many")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["3", "299"]


@pytest.mark.parametrize("channels", [1, 3])
def test_an_overlay_mixes_the_image_and_the_colors(channels, rng):
    image, classes = rng.integers(0, 256, (4, 6, channels), "uint8"), rng.integers(0, 9, (4, 6))
    mixed = 0.25 * image + 0.75 * class_colors(9)[classes]
    expected = np.where(classes[..., np.newaxis] == 0, image, mixed)  # The background stays as it is.
    found = class_overlay(image, classes, 0.75)
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, expected, atol=0.51)
    floats = class_overlay(image.astype("float32") / 255, classes, 0.75)
    np.testing.assert_allclose(255 * floats, expected, atol=1e-3)
