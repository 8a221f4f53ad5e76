"""Every public function that takes a path takes a str and a pathlib.Path alike."""

import pathlib

import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation, search, training, weights
from keras_vit.cli.source import open_model

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
TOKEN = GOLDEN / "token.npz"
IMAGE, WRITTEN = "images/cat/00.png", "written"


def config_of(path, field):
    options = {"dataset": "digits", "weights": "digits"} | {field: path}
    return training.RunConfig(recipe=training.find_recipe("finetune"), **options).as_json()


# A function of a path and the model, and the path: of a golden file, or below the folder of the fixture.
CASES = {
    "from_pretrained": (lambda path, model: keras_vit.from_pretrained(path).num_classes, TOKEN),
    "from_pretrained folder": (
        lambda path, model: keras_vit.from_pretrained(path).num_layers,
        GOLDEN / "hf_vit",
    ),
    "from_pretrained .keras": (lambda path, model: keras_vit.from_pretrained(path).num_layers, "model.keras"),
    "from_pretrained class_names": (
        lambda path, model: keras_vit.from_pretrained(TOKEN, num_classes=2, class_names=path).class_names,
        "names.txt",
    ),
    "save_weights": (
        lambda path, model: str(keras_vit.save_weights(model, path, "vit_jax")),
        f"{WRITTEN}.npz",
    ),
    "fetch": (lambda path, model: weights.fetch(path), TOKEN),
    "is_cached": (lambda path, model: weights.is_cached(path), TOKEN),
    "find": (lambda path, model: weights.find(path), TOKEN),
    "read_arrays": (lambda path, model: [*weights.read_arrays(path)], TOKEN),
    "show_checkpoint": (lambda path, model: weights.show_checkpoint(path), TOKEN),
    "read_text_preprocessing": (lambda path, model: weights.read_text_preprocessing(path), GOLDEN / "hf_vit"),
    "class_names": (lambda path, model: weights.class_names(path), "names.txt"),
    "load_dataset": (lambda path, model: len(folder_data(path).splits["train"]), "images"),
    "RunConfig.dataset": (lambda path, model: config_of(folder_name(path), "dataset"), "images"),
    "RunConfig.weights": (lambda path, model: config_of(path, "weights"), "model.keras"),
    "Workdir": (lambda path, model: training.Workdir(path, {}).path, WRITTEN),
    "preprocessing": (lambda path, model: model.preprocessing(path).shape, IMAGE),
    "classify": (lambda path, model: model.classify(path, top=1)[0][0][0], IMAGE),
    "dense_features": (lambda path, model: np.shape(keras_vit.dense_features(model, path)[0]), IMAGE),
    "read_real_labels": (lambda path, model: evaluation.read_real_labels(path), "real.json"),
    "ImageIndex": (lambda path, model: search.ImageIndex(path, "model.keras", "0" * 64, 4).folder, WRITTEN),
    "open_model": (lambda path, model: open_model(path).num_layers, "model.keras"),
}


def folder_name(path):
    return path if isinstance(path, pathlib.Path) else f"folder:{path}"


def folder_data(path):
    return data.load_dataset(folder_name(path))


@pytest.fixture(scope="module")
def folder(places):
    (places / "names.txt").write_text("cat\ndog\n")
    (places / "real.json").write_text("[[1]]")
    return places


@pytest.mark.slow
@pytest.mark.parametrize("call, path", CASES.values(), ids=CASES)
def test_a_path_is_a_str_or_a_pathlib_path(call, path, folder, model):
    def outcome(path):
        for file in folder.glob(f"{WRITTEN}.*"):
            file.unlink()
        return call(path, model)

    assert outcome(folder / path) == outcome(str(folder / path))
