import errno
import json
import os
import shutil

import numpy as np
import pytest
from reference.small import images_for, small

from keras_vit.training import Recipe, compile_model
from keras_vit.training.checkpoints import Checkpoints, step_of

# Each trains for a part of a schedule.
pytestmark = pytest.mark.filterwarnings("ignore:the learning rate's schedule is made for:UserWarning")

RECIPES = {
    "sgd": Recipe("sgd", 0.1, 20, 2, 4, accumulator_dtype="bfloat16"),
    "averaged": Recipe("adamw", 0.01, 20, 2, 4, weight_decay=0.1, ema=0.9, dtype="mixed_bfloat16"),
    "scaled": Recipe("adamw", 0.01, 20, 2, 4, ema=0.5, dtype="mixed_float16"),
}


def made(recipe="sgd", **options):
    """A compiled model with dropout, its optimizer built."""
    recipe = RECIPES[recipe]
    options = {"num_layers": 1, "dropout_rate": 0.3, "dtype": recipe.dtype, **options}
    model = small(**options)
    compile_model(model, recipe)
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
    return made()


def save_at(checkpoints, model, step, **metrics):
    """A checkpoint of the model as if it had been trained so many steps."""
    model.optimizer._iterations.assign(step)
    checkpoints.save(model, metrics)


# The scaled one has moving averages too.
@pytest.mark.parametrize("recipe", RECIPES if "FULL" in os.environ else ["sgd", "scaled"])
def test_another_model_goes_on_bit_for_bit(recipe, checkpoints):
    model = made(recipe)
    train(model, 3)
    checkpoints.save(model, {"loss": 1.5})
    saved = state(model)
    train(model, 2)
    other = made(recipe)
    train(other, 1)
    step = checkpoints.newest()
    assert step == 3
    checkpoints.restore(other, step)
    for found, expected in zip(state(other), saved, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert step_of(other) == 3
    train(other, 2)
    for found, expected in zip(state(other), state(model), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_state_holds_traces_averages_and_the_scale():
    sgd, averaged, scaled = (made(recipe) for recipe in RECIPES)
    assert {str(v.dtype) for v in sgd.optimizer.traces} == {"bfloat16"}
    assert len(averaged.optimizer._model_variables_moving_average) == len(averaged.trainable_variables)
    assert "dynamic_scale" in {v.name for v in scaled.optimizer.variables}


def flip_a_bit(folder):
    values = folder / "values.npz"
    content = bytearray(values.read_bytes())
    content[len(content) // 2] ^= 1
    values.write_bytes(content)


def truncate(folder):
    values = folder / "values.npz"
    values.write_bytes(values.read_bytes()[:-100])


def change_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


DAMAGES = {
    "a flipped bit": (flip_a_bit, "its values are not what was written"),
    "truncated": (truncate, "its values are not what was written"),
    "no values": (lambda folder: (folder / "values.npz").unlink(), "FileNotFoundError"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "FileNotFoundError"),
    "half a manifest": (
        lambda folder: (folder / "manifest.json").write_text('{"step": 2'),
        "JSONDecodeError",
    ),
    "no object": (lambda folder: (folder / "manifest.json").write_text("[]"), "TypeError"),
    "no digest": (lambda folder: (folder / "manifest.json").write_text('{"step": 20}'), "KeyError"),
    "a score of NaN": (
        lambda folder: change_manifest(folder, metrics={"val_accuracy": float("nan")}),
        "it holds NaN",
    ),
    "another step's": (lambda folder: change_manifest(folder, step=10), "its manifest is of step 10"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(damage, model, checkpoints):
    for step in (10, 20):
        save_at(checkpoints, model, step, val_accuracy=0.5)
    harm, words = DAMAGES[damage]
    harm(checkpoints.path / "step-00000020")
    told = []
    assert checkpoints.newest(told.append) == 10
    (line,) = told
    assert "step-00000020 is damaged" in line and words in line and "going back" in line
    save_at(checkpoints, model, 30, val_accuracy=0.5)  # what is damaged does not stop the run either
    assert checkpoints.newest(told.append) == 30


def test_where_all_are_damaged_or_there_is_none_there_is_nothing_to_go_on_from(model, checkpoints):
    assert checkpoints.newest() is None and checkpoints.best_step() is None
    save_at(checkpoints, model, 10)
    flip_a_bit(checkpoints.path / "step-00000010")
    told = []
    assert checkpoints.newest(told.append) is None
    assert len(told) == 1


def test_a_damaged_checkpoint_is_written_anew(model, checkpoints):
    for step in (10, 20):
        save_at(checkpoints, model, step)
    flip_a_bit(checkpoints.path / "step-00000020")
    save_at(checkpoints, model, 20)
    told = []
    assert checkpoints.newest(told.append) == 20 and not told


@pytest.mark.parametrize("largest, kept", [(True, [20, 40, 50]), (False, [30, 40, 50])])
def test_the_newest_two_and_the_best_are_kept(largest, kept, model, tmp_path):
    checkpoints = Checkpoints(tmp_path, "val_loss", largest)
    for step, value in zip((10, 20, 30, 40, 50), (0.5, 0.9, 0.1, 0.3, 0.4)):
        save_at(checkpoints, model, step, val_loss=value)
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == kept
    assert checkpoints.best_step() == kept[0]
    assert checkpoints.newest() == 50


def test_the_later_of_two_equally_good_is_the_best(model, checkpoints):
    for step in (10, 20):
        save_at(checkpoints, model, step, val_accuracy=0.5)
    assert checkpoints.best_step() == 20


def test_checkpoints_that_were_not_evaluated_are_not_the_best(model, checkpoints):
    save_at(checkpoints, model, 10, val_accuracy=0.1)
    for step in (20, 30, 40):
        save_at(checkpoints, model, step, loss=0.0)
    assert checkpoints.best_step() == 10
    assert len([*checkpoints.path.iterdir()]) == 3


@pytest.mark.parametrize("largest", [True, False])
def test_a_checkpoint_with_a_score_of_nan_is_neither_the_best_nor_the_newest(largest, model, tmp_path):
    checkpoints = Checkpoints(tmp_path, "val_loss", largest)
    save_at(checkpoints, model, 10, val_loss=0.5)
    for step, bad in ((20, np.nan), (30, np.inf), (40, -np.inf)):
        save_at(checkpoints, model, step)
        change_manifest(tmp_path / f"step-{step:08d}", metrics={"val_loss": bad})
    assert checkpoints.best_step() == 10 and checkpoints.newest(lambda line: None) == 10
    save_at(checkpoints, model, 50)
    assert checkpoints.best_step() == 10 and checkpoints.newest() == 50


def variable_of_optimizer(model):
    return model.optimizer.variables[-1]


def weight(model):
    return model.weights[-1]


@pytest.mark.parametrize("variable_of", [None, variable_of_optimizer, weight])
def test_a_state_that_is_not_finite_is_not_saved(variable_of, checkpoints):
    model = made()
    save_at(checkpoints, model, 10, val_accuracy=0.5)
    for number in (np.nan, np.inf, -np.inf):
        if variable_of:
            variable = variable_of(model)
            values = np.array(variable.numpy())
            values.flat[0] = number
            variable.assign(values)
        with pytest.raises(ValueError, match=f" is {number} at step 20, so the run has diverged"):
            save_at(checkpoints, model, 20, val_accuracy=0.9 if variable_of else number)
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000010"]


def test_a_full_disk_leaves_nothing_partial_and_what_there_was(model, checkpoints, monkeypatch):
    save_at(checkpoints, model, 10)

    def full(path, **values):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", full)
        with pytest.raises(OSError, match="step-00000020' cannot be written: No space left on device$"):
            save_at(checkpoints, model, 20)
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-00000010"]
    assert checkpoints.newest() == 10


def test_what_a_killed_run_left_half_written_is_not_taken_and_removed(model, checkpoints):
    save_at(checkpoints, model, 10)
    killed = checkpoints.path / ".writing-killed"
    shutil.copytree(checkpoints.path / "step-00000010", killed / "step-00000020")
    os.utime(killed, (0, 0))
    assert checkpoints.newest() == 10
    save_at(checkpoints, model, 20)
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize(
    "options, words",
    [({"num_layers": 2}, "is of another model; it differs in"), ({"mlp_dim": 24}, "has shape .*, wanted")],
    ids=["more layers", "other sizes"],
)
def test_another_models_checkpoint_is_refused(options, words, model, checkpoints):
    save_at(checkpoints, model, 10)
    with pytest.raises(ValueError, match=words):
        checkpoints.restore(made(**options), 10)


@pytest.mark.parametrize("recipe", RECIPES)
def test_how_large_a_checkpoint_is_is_known_before(recipe, checkpoints):
    model = made(recipe, hidden_size=96, mlp_dim=200)
    checkpoints.save(model, {})
    size = (checkpoints.path / "step-00000000" / "values.npz").stat().st_size
    assert checkpoints.bytes_of(model) == pytest.approx(size, rel=0.15)
