"""Points of objects in images of any size."""

import numpy as np
import pytest
import tensorflow as tf
from made.folders import write_keypoints
from made.tables import by_table
from reference.comparing import randomize
from reference.small import SMALL

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.tasks import get_task
from keras_vit.tasks.keypoints import cropping, crops
from keras_vit.tasks.keypoints.loss import heat_maps

pytestmark = pytest.mark.usefixtures("eager")
SIZE = (32, 24)


def estimator(**options):
    encoder = {**SMALL, "num_classes": None, "num_layers": 1, "image_size": SIZE, "patch_size": 8, **options}
    points = {"num_classes": 3, "decoder_width": 4, "flip_index": (1, 0, 2)}
    return randomize(keras_vit.KeypointEstimator(keras_vit.VisionTransformer(**encoder), **points))


@pytest.fixture(scope="module")
def model():
    return estimator()


def test_points_are_those_of_an_evaluation(model, tmp_path):
    root = write_keypoints(tmp_path / "corners", count=6)
    samples = load_dataset(f"folder:{root}", task="keypoints").split("train").take([0, 1, 2])
    expected = get_task("keypoints").predict(model, samples, 2)
    images = [samples.images[index] for index in range(3)]
    boxes = [[box] for box in expected.boxes]
    found = np.concatenate(model.estimate_keypoints(images, boxes, batch_size=2))
    np.testing.assert_allclose(found[..., 2], expected.estimates[..., 2], atol=1e-5)
    np.testing.assert_allclose(found[..., :2], expected.estimates[..., :2], atol=0.05)


@pytest.mark.parametrize("window", [(-4.3, 2.2, 40.7, 50.0), (3.0, 4.0, 12.0, 16.0)])
def test_crops_are_those_of_training(window):
    image = np.random.default_rng(0).integers(0, 256, (37, 53, 3), "uint8")
    found = crops.cropped(image, window, SIZE)
    prepare = keras_vit.Preprocessing(SIZE)
    expected = cropping.cropped(tf.constant(image), tf.constant(window, tf.float64), prepare)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_images_have_as_many_objects_as_boxes(model):
    images = [np.zeros((40, 30, 3), "uint8"), np.zeros((20, 50, 3), "uint8")]
    found = model.estimate_keypoints(images, [[[1, 2, 20, 30], [3, 4, 9, 9]], np.zeros((0, 4))])
    assert [points.shape for points in found] == [(2, 3, 3), (0, 3, 3)]
    [whole] = model.estimate_keypoints(images[0])
    assert whole.shape == (1, 3, 3) and whole.dtype == np.float32


def test_a_flip_test_without_known_pairs_is_refused(model):
    alone = keras_vit.KeypointEstimator(model.encoder, 3, decoder_width=4)
    with pytest.raises(ValueError, match="^flip_test needs a model with a flip_index, which says"):
        alone.estimate_keypoints(np.zeros((1, 8, 8, 3), "uint8"), flip_test=True)


def test_a_flip_test_averages_both_images_with_their_points_exchanged(model, monkeypatch):
    """Where both images have the same heat maps, left and right points become each other's mirror images."""
    maps = heat_maps(np.array([[[0.3, 0.4, 2], [0.65, 0.4, 2], [0.5, 0.7, 2]]]), (16, 12), 2.0, sigma=1.0)
    maps = np.asarray(maps)
    monkeypatch.setattr(model, "predict_on_batch", lambda images: maps)
    image = np.zeros((*SIZE, 3), "uint8")
    [[(left, right, middle)]] = model.estimate_keypoints(image, flip_test=True)
    center = SIZE[1] / 2 + 0.5  # of the crop: see `crops`
    assert left[0] + right[0] == pytest.approx(2 * center, abs=1e-3)
    assert left[0] == pytest.approx(0.325 * SIZE[1], abs=0.5) and left[1] == pytest.approx(right[1], abs=1e-3)
    assert middle[0] == pytest.approx(center, abs=1e-3)
    [[alone]] = model.estimate_keypoints(image)
    assert alone[0, 0] == pytest.approx(0.3 * SIZE[1], abs=0.5)


@by_table(
    "boxes, message",
    [
        ([], r"^expected boxes of 1 image\(s\); got those of 0$"),
        ([[1, 2, 3, 4]], r"^expected boxes \(objects, 4\) of each image: .*; got \(4,\)$"),
        ([[[5, 2, 3, 4]]], r"^expected boxes whose right and bottom are larger than left and top; got .*$"),
        ([[[1, 2, np.nan, 4]]], r"^expected boxes whose right and bottom are larger .*$"),
    ],
)
def test_other_boxes_are_refused(boxes, message, model):
    with pytest.raises(ValueError, match=message):
        model.estimate_keypoints(np.zeros((1, 40, 30, 3), "uint8"), boxes)


def test_a_model_for_any_size_is_refused():
    model = estimator(image_size=(None, None), position_grid=(4, 3))
    with pytest.raises(ValueError, match="^expected a model with an image_size, to which objects are crop"):
        model.estimate_keypoints(np.zeros((40, 30, 3), "uint8"))
