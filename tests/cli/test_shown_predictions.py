"""Pictures of predictions of every task, in the folder of --show."""

import shutil
import tracemalloc
import types

import keras
import numpy as np
import pytest
from made.folders import write_broken
from PIL import Image
from reference.comparing import randomize
from reference.small import SMALL, one_block

from keras_vit import DepthEstimator, ImageSegmenter, ObjectDetector, VisionTransformer
from keras_vit.cli.shown_predictions import SMALLEST, Shown, enlarged
from keras_vit.inspection import box_overlay, class_colors
from keras_vit.preprocessing import image_files
from keras_vit.tasks import get_task
from keras_vit.tasks.depth.pictures import COLORS
from keras_vit.tasks.detection.detecting import Detections
from keras_vit.tasks.segmentation.instances import Instances

pytestmark = pytest.mark.usefixtures("eager")

ENCODER = {**SMALL, "num_classes": None, "num_layers": 1}
PHOTO = np.random.default_rng(0).integers(0, 256, (200, 300, 3), "uint8")


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def picture(path):
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def test_classes_are_words_below_the_image(photo, keras_vit, tmp_path):
    one_block().save(tmp_path / "model.keras")
    command = ("predict", "--model", tmp_path / "model.keras", photo, "--top", 2)
    keras_vit(*command, "--show", tmp_path / "found")
    drawn = picture(tmp_path / "found" / "photo.png")
    np.testing.assert_array_equal(drawn[:200], PHOTO)
    below = drawn[200:]
    assert below.shape == (2 * 16, 300, 3) and (below.max(), below.min() < 100) == (255, True)
    assert all((half < 128).any() for half in (below[:16], below[16:]))


def test_an_image_of_classes_is_read_once(photo, keras_vit, tmp_path, monkeypatch):
    one_block().save(tmp_path / "model.keras")
    other, opened, open_encoded = shutil.copy(photo, tmp_path / "other.png"), [], image_files._open

    def counted(source):
        opened.append(str(source))
        return open_encoded(source)

    monkeypatch.setattr(image_files, "_open", counted)
    keras_vit("predict", "--model", tmp_path / "model.keras", photo, other, "--show", tmp_path / "found")
    assert sorted(opened) == sorted(map(str, (photo, other)))


def test_what_cannot_be_read_has_no_picture(photo, keras_vit, tmp_path):
    one_block().save(tmp_path / "model.keras")
    bad = write_broken(tmp_path / "bad.png")
    command = ("predict", "--model", tmp_path / "model.keras", photo, bad, "--on_bad_image", "skip")
    keras_vit(*command, "--show", tmp_path / "found")
    assert [path.name for path in (tmp_path / "found").iterdir()] == ["photo.png"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["boxes", "maps"])
def test_it_may_be_written_with_another_folder(option, photo, keras_vit, tmp_path):
    encoder = VisionTransformer(**ENCODER)
    model = ObjectDetector(encoder, 2) if option == "boxes" else ImageSegmenter(encoder, 3)
    randomize(model).save(tmp_path / "model.keras")
    folders = ("--show", tmp_path / "shown", f"--{option}", tmp_path / "other")
    keras_vit("predict", "--model", tmp_path / "model.keras", photo, *folders)
    assert (tmp_path / "shown" / "photo.png").exists() and any((tmp_path / "other").rglob("photo.png"))


def shown(folder, task, prediction, **attributes):
    """The picture of a prediction for the photograph."""
    model = keras.Model()
    for name, value in {"class_names": ("sky", "tree", "sea"), "num_classes": 3, **attributes}.items():
        object.__setattr__(model, name, value)
    Shown(folder, get_task(task), model, {"photo.jpg": "photo.png"}).write("photo.jpg", PHOTO, prediction)
    return picture(folder / "photo.png")


def test_objects_are_drawn_with_their_names(tmp_path):
    found = Detections(np.array([[20.0, 30, 90, 120]]), np.array([0.9]), np.array([1]))
    expected = box_overlay(PHOTO, found, ("sky", "tree", "sea"))
    np.testing.assert_array_equal(shown(tmp_path / "found", "detection", found), expected)


def test_classes_of_pixels_are_colors_with_their_names(tmp_path):
    classes = np.zeros((200, 300), int)
    classes[:, 150:] = 2
    drawn = shown(tmp_path / "found", "segmentation", classes)
    np.testing.assert_array_equal(drawn[:200, :150], PHOTO[:, :150])
    np.testing.assert_allclose(drawn[:200, 150:], PHOTO[:, 150:] / 2 + class_colors(3)[2] / 2, atol=1)
    assert (
        drawn.shape == (216, 300, 3) and (drawn[208, 10] == class_colors(3)[2]).all()
    )  # one class has a color


@pytest.mark.parametrize("quantity", ["metric", "disparity"])
def test_what_is_near_is_bright(quantity, tmp_path):
    values = np.tile(np.linspace(1, 2, 300), (200, 1))[..., np.newaxis]
    drawn = shown(tmp_path / "found", "depth", values, quantity=quantity)
    assert drawn.shape == (200, 600, 3)
    near, far = (300, -1) if quantity == "metric" else (-1, 300)
    assert [drawn[0, near].tolist(), drawn[0, far].tolist()] == [[*COLORS[0]], [*COLORS[-1]]]


@pytest.mark.parametrize("task, dtype", [("segmentation", "int64"), ("depth", "float32")])
def test_a_picture_of_a_large_image_takes_little_memory(task, dtype, tmp_path):
    model = types.SimpleNamespace(class_names=("sky", "tree"), num_classes=2)
    drawing = Shown(tmp_path / "found", get_task(task), model, {"photo.jpg": "photo.png"})
    image, prediction = np.zeros((500, 1000, 3), "uint8"), np.ones((500, 1000, 1), dtype)
    tracemalloc.start()
    try:
        drawing.write("photo.jpg", image, prediction if task == "depth" else prediction[..., 0])
        assert tracemalloc.get_traced_memory()[1] < 66 * 500 * 1000
    finally:
        tracemalloc.stop()


def test_small_images_are_enlarged_with_what_is_in_them():
    boxes, masks = np.array([[0.0, 2, 8, 10]]), np.zeros((1, 40, 60), bool)
    masks[0, 5, 7] = True
    found = Instances(boxes, np.array([0.9]), np.array([1]), masks)
    image, larger = enlarged(PHOTO[:40, :60], found)
    assert image.shape == (200, 300, 3) and max(image.shape) >= SMALLEST
    assert larger.boxes.tolist() == [[0, 10, 40, 50]] and larger.masks.sum() == 25
    assert larger.masks[0, 25:30, 35:40].all()
    assert enlarged(PHOTO, found)[1] is found


def test_depths_of_models_are_drawn(photo, keras_vit, tmp_path):
    estimator = DepthEstimator(VisionTransformer(**ENCODER), head="linear", bins=8)
    randomize(estimator).save(tmp_path / "model.keras")
    keras_vit("predict", "--model", tmp_path / "model.keras", photo, "--show", tmp_path / "found")
    np.testing.assert_array_equal(picture(tmp_path / "found" / "photo.png")[:, :300], PHOTO)
