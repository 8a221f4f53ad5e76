import subprocess
import sys

import keras
import numpy as np
import pytest
from made.scripts import script

pytestmark = pytest.mark.tensorflow_only("exports a SavedModel")


@pytest.fixture
def example():
    return script("examples/minimal_train.py")


@pytest.mark.slow
def test_the_example_learns_and_its_saved_model_computes_the_same(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example, "EPOCHS", 1)
    accuracy = example.main(str(tmp_path / "exported"))
    assert accuracy > 0.2  # chance is 0.1
    *_, line = capsys.readouterr().out.splitlines()
    assert float(line.split()[-1]) < 1e-4
    assert (tmp_path / "exported" / "saved_model.pb").exists()


def test_an_image_is_moved_by_at_most_a_pixel(example):
    images = np.full((50, 16, 16, 1), -1, "float32")
    images[:, 4, 4] = 1
    moved = example.shifted(images, np.random.default_rng(0))
    assert moved.shape == images.shape
    places = {tuple(map(int, np.argwhere(image[..., 0] == 1)[0])) for image in moved}
    assert places == {(y, x) for y in (3, 4, 5) for x in (3, 4, 5)}


def test_the_example_uses_nothing_but_keras_and_the_layers(example):
    ours = [
        value for value in vars(example).values() if getattr(value, "__module__", "").startswith("keras_vit")
    ]
    assert {value.__module__.split(".")[1] for value in ours} == {"layers"}
    names = {type(layer).__module__.partition(".")[0] for layer in example.vision_transformer().layers}
    assert names <= {"keras", "keras_vit"} and isinstance(example.vision_transformer(), keras.Model)


@pytest.mark.slow
def test_the_example_reaches_97_percent(repository):
    command = [sys.executable, repository / "examples/minimal_train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, line = done.stdout.splitlines()
    assert float(line.split()[-1].rstrip("%")) >= 97, done.stdout
