"""Commands with a trained DINOv2 ViT-S/14 on photographs."""

import numpy as np
import pytest
from made import trained
from PIL import Image

from keras_vit import from_pretrained
from keras_vit.embeddings import read_embeddings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow_only("the commands are tested on TensorFlow"),
]
SIDE = 112


@pytest.fixture(scope="module")
def model(trained_folder, tmp_path_factory):
    """A file of the trained model for small images."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    from_pretrained(trained_folder, image_size=SIDE).save(path)
    return path


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    """A folder of crops of photographs with the splits train and test, two of each photograph."""
    splits = {part: trained.crops(part, 2, SIDE) for part in ("train", "test")}
    return trained.write_crops(tmp_path_factory.mktemp("crops"), **splits)


def written(folder, **images):
    folder.mkdir()
    for name, image in images.items():
        image.save(folder / f"{name}.png")
    return folder


def test_embeddings_are_the_vectors_of_the_model(model, crops, keras_vit, tmp_path):
    keras_vit("embed", "--model", model, "--dataset", f"folder:{crops}/test", "--output", tmp_path / "out")
    table = read_embeddings(tmp_path / "out").to_pylist()
    encoder = from_pretrained(model)
    files = [crops / "test" / row["path"] for row in table]
    expected = encoder.feature_extractor(["representation"]).predict(encoder.preprocessing(files))
    found = np.stack([row["embedding"] for row in table])
    assert len(table) == 32
    np.testing.assert_allclose(found, expected["representation"], atol=2e-3 * np.abs(found).max())


def test_a_changed_crop_finds_its_photograph_and_only_copies_are_duplicates(
    model, keras_vit, json_of, tmp_path
):
    photographs = {name: Image.fromarray(trained.photograph(name)) for name in trained.PHOTOGRAPHS}
    copies = {f"{name}-copy": photographs[name].reduce(2) for name in ("cat", "rocket")}
    folder = written(tmp_path / "photographs", **photographs, **copies)
    keras_vit("search", "index", folder, "--model", model, "--index", tmp_path / "index")
    width, height = photographs["motorcycle"].size
    part = photographs["motorcycle"].crop((width // 10, height // 10, width, height))
    query = written(tmp_path / "queries", motorcycle=part.convert("L")) / "motorcycle.png"
    found = json_of("search", "query", query, "--index", tmp_path / "index")["images"]
    assert found[0]["image"] == str(folder / "motorcycle.png")
    groups = json_of("search", "duplicates", "--index", tmp_path / "index")["groups"]
    names = [sorted(row["image"].rpartition("/")[2] for row in group) for group in groups]
    assert sorted(names) == [[f"{name}-copy.png", f"{name}.png"] for name in ("cat", "rocket")]
