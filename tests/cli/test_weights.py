import json

import numpy as np
import pytest
from made.servers import asked_hub
from reference.small import SMALL, images_for, small

from keras_vit import ImageTextModel, Preprocessing, from_pretrained, save_weights

pytestmark = pytest.mark.usefixtures("eager")
TEXT = {"vocabulary_size": 9, "length": 5, "hidden_size": 8, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A Hugging Face folder of a model that knows its classes and its preprocessing."""
    model = small(
        class_names=["ant", "bee", "cat", "dog", "eel"],
        activation="gelu_erf",
        preprocessing=Preprocessing(16, resize="crop", crop_fraction=0.5, mean=(0.1, 0.2, 0.3)),
    )
    folder = tmp_path_factory.mktemp("weights") / "named"
    save_weights(model, folder, "huggingface")
    return model, folder


def lines_of(done):
    assert done.stderr == ""
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def test_show_prints_layout_architecture_and_that_all_fits(keras_vit, weights):
    shown = lines_of(keras_vit("weights", "show", weights))
    assert shown["layout"] == "vit_jax"
    assert shown["parameters"] == "14,247"
    assert shown["num_classes"] == "7"
    assert shown["image_size"] == "(32, 32)"
    assert shown["position"].split() == ["grid", "4×4"]
    assert shown["fits"] == "every array and variable"


def test_show_prints_class_names_and_preprocessing(keras_vit, named):
    shown = lines_of(keras_vit("weights", "show", named[1]))
    assert "'ant' … 'eel'" in shown["class"]
    assert "crop_fraction 0.5" in shown["preprocessing"]


def test_show_lists_missing_unexpected_and_wrong_arrays(keras_vit, weights, tmp_path):
    with np.load(weights) as file:
        stored = dict(file)
    stored["Transformer/encoderblock_1/extra"] = np.zeros(3, "float32")
    del stored["Transformer/encoder_norm/bias"]
    stored["head/bias"] = np.zeros(8, "float32")
    np.savez(tmp_path / "bad.npz", **stored)
    command = ("weights", "show", tmp_path / "bad.npz")
    text = keras_vit(*command, "--json", tmp_path / "found.json", status=2).stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["only_in_file"] == ["Transformer/encoderblock_1/extra"]
    assert found["only_in_model"] == ["encoder_norm/beta"]
    assert found["wrong_shape"] == ["head/bias (8,) for head/bias (7,)"]
    assert not found["fits"]
    assert "no: from_pretrained refuses this file" in text and "encoder_norm/beta" in text


def test_show_asks_for_what_the_file_does_not_say(keras_vit, refused, golden):
    file = golden / "timm_token.safetensors"
    refused(("weights", "show", file), file, "give num_heads")
    assert lines_of(keras_vit("weights", "show", file, "--set", "num_heads=3"))["num_heads"] == "3"


def test_convert_writes_a_file_with_the_same_logits(keras_vit, weights, tmp_path):
    path = tmp_path / "a.safetensors"
    done = keras_vit("weights", "convert", weights, path, "--layout", "timm")
    assert f"wrote {path}" in done.stdout
    model, converted = from_pretrained(weights), from_pretrained(path)
    assert lines_of(keras_vit("weights", "show", path))["layout"] == "timm"
    x = images_for(model)
    np.testing.assert_allclose(converted(x), model(x), atol=1e-6)


def test_convert_changes_the_given_options(json_of, weights, tmp_path):
    path, changes = tmp_path / "small.npz", ("--set", "image_size=48", "--set", "num_classes=3")
    options = ("--layout", "vit_jax", "--dtype", "float16", *changes)
    assert json_of("weights", "convert", weights, path, *options)["path"] == str(path)
    with np.load(path) as file:
        assert {file[key].dtype.name for key in file.files} == {"float16"}
        assert file["Transformer/posembed_input/pos_embedding"].shape == (1, 37, 24)
        assert file["head/kernel"].shape == (24, 3)


def test_convert_overwrites_only_with_the_option(keras_vit, refused, weights, tmp_path):
    path = tmp_path / "model.npz"
    path.write_text("mine")
    command = ("weights", "convert", weights, path, "--layout", "vit_jax")
    refused(command, path, "exists; give another name or --overwrite")
    assert path.read_text() == "mine"
    keras_vit(*command, "--overwrite")
    assert from_pretrained(path).hidden_size == 24


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own making
def test_push_uploads_a_run_with_its_metadata(keras_vit, refused, tmp_path, monkeypatch):
    small(class_names=("ant", "bee", "cat", "dog", "eel"), num_layers=1).save(tmp_path / "model.keras")
    config = {"dataset": "folder:/home/me/insects", "recipe": {"task": "single_label"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    record = {"test_accuracy": 0.75, "steps": 2, "train_seconds": 0.1, "replicas": 1, "bad_images": []}
    (tmp_path / "result.json").write_text(json.dumps(record))
    command = ("weights", "push", tmp_path, "me/insects", "--private", "--license", "mit")
    with asked_hub(tmp_path / "hub", monkeypatch) as server:
        refused(command, "me/insects: ", "401 Unauthorized", "; log in")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert keras_vit(*command).stdout == f"pushed to {server.url}/me/insects\n"
        assert server.created["me/insects"]["visibility"] == "private"
        _, files = server.repositories["me/insects"]["main"]
        card = files["README.md"].decode()
        assert "Trained on insects. Test split: accuracy 0.75." in card and "license: mit" in card
        assert "/home/me" not in card
        assert from_pretrained("me/insects").class_names[4] == "eel"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_push_uploads_both_towers(keras_vit, tmp_path, monkeypatch):
    image = {**SMALL, "num_classes": None, "num_layers": 1, "pooling": "map", "prefix_positions": False}
    ImageTextModel(image, TEXT, text_projection=12, projection_bias=True).save(tmp_path / "model.keras")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with asked_hub(tmp_path / "hub", monkeypatch) as server:
        keras_vit("weights", "push", tmp_path, "me/pairs")  # a folder, as of a run
        _, files = server.repositories["me/pairs"]["main"]
        card = files["README.md"].decode()
        assert 'from_pretrained("hf://me/pairs", kind="image_text")' in card and "SiglipModel" in card
        assert json.loads(files["config.json"])["model_type"] == "siglip"
        assert isinstance(from_pretrained("me/pairs", kind="image_text"), ImageTextModel)
