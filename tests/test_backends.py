"""The other Keras backends: tests of other files, each backend in a fresh process."""

import importlib.util
import os
import subprocess
import sys

import pytest

# Not run by `make test` on these backends: golden files, `.keras` files, steps of `fit`, and attention.
TESTS = {
    "jax": ("engine/test_adapting.py",),
    "torch": (
        "weights/test_load.py",
        "models/test_saving.py",
        "tasks/pretraining/test_masked_patch_predictor.py",
        "engine/test_adapting.py",
        "inspection/test_attention.py",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", TESTS)
def test_models_load_run_train_and_save_on_another_backend(backend, repository):
    if not importlib.util.find_spec(backend):
        pytest.skip(f"{backend} is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not slow"]
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in TESTS[backend])],
        cwd=repository,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
