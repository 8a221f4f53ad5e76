"""Commands with a trained DINOv2 ViT-S/14 on photographs."""

import json

import numpy as np
import pytest
from made import trained
from made.workers import assert_near, end_of, finish, output_of, start
from PIL import Image

from keras_vit import from_pretrained
from keras_vit.embeddings import read_embeddings
from keras_vit.training import RunConfig, find_recipe

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow_only("the commands are tested on TensorFlow")]
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


def test_the_figures_of_photographs_are_drawn(model, keras_vit, tmp_path):
    folder = written(tmp_path / "photographs", cat=Image.fromarray(trained.photograph("cat")))
    keras_vit("inspect", "--model", model, "--image", folder, "--output", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["figures"] and (tmp_path / "out" / "report.html").is_file()
    for name in result["figures"]:
        with Image.open(tmp_path / "out" / name) as figure:
            assert np.asarray(figure.convert("L")).std() > 5


def test_a_student_comes_closer_to_the_features_of_the_teacher(model, crops, keras_vit, tmp_path):
    student = {"patch_size": 14, "hidden_size": 48, "num_layers": 2, "mlp_dim": 96, "num_heads": 3}
    keras_vit(
        *("pretrain", "--objective", "distill", "--recipe", "distill_features", "--teacher", model),
        *("--dataset", f"folder:{crops}", "--image_size", SIDE, "--total_steps", 16, "--batch_size", 8),
        *("--set", f"model={student}", "--set", "warmup_steps=1", "--set", "base_lr=0.002"),
        *("--set", "mixup=0", "--set", "eval_every=4", "--set", "checkpoint_every=4"),
        *("--workdir", tmp_path / "run"),
    )
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    names, *rows = (line.split(",") for line in lines)
    cosines = [float(row[names.index("patch_cosine")]) for row in rows]
    assert cosines[-1] > cosines[0] + 0.1
    assert from_pretrained(tmp_path / "run").num_classes is None


def test_a_killed_run_from_trained_weights_ends_as_an_uninterrupted_one(model, crops, tmp_path):
    recipe = find_recipe("finetune").with_changes(
        **{"total_steps": 4, "warmup_steps": 1, "checkpoint_every": 1, "eval_every": 2, "batch_size": 4},
        base_lr=1e-3,
    )
    config = RunConfig(f"folder:{crops}", recipe, weights=str(model))
    for path, moments in (("whole", [None]), ("killed", ["step 2", "values 3", None])):
        for moment in moments:
            status = finish([start(tmp_path, config, tmp_path / path, moment=moment)])
            assert status == [-9 if moment else 0], output_of(tmp_path, moment=moment)
    # Threads add the gradients of the patch kernel in any order, which changes the last bit of a sum.
    assert_near(end_of(tmp_path / "killed"), end_of(tmp_path / "whole"))
