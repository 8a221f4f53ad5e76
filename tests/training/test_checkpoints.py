import json

import numpy as np
import pytest
from reference.small import images_for, small

from keras_vit.training import Recipe, compile_model
from keras_vit.training.checkpoints import Checkpoints, step_of

# Each trains for a part of a schedule.
pytestmark = pytest.mark.filterwarnings("ignore:the learning rate's schedule has total_steps:UserWarning")

RECIPES = {
    "sgd": Recipe("sgd", 0.1, 20, 2, 4, accumulator_dtype="bfloat16", dtype="float32"),
    "averaged": Recipe("adamw", 0.01, 20, 2, 4, weight_decay=0.1, ema=0.9, dtype="mixed_bfloat16"),
    # It has a loss scale.
    "scaled": Recipe("adamw", 0.01, 20, 2, 4, ema=0.5, dtype="mixed_float16"),
}


def compiled(recipe="sgd", **options):
    """A compiled model with dropout whose optimizer is built."""
    recipe = RECIPES[recipe]
    model = small(**{"num_layers": 1, "dropout_rate": 0.3, "dtype": recipe.dtype, **options})
    compile_model(model, recipe)
    model.run_eagerly = True  # Tracing takes longer than a few steps.
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, steps):
    images, labels = images_for(model, 4 * steps), np.arange(4 * steps) % 5
    model.fit(images, labels, batch_size=4, shuffle=False, verbose=0)


def state(model):
    return [np.asarray(v.numpy()).astype("float64") for v in (*model.weights, *model.optimizer.variables)]


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path, "val_accuracy", largest=True)


@pytest.fixture(scope="module")
def model():
    return compiled()


def save_at(checkpoints, model, step, **metrics):
    """Save the model as if it had been trained for so many steps."""
    model.optimizer._iterations.assign(step)
    checkpoints.save(model, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_restored_model_trains_on_bit_for_bit(recipe, checkpoints):
    model = compiled(recipe)
    train(model, 3)
    checkpoints.save(model, {"loss": 1.5})
    saved = state(model)
    train(model, 2)
    other = compiled(recipe)
    assert checkpoints.newest() == 3
    checkpoints.restore(other, 3)
    np.testing.assert_equal(state(other), saved)
    assert step_of(other) == 3
    train(other, 2)
    np.testing.assert_equal(state(other), state(model))


def flip_a_bit(folder):
    values = folder / "values.npz"
    content = bytearray(values.read_bytes())
    content[len(content) // 2] ^= 1
    values.write_bytes(content)


def change_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def manifest(text):
    return lambda folder: (folder / "manifest.json").write_text(text)


DAMAGES = {
    "a flipped bit": (flip_a_bit, "the sha256 of its values is another"),
    "no values": (lambda folder: (folder / "values.npz").unlink(), "FileNotFoundError"),
    "half a manifest": (manifest('{"step": 2'), "JSONDecodeError"),
    "no object": (manifest("[]"), "TypeError"),
    "another step": (lambda folder: change_manifest(folder, step=10), "its manifest is of step 10"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_not_restored_but_reported_and_the_one_before_used(
    damage, model, checkpoints
):
    for step in (10, 20):
        save_at(checkpoints, model, step, val_accuracy=0.5)
    assert Checkpoints(checkpoints.path.parent).newest() is None
    harm, words = DAMAGES[damage]
    harm(checkpoints.path / "step-00000020")
    lines = []
    assert checkpoints.newest(lines.append) == 10
    (line,) = lines
    assert "step-00000020 is damaged" in line and words in line and "going back" in line
    # `newest` does not check the best one of a run that ended early.
    with pytest.raises(ValueError, match=rf"step-00000020 is damaged \({words}.*\); without it"):
        checkpoints.restore(model, 20)
    save_at(checkpoints, model, 20, val_accuracy=0.5)  # The resumed run replaces it.
    assert checkpoints.newest() == 20


@pytest.mark.parametrize("largest, kept", [(True, [20, 40, 50]), (False, [30, 40, 50])])
def test_the_newest_two_and_the_best_are_kept(largest, kept, model, tmp_path):
    checkpoints = Checkpoints(tmp_path, "val_loss", largest)
    for step, value in zip((5, 10, 20, 30, 40), (0.9, 0.5, 0.9, 0.1, 0.3)):
        save_at(checkpoints, model, step, val_loss=value)
    save_at(checkpoints, model, 50, loss=0.0)  # not evaluated
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == kept
    assert checkpoints.best_step() == kept[0] and checkpoints.newest() == 50


@pytest.mark.parametrize("place, number", [("metric", np.nan), ("weight", np.inf), ("optimizer", -np.inf)])
def test_a_state_that_is_not_finite_is_not_saved(place, number, checkpoints):
    model = compiled()
    save_at(checkpoints, model, 10, val_accuracy=0.5)
    if place != "metric":
        variable = (model.weights if place == "weight" else model.optimizer.variables)[-1]
        variable.assign(np.full(variable.shape, number))
    with pytest.raises(ValueError, match=f" is {number} at step 20: the run has diverged"):
        save_at(checkpoints, model, 20, val_accuracy=number if place == "metric" else 0.9)
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000010"]


@pytest.mark.parametrize(
    "options, words",
    [({"num_layers": 2}, "is of another model; it differs in"), ({"mlp_dim": 24}, "must have shape .*; got")],
    ids=["more layers", "other sizes"],
)
def test_the_checkpoint_of_another_model_is_refused(options, words, model, checkpoints):
    save_at(checkpoints, model, 10)
    with pytest.raises(ValueError, match=words):
        checkpoints.restore(compiled(**options), 10)
