"""Files written by version 0.1.0 (commit de64f23) load today and give the outputs that they gave then."""

import importlib
import io
import shutil

import keras
import numpy as np
import pytest
from PIL import Image
from reference.comparing import assert_close

import keras_vit

WEIGHTS = ("vit_jax.npz", "big_vision.npz", "timm.safetensors", "huggingface")
tensorflow_only = pytest.mark.tensorflow_only("runs and exports need TensorFlow")


@pytest.fixture(scope="module")
def written(golden):
    return golden / "v0_1"


@pytest.fixture(scope="module")
def expected(written):
    with np.load(written / "expected.npz") as arrays:
        return dict(arrays)


def logits(model, images):
    """Outputs for images in [0, 1], as exports take them."""
    return model(model.preprocessing.normalize(images * np.float32(255)), training=False)


@pytest.mark.parametrize("name", ["classifier", "distilled", "map_pooling", "lora_int8"])
def test_a_keras_file_gives_its_logits(name, written, expected):
    model = keras.saving.load_model(written / f"{name}.keras")
    assert_close(logits(model, expected["images"]), expected[name], 1e-5)
    remat = [layer.remat for layer in model.layers if hasattr(layer, "remat")]
    assert remat == [name == "lora_int8"] * len(remat)


def test_a_keras_file_of_a_hybrid_gives_its_logits(written, expected):
    model = keras.saving.load_model(written / "hybrid.keras")
    image = np.linspace(-1, 1, 32 * 32, dtype="float32").reshape(1, 32, 32, 1)
    assert_close(model(image, training=False), expected["hybrid"], 1e-5)


def test_a_keras_file_classifies_with_its_names_and_preprocessing(written, expected):
    model = keras.saving.load_model(written / "classifier.keras")
    assert model.task == "single_label"
    file = io.BytesIO()
    Image.fromarray(expected["pixels"]).save(file, "png")
    ((*found,),) = model.classify(Image.open(file), top=3)
    assert [name for name, _ in sorted(found)] == ["ant", "bee", "cat"]
    assert_close([probability for _, probability in sorted(found)], expected["classified"], 1e-5)


def test_a_keras_file_of_masked_patch_prediction_gives_its_predictions(written, expected):
    model = keras.saving.load_model(written / "masked_patch.keras")
    inputs = {"images": expected["images"] * 2 - 1, "sources": expected["masked_sources"]}
    assert_close(model(inputs), expected["masked_patch"], 1e-5)


@tensorflow_only
def test_a_keras_file_with_a_saved_model_gives_its_logits(written, expected):
    importlib.import_module("keras_vit.export.saved_model_layer")  # registers the class
    model = keras.saving.load_model(written / "with_saved_model.keras", safe_mode=False)
    assert_close(model(expected["images"]), expected["with_saved_model"], 1e-5)


@pytest.mark.parametrize("name", WEIGHTS)
def test_saved_weights_and_their_sidecars_give_the_models_logits(name, written, expected):
    model = keras_vit.from_pretrained(written / "weights" / name)
    assert model.class_names == ("ant", "bee", "cat")
    assert model.preprocessing.crop_fraction == 0.8
    assert_close(logits(model, expected["images"]), expected["weights"], 1e-5)


@tensorflow_only
@pytest.mark.parametrize("name", ["float32.tflite", "dynamic_int8.tflite", "model.onnx"])
def test_an_exported_file_gives_its_logits(name, written, expected):
    from keras_vit.export import open_exported

    exported = open_exported(written / "exports" / name)
    assert exported.class_names == ("ant", "bee", "cat")
    assert_close(exported.predict_on_batch(expected["images"]), expected[f"exported/{name}"], 1e-5)


@tensorflow_only
def test_an_archive_holds_the_saved_model_with_its_logits(written, expected):
    from keras_vit.export import open_exported, saved_model_folder

    exported = open_exported(saved_model_folder(written / "exports" / "saved_model.tar.gz"))
    assert_close(exported.predict_on_batch(expected["images"]), expected["exported/saved_model"], 1e-5)


def config():
    from keras_vit.training import Recipe, RunConfig

    recipe = Recipe(
        **{"optimizer": "adamw", "base_lr": 1e-2, "total_steps": 6, "warmup_steps": 2, "batch_size": 16},
        **{"checkpoint_every": 2, "eval_every": 4, "ema": 0.9, "layer_decay": 0.8, "dropout_rate": 0.1},
        **{"stochastic_depth_rate": 0.1, "weight_decay": 0.1, "crop_area": (0.3, 1.0), "flip": False},
        **{"label_smoothing": 0.1, "mixup": 0.2, "accumulation_steps": 2},
    )
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_layers": 1, "mlp_dim": 8}
    model = {**sizes, "num_heads": 2, "pooling": "gap"}
    return RunConfig("digits", recipe, model=model)


def test_a_finished_run_gives_its_logits(written, expected):
    model = keras_vit.from_pretrained(written / "workdirs" / "finished")
    assert_close(logits(model, images_of_digits(model)), expected["finished"], 1e-5)


@tensorflow_only
def test_a_checkpoint_of_an_unfinished_run_is_restored(written, tmp_path, monkeypatch):
    from keras_vit.training import run
    from keras_vit.training.checkpoints import step_of

    class Restored(Exception):
        pass

    def restore(config, model, dataset, samples, workdir, checkpoints, *_):
        checkpoints.restore(model, checkpoints.newest())
        raise Restored(step_of(model))

    monkeypatch.setattr(run, "_fit", restore)
    shutil.copytree(written / "workdirs" / "unfinished", tmp_path / "run")
    with pytest.raises(Restored, match="^4$"):
        run.train(config(), tmp_path / "run", 0)


@tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize("name", ["finished", "unfinished"])
def test_a_run_ends_with_its_model(name, written, expected, tmp_path):
    """The unfinished run has 4 of 6 steps; of the finished one `model.keras` is lost and rebuilt."""
    from keras_vit.training import train

    shutil.copytree(written / "workdirs" / name, tmp_path / "run")
    (tmp_path / "run" / "model.keras").unlink(missing_ok=True)
    workdir, result = train(config(), tmp_path / "run", 0)
    assert result["steps"] == 6 and len(workdir.metrics()) == 3
    model = keras.saving.load_model(workdir.model)
    assert_close(logits(model, images_of_digits(model)), expected["finished"], 1e-5)


def images_of_digits(model):
    ramp = np.linspace(0, 1, 2 * 64, dtype="float32").reshape(2, 8, 8, 1)
    return ramp.repeat(model.in_channels, -1)
