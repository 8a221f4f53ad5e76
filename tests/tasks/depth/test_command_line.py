"""Subcommands with models of depth: files of maps and clouds, figures, and refusals."""

import json

import numpy as np
import pytest
from made.folders import write_depths
from made.sampling import some
from PIL import Image
from reference.comparing import randomize
from reference.small import small

import keras_vit
from keras_vit.tasks.depth.point_cloud import point_cloud, write_ply

pytestmark = pytest.mark.usefixtures("eager")


def estimator(**options):
    encoder = small(num_classes=None, num_layers=1)
    options = {"head": "linear", "bins": 8, "class_names": ("depth",), **options}
    return randomize(keras_vit.DepthEstimator(encoder, **options))


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    """A data set of ten images with depths, of which some are unknown."""
    return write_depths(tmp_path_factory.mktemp("data") / "rooms")


@pytest.fixture(scope="module")
def live():
    return estimator()


@pytest.fixture(scope="module")
def model(live, tmp_path_factory):
    path = tmp_path_factory.mktemp("depth") / "model.keras"
    live.save(path)
    return path


def test_maps_pictures_and_clouds_are_written(json_of, live, model, rooms, tmp_path):
    paths = sorted(map(str, (rooms / "images").iterdir()))[:2]
    cloud = "--point_cloud", "--camera", "30,31,20,15"
    rows = json_of("predict", "--model", model, *paths, "--maps", tmp_path / "out", *cloud)
    for path, values, row in zip(paths, live.estimate(paths, whole=True), rows, strict=True):
        values, name = values[..., 0], path.rpartition("/")[2].removesuffix(".png")
        assert row["values"] == pytest.approx([values.min(), np.median(values), values.max()], rel=1e-5)
        stored = np.load(tmp_path / "out" / "depths" / f"{name}.npy")
        assert stored.dtype == np.float32
        np.testing.assert_allclose(stored, values, rtol=1e-5)
        told = json.loads((tmp_path / "out" / "png" / f"{name}.json").read_text())
        assert told == {"quantity": "metric", "value_of_one": pytest.approx(10 / 65535)}
        with Image.open(tmp_path / "out" / "png" / f"{name}.png") as image:
            np.testing.assert_allclose(
                np.asarray(image) * told["value_of_one"], values, atol=told["value_of_one"]
            )
        with Image.open(tmp_path / "out" / "pictures" / f"{name}.png") as image:
            assert image.height >= 16 and image.width > 24
        points = point_cloud(stored, [[30, 0, 20], [0, 31, 15], [0, 0, 1]], np.asarray(Image.open(path)))
        expected = write_ply(tmp_path / "expected.ply", *points, overwrite=True).read_bytes()
        assert (tmp_path / "out" / "points" / f"{name}.ply").read_bytes() == expected


@pytest.mark.parametrize("output", some(["disparity", "values"], 2))
def test_other_outputs_have_their_own_folders(output, keras_vit, rooms, tmp_path):
    estimator(quantity=output).save(tmp_path / "m.keras")
    path = rooms / "images" / "00.png"
    keras_vit("predict", "--model", tmp_path / "m.keras", path, "--maps", tmp_path / "out")
    names = {"disparity": {"disparities", "png", "pictures"}, "values": {"values", "pictures"}}
    assert {each.name for each in (tmp_path / "out").iterdir()} == names[output]


REFUSED = {
    "--point_cloud, --camera need --maps": ["--point_cloud", "--camera", "1,1,0,0"],
    "--camera need --maps and a model of the task 'depth'; this one's task is 'single_label'": [
        *("--camera", "1,1,0,0", "--model", "c.keras"),
    ],
    "--point_cloud and --camera need each other": ["--maps", "out", "--point_cloud"],
    "expected numbers FX,FY,CX,CY with FX, FY > 0; got '1,0,2,3'": ["--maps", "out", "--camera", "1,0,2,3"],
    "a model that detects objects; this one's task is 'depth'": ["--boxes", "out"],
    "--point_cloud needs a model of depth; this one's quantity is 'disparity'": [
        *("--maps", "out", "--point_cloud", "--camera", "1,1,0,0", "--model", "d.keras"),
    ],
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    small(num_layers=1).save(folder / "c.keras")
    estimator(quantity="disparity").save(folder / "d.keras")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_and_leaves_nothing(message, refused, model, rooms, others, monkeypatch):
    monkeypatch.chdir(others)
    refused(("predict", "--model", model, rooms / "images" / "00.png", *REFUSED[message]), message)
    assert {path.name for path in others.iterdir()} == {"c.keras", "d.keras"}


@pytest.mark.slow
@pytest.mark.parametrize("output", ["metric", "relative"])
def test_inspect_draws_predictions_and_the_worst_images(output, json_of, rooms, tmp_path):
    estimator(quantity=output).save(tmp_path / "m.keras")
    given = "--model", tmp_path / "m.keras", "--dataset", f"folder:{rooms}", "--split", "train"
    result = json_of("inspect", *given, "--output", tmp_path / "inside")
    assert {"worst.png", "best.png"} <= {*result["figures"]} and result["abs_rel"] > 0
    report = (tmp_path / "inside" / "report.html").read_text()
    assert ("scale and shift" in report) is (output == "relative")
