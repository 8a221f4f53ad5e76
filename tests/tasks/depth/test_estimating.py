"""Depth maps of images in windows and as a whole."""

import numpy as np
import pytest
from made.sampling import some
from reference.small import SMALL

import keras_vit
from keras_vit.tasks.depth.estimating import fitted


@pytest.fixture
def image():
    """Smooth gray depths from 60 to 190 in an image that takes several windows."""
    rows, columns = np.mgrid[:50, :70]
    depths = 125 + 40 * np.sin(rows / 25) + 25 * np.cos(columns / 30)
    return np.repeat(depths[..., np.newaxis], 3, axis=-1).round().astype("uint8")


def estimator(output, monkeypatch, scales, size=(16, 24)):
    """A model of gray levels, whose outputs have another scale, and for disparities shift, in each window."""
    options = {**SMALL, "num_classes": None, "num_layers": 1, "image_size": size, "patch_size": 8}
    encoder = keras_vit.VisionTransformer(**options, **({} if size[0] else {"position_grid": (2, 3)}))
    model = keras_vit.DepthEstimator(encoder, head="linear", quantity=output)
    generator = np.random.default_rng(0)

    def predict(images):
        levels = model.preprocessing.colors(images)[..., :1] * 255
        factors, addends = (generator.uniform(*scales, (len(images), 1, 1, 1)) for _ in range(2))
        return levels * factors + (100 * addends if output == "disparity" else 0)

    monkeypatch.setattr(model, "predict_on_batch", predict)
    return model


@pytest.mark.parametrize("output", ["relative", "disparity"])
@pytest.mark.parametrize("size, options", [((16, 24), {}), ((None, None), {"window": (24, 32)})])
def test_windows_without_a_scale_get_one(output, size, options, image, monkeypatch):
    model = estimator(output, monkeypatch, (0.5, 2), size)
    [found] = model.estimate(image, **options)
    factor, addend = fitted(found[..., 0], image[..., 0], output == "disparity")
    assert factor > 0 and np.abs(factor * found[..., 0] + addend - image[..., 0]).max() < 4


@pytest.mark.parametrize("quantity", some(["relative", "disparity"], 2))
def test_an_image_that_is_narrower_than_the_model_has_windows(quantity):
    model = keras_vit.DepthEstimator({**SMALL, "num_classes": None}, head="linear", quantity=quantity)
    [found] = model.estimate(np.zeros((10, 40, 3), "uint8"))
    assert found.shape == (10, 40, 1) and np.isfinite(found).all()


def test_windows_of_metric_depth_are_averaged(image, monkeypatch):
    [found] = estimator("metric", monkeypatch, (1, 1)).estimate(image)
    np.testing.assert_allclose(found, image[..., :1], rtol=1e-4)


def test_an_image_in_one_window_is_what_the_model_computes(image, monkeypatch):
    model = estimator("disparity", monkeypatch, (1, 1))
    [found] = model.estimate(image[:16, :24])
    np.testing.assert_allclose(found, image[:16, :24, :1] + np.float32(100), rtol=1e-4)


def test_windows_without_detail_have_the_mean_of_the_whole():
    assert fitted(np.full(4, 3.0), np.array([1.0, 2.0, 3.0, 4.0]), True) == (0.0, 2.5)
    assert fitted(np.array([1.0, 2.0]), np.array([4.0, 2.0]), True)[0] == 0.0  # never reversed
    assert fitted(np.array([1.0, 2.0]), np.array([2.0, 4.0]), False) == (2.0, 0.0)


def test_an_int_is_the_side_of_square_windows(image, monkeypatch):
    model = estimator("disparity", monkeypatch, (1, 1), (None, None))
    found, expected = (model.estimate(image, window=window)[0] for window in (24, (24, 24)))
    np.testing.assert_allclose(found, expected)
