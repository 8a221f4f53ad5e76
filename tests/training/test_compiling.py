import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.comparing import arrays
from reference.small import images_for, small

from keras_vit import VisionTransformer
from keras_vit.training import RECIPES, Recipe, SigmoidCrossEntropy, compile_model, freeze


def labelled(model, count=16):
    labels = np.arange(count) % 5
    shades = np.linspace(-0.8, 0.8, 5)[labels].reshape(-1, 1, 1, 1)
    return (0.1 * images_for(model, count) + shades).astype("float32"), labels


@pytest.mark.parametrize("recipe", ["digits", *["finetune", "augreg"] * ("FULL" in os.environ)])
def test_fit_learns_by_a_recipe(recipe):
    model = small(num_layers=1)
    images, labels = labelled(model)
    compile_model(model, recipe, total_steps=60, base_lr=0.01)
    before = model.evaluate(images, labels, verbose=0, return_dict=True)["loss"]
    steps = np.tile(images, (60, 1, 1, 1)), np.tile(labels, 60)
    model.fit(*steps, batch_size=16, shuffle=False, verbose=0)
    after = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert after["loss"] < 0.7 * before
    assert after["accuracy"] >= 0.8


# Keras makes a tf.data pipeline of arrays.
@pytest.mark.parametrize("as_dataset", [True, *[False] * ("FULL" in os.environ)], ids=str)
def test_class_numbers_and_one_hot_labels_train_the_same(as_dataset):
    found = []
    for one_hot in (False, True):
        model = small(num_layers=1)
        compile_model(model, "digits", total_steps=2)
        images, labels = labelled(model)
        data = (images, np.eye(5, dtype="float32")[labels] if one_hot else labels)
        fit = {"shuffle": False, "verbose": 0}
        if as_dataset:
            history = model.fit(tf.data.Dataset.from_tensor_slices(data).batch(8), **fit)
        else:
            history = model.fit(*data, batch_size=8, **fit)
        found.append((arrays(model), history.history))
    (numbers, history), (rows, rows_history) = found
    assert history == rows_history
    for path in numbers:
        np.testing.assert_array_equal(numbers[path], rows[path])


@pytest.mark.parametrize("one_hot", [False, True])
def test_accuracy_is_the_share_of_images_whose_largest_logit_is_the_label(one_hot):
    model = small(num_layers=1)
    compile_model(model, total_steps=10)
    images, labels = labelled(model)
    expected = np.mean(model.predict(images, verbose=0).argmax(-1) == labels)
    found = model.evaluate(images, np.eye(5)[labels] if one_hot else labels, verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(expected)


def test_any_model_that_puts_out_logits_can_be_compiled():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    compile_model(model, total_steps=10)
    model.fit(np.zeros((4, 4)), np.zeros(4), verbose=0)
    assert int(model.optimizer.iterations) == 1


def test_a_compiled_model_says_what_it_was_compiled_with():
    model = small(num_layers=1)
    recipe = compile_model(model, "finetune", total_steps=50, label_smoothing=0.2)
    assert recipe == RECIPES["finetune"].with_changes(total_steps=50, label_smoothing=0.2)
    assert model.loss.label_smoothing == 0.2
    assert model.optimizer.get_config()["learning_rate"]["config"]["total_steps"] == 50


def test_a_recipe_of_ones_own_can_be_given():
    recipe = Recipe("sgd", 0.5, total_steps=4, warmup_steps=0, batch_size=2)
    model = small(num_layers=1)
    assert compile_model(model, recipe) is not None
    assert float(model.optimizer.learning_rate) == 0.5


def test_epochs_and_their_steps_stand_for_the_total():
    recipe = compile_model(small(num_layers=1), epochs=5, steps_per_epoch=40)
    assert (recipe.total_steps, recipe.warmup_steps) == (200, 40)
    assert compile_model(small(num_layers=1), epochs=5, steps_per_epoch=2, total_steps=10).total_steps == 10


@pytest.mark.parametrize(
    "options, message",
    [
        ({"epochs": 5}, "given together, as positive ints; got epochs=5 and steps_per_epoch=None"),
        ({"steps_per_epoch": 5}, "given together.*; got epochs=None"),
        ({"epochs": 2.5, "steps_per_epoch": 4}, "as positive ints; got epochs=2.5"),
        ({"epochs": 0, "steps_per_epoch": 4}, "as positive ints; got epochs=0"),
        (
            {"epochs": 5, "steps_per_epoch": 4, "total_steps": 500},
            "total_steps must be epochs × steps_per_epoch = 20; got 500 with epochs=5",
        ),
    ],
)
def test_epochs_and_steps_that_contradict_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compile_model(small(num_layers=1), **options)


@pytest.mark.parametrize(
    "arguments, message",
    [(("tune",), "recipe 'tune' is unknown"), (("finetune", {"lr": 1}), "a recipe has no lr; its fields")],
)
def test_what_is_unknown_is_refused(arguments, message):
    recipe, options = (*arguments, {})[:2]
    with pytest.raises(ValueError, match=message):
        compile_model(small(num_layers=1), recipe, **options)


def trainable(model):
    return {variable.path for variable in model.trainable_variables}


def test_a_linear_probe_trains_the_head_alone():
    model = small(num_layers=1)
    compile_model(model, "linear_probe", total_steps=1, warmup_steps=0)
    assert trainable(model) == {"head/kernel", "head/bias"}
    before = arrays(model)
    model.fit(*labelled(model), verbose=0)
    changed = {path for path, value in arrays(model).items() if (value != before[path]).any()}
    assert changed == {"head/kernel", "head/bias"}


def test_blocks_before_the_last_ones_can_be_frozen(tmp_path):
    model = small(num_layers=2)
    compile_model(model, freeze="encoder_block_0", total_steps=2)
    model.total_steps = None  # of two calls of `fit`
    first = {path.split("/")[0] for path in trainable(model)}
    assert first == {"encoder_block_1", "encoder_norm", "head"}
    images, labels = labelled(model)
    model.fit(images, labels, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert trainable(again) == trainable(model)
    for one in (model, again):
        one.fit(images, labels, shuffle=False, verbose=0)
    for path, array in arrays(model).items():
        np.testing.assert_array_equal(arrays(again)[path], array)


def test_a_layer_to_freeze_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(
        ValueError, match="no layer 'encoder_block_9' to freeze up to; it has .*encoder_block_1"
    ):
        freeze(small(), "encoder_block_9")


def test_a_recipe_sets_loss_micro_batches_seed_and_remat():
    model = small()
    compile_model(model, "finetune", loss="sigmoid", accumulation_steps=4, seed=7, remat=True)
    assert isinstance(model.loss, SigmoidCrossEntropy)
    assert (model.accumulation_steps, model.random_seed) == (4, 7)
    assert [model.get_layer(f"encoder_block_{i}").remat for i in (0, 1)] == [True, True]
    compile_model(model, "finetune")
    assert [model.get_layer(f"encoder_block_{i}").remat for i in (0, 1)] == [False, False]


def test_steps_per_execution_goes_to_keras():
    model = small(num_layers=1)
    compile_model(model, steps_per_execution=3)
    assert model.steps_per_execution == 3


def test_micro_batches_need_a_model_that_can_take_them():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="accumulation_steps=2 needs a .*DistributedModel; got a Sequential"):
        compile_model(model, accumulation_steps=2)


@pytest.mark.parametrize(
    "task, metric", [("multi_label", "average_precision"), ("regression", "absolute_error")]
)
def test_other_tasks_have_their_loss_and_metric(task, metric):
    model = VisionTransformer(16, 8, 12, 1, 20, 3, num_classes=2)
    compile_model(model, "digits", task=task, label_smoothing=0.0, total_steps=1)
    history = model.fit(images_for(model, 4), np.eye(2, dtype="float32")[[0, 1, 0, 1]], verbose=0).history
    assert {*history} == {"loss", metric}


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="task must be one of 'single_label', .*got 'multilabel'"):
        compile_model(small(num_layers=1), total_steps=2, task="multilabel")
