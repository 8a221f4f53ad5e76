"""`.keras` files of compiled models and of features."""

import keras
import numpy as np
import pytest
from reference.comparing import numpy
from reference.small import one_block, small


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
