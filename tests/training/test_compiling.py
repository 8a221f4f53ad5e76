import types

import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.small import NEWER, small

from keras_vit.training import RECIPES, Recipe, RunConfig, SigmoidCrossEntropy, compile_model, freeze
from keras_vit.training.compiling import COMPILED, compile_by

PATCHES = RunConfig("digits", RECIPES["masked_patch"], "mu/8", objective="masked_patch")


def trainable(model):
    return {variable.path for variable in model.trainable_variables}


def test_any_model_whose_outputs_are_logits_can_be_compiled():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    compile_model(model, total_steps=10)
    model.train_on_batch(np.zeros((4, 4)), np.zeros(4))
    assert int(model.optimizer.iterations) == 1
    with pytest.raises(ValueError, match="accumulation_steps=2 needs a .*DistributedModel; got a Sequential"):
        compile_model(model, accumulation_steps=2)


def test_the_recipe_that_was_used_is_returned():
    model = small(num_layers=1)
    recipe = compile_model(model, "finetune", total_steps=50, label_smoothing=0.2, steps_per_execution=3)
    assert recipe == RECIPES["finetune"].with_changes(total_steps=50, label_smoothing=0.2)
    assert model.loss.label_smoothing == 0.2 and model.steps_per_execution == 3
    assert model.optimizer.get_config()["learning_rate"]["config"]["total_steps"] == 50
    recipe = compile_model(model, epochs=5, steps_per_epoch=40)
    assert (recipe.total_steps, recipe.warmup_steps) == (200, 40)
    assert compile_model(model, epochs=5, steps_per_epoch=2, total_steps=10).total_steps == 10
    own = Recipe("sgd", 0.5, total_steps=4, warmup_steps=0, batch_size=2)
    assert compile_model(model, own) == own
    assert float(model.optimizer.learning_rate) == 0.5


@pytest.mark.parametrize(
    "trained, named, loss",
    [
        ("multi_label", None, "SigmoidCrossEntropy"),
        ("regression", None, "SquaredError"),
        ("multi_label", "single_label", "SoftmaxCrossEntropy"),
        (None, "regression", "SquaredError"),
        (None, PATCHES.task, "SparseCategoricalCrossentropy"),
    ],
)
def test_the_loss_is_that_of_the_models_task_unless_it_is_named(trained, named, loss):
    model = small(num_layers=1, task=trained)
    compile_model(model, task=named, total_steps=4)
    assert type(model.loss).__name__ == loss


def test_a_classifier_keeps_the_task_that_is_named():
    model = small(num_layers=1)
    compile_model(model, total_steps=4)
    assert model.task is None
    compile_model(model, total_steps=4, task="multi_label")
    assert model.task == "multi_label"
    photo = np.zeros((16, 16, 3), "uint8")
    expected = 1 / (1 + np.exp(-model.predict_on_batch(model.preprocessing(photo))[0]))
    assert dict(model.classify(photo)[0]) == pytest.approx(dict(zip("01234", expected)), rel=1e-5)


def test_softmax_of_one_class_is_refused():
    model = small(num_layers=1, num_classes=1)
    with pytest.raises(ValueError, match="^expected at least 2 classes for softmax, .*; got 1: use the task"):
        compile_model(model, total_steps=4)
    compile_model(model, total_steps=4, loss="sigmoid")


def test_a_model_of_raw_images_is_compiled_as_the_model_in_it():
    model = small(num_layers=1, task="regression", pretraining="self_supervised", dtype="mixed_float16")
    whole = model.with_preprocessing()
    with pytest.warns(UserWarning, match="probe_first expects a fitted head"):
        model.get_layer("head").kernel.assign(np.zeros((12, 5)))
        recipe = compile_model(whole, total_steps=4)
    assert recipe.layer_decay and type(whole.loss).__name__ == "SquaredError"
    compile_model(whole, "finetune", freeze="encoder_block_0", total_steps=4)
    assert {path.split("/")[0] for path in trainable(model)} == {"encoder_norm", "head"}
    freeze(whole)
    assert trainable(whole) == {"head/kernel", "head/bias"}


def test_a_recipe_of_another_task_than_the_models_is_refused():
    recipe = RECIPES["finetune"].with_changes(task="multi_label")
    with pytest.raises(ValueError, match="^expected the task 'regression' for a Vis.*; got 'multi_label'$"):
        compile_model(small(num_layers=1, task="regression"), recipe)


UNUSED = "^compile_model does not use {}: expected opt"


@by_table(
    "options, message",
    [
        ({"epochs": 0, "steps_per_epoch": 4}, "as positive ints; got epochs=0"),
        ({"epochs": 5, "steps_per_epoch": 4, "total_steps": 500}, "= 20; got 500 with epochs=5"),
        ({"class_weights": "balanced"}, UNUSED.format("class_weights")),
        ({"mixup": 0.8, "dropout_rate": 0.5}, UNUSED.format("mixup, dropout_rate")),
        ({"patch_sizes": (4, 8)}, UNUSED.format("patch_sizes")),
        ({"dtype": "auto"}, UNUSED.format("dtype")),
    ],
)
def test_numbers_of_steps_that_do_not_fit_and_fields_of_no_compiled_model_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compile_model(small(num_layers=1), "finetune", **options)


def test_the_fields_of_a_compiled_model_are_those_that_compiling_reads():
    """A recipe without the others compiles a model."""
    recipe = RECIPES["finetune"].with_changes(total_steps=4)
    fields = {name: getattr(recipe, name) for name in (*COMPILED, "task")}
    compile_by(small(num_layers=1), types.SimpleNamespace(**fields))
    compile_model(small(num_layers=1), "finetune", **{name: fields[name] for name in COMPILED})


@pytest.mark.parametrize("name", NEWER)
def test_a_linear_probe_of_newer_families_trains_what_follows_the_last_block(name):
    model = small(**NEWER[name])
    freeze(model)
    norm = {"pooled_norm/gamma", "pooled_norm/beta"} if name == "EVA-02-B" else set()
    assert trainable(model) == {"head/kernel", "head/bias"} | norm
    model = small(**NEWER[name])
    freeze(model, "encoder_block_0")
    parts = {path.split("/")[0] for path in trainable(model)}
    assert parts == {"encoder_block_1", "pooled_norm" if norm else "encoder_norm", "head"}


def test_a_recipe_trains_again_what_an_earlier_one_froze():
    model = small()
    model.get_layer("encoder_block_0").mlp.trainable = False
    model.get_layer("encoder_block_1").attention.query.bias.trainable = False
    model.get_layer("head").bias.trainable = False
    before = trainable(model)
    after_block_0 = {path for path in before if path.startswith(("encoder_block_1", "encoder_norm", "head"))}

    def trained_by(name, **changes):
        compile_model(model, name, probe_first=False, **changes)
        return trainable(model)

    assert trained_by("linear_probe") == trained_by("linear_probe") == {"head/kernel"}
    assert trained_by("finetune", freeze="encoder_block_0") == after_block_0
    assert trained_by("finetune") == before
    trained_by("linear_probe")
    freeze(model, "encoder_block_0")
    assert trained_by("finetune") == trained_by("finetune") == after_block_0
    trained_by("linear_probe")
    compile_model(model.with_preprocessing(), "finetune")
    assert trainable(model) == after_block_0
    trained_by("linear_probe")
    model.enable_lora(2)
    adapted = trainable(model)
    assert trained_by("finetune") == adapted != after_block_0


def test_frozen_blocks_stay_frozen_in_a_file(tmp_path):
    model = small(num_layers=2)
    compile_model(model, freeze="encoder_block_0", total_steps=2)
    assert {path.split("/")[0] for path in trainable(model)} == {"encoder_block_1", "encoder_norm", "head"}
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert trainable(again) == trainable(model)


def test_a_recipe_sets_loss_micro_batches_seed_and_remat():
    model = small()
    compile_model(model, "finetune", loss="sigmoid", accumulation_steps=4, seed=7, remat=True)
    assert isinstance(model.loss, SigmoidCrossEntropy)
    assert (model.accumulation_steps, model.random_seed) == (4, 7)
    assert [model.get_layer(f"encoder_block_{i}").remat for i in (0, 1)] == [True, True]
    compile_model(model, "finetune")
    assert [model.get_layer(f"encoder_block_{i}").remat for i in (0, 1)] == [False, False]
