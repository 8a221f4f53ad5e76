"""`.keras` files, also in a new process."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from PIL import Image
from reference.comparing import assert_close, numpy
from reference.small import images_for, one_block, small

from keras_vit import Preprocessing

SCRIPT = """
import json, sys
{imports}
model = keras.saving.load_model(sys.argv[1], safe_mode=True)
print("RESULT", json.dumps([type(model).__name__, model.get_config(), model.classify(sys.argv[2])]))
"""


@pytest.mark.slow
@pytest.mark.tensorflow_only("a file holds the same on every backend")
@pytest.mark.parametrize("imports", ["import keras_vit, keras", "import keras, keras_vit"])
def test_a_fresh_process_classifies_a_png_to_the_same_probabilities(imports, tmp_path):
    crop = Preprocessing(16, resize="crop", crop_fraction=0.8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    model = small(preprocessing=crop, class_names=["ant", "bee", "cat", "dog", "eel"], pooling="map")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    model.save(tmp_path / "model.keras")
    files = [str(tmp_path / "model.keras"), str(tmp_path / "picture.png")]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(imports=imports), *files],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    kind, config, classified = json.loads(process.stdout.split("RESULT")[1])
    assert kind == "VisionTransformer"
    assert config == json.loads(json.dumps(model.get_config()))
    for (name, score), (expected_name, expected_score) in zip(classified[0], model.classify(files[1])[0]):
        assert name == expected_name
        assert score == pytest.approx(expected_score, rel=1e-5)
    assert model.classify(files[1]) == model.classify(pixels)


def test_a_feature_extractor_can_be_saved_too(tmp_path):
    features = small(num_registers=1).feature_extractor(["tokens", "encoder_block_0"], grid=True)
    features.save(tmp_path / "features.keras")
    loaded = keras.saving.load_model(tmp_path / "features.keras", safe_mode=True)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    expected = features(images)
    for stage, grid in loaded(images).items():
        np.testing.assert_allclose(numpy(grid), numpy(expected[stage]), atol=1e-6)


@pytest.mark.tensorflow_only("Keras saves alike on every backend")
@pytest.mark.parametrize("trained", [False, True])
def test_a_compiled_model_comes_back_with_the_state_that_its_optimizer_has(trained, tmp_path):
    """Keras's warnings about missing variables are errors here."""
    model = one_block()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if trained:
        model.optimizer.build(model.trainable_variables)
        for i, variable in enumerate(model.optimizer.variables):
            variable.assign(keras.ops.full(variable.shape, i, variable.dtype))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.built == trained
    for found, expected in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(found), numpy(expected))


def test_a_file_of_an_earlier_version_is_read(golden):
    """Written with Keras's own norms, of a model that has them in its blocks and between its layers."""
    model = keras.saving.load_model(golden / "before_layer_norm.keras")
    assert model.get_config()["pre_norm"] and model.class_names[2] == "cat"
    with np.load(golden / "before_layer_norm.expected.npz") as expected:
        assert_close(model(images_for(model)), expected["logits"], 1e-5)
