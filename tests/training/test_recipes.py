import dataclasses

import pytest

from keras_vit.training import RECIPES, Recipe
from keras_vit.training.optimizers import make_optimizer
from keras_vit.training.recipes import find_recipe

SHORT = Recipe("sgd", 0.1, total_steps=100, warmup_steps=30, batch_size=8)


def test_fine_tuning_has_the_official_numbers():
    recipe = RECIPES["finetune"]
    assert (recipe.optimizer, recipe.momentum, recipe.weight_decay, recipe.clip_norm) == ("sgd", 0.9, 0, 1.0)
    assert (recipe.total_steps, recipe.warmup_steps, recipe.batch_size) == (500, 100, 512)
    assert (recipe.base_lr, recipe.decay, recipe.label_smoothing) == (0.03, "cosine", 0)
    assert (recipe.crop_area, recipe.flip) == ((0.05, 1.0), True)


def test_digits_are_never_mirrored():
    assert RECIPES["digits"].flip is False


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_an_optimizer(name):
    assert make_optimizer(find_recipe(name)).global_clipnorm == 1.0


def test_a_recipe_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SHORT.base_lr = 1.0


def test_changes_make_another_recipe():
    changed = SHORT.with_changes(base_lr=0.5, flip=False)
    assert (changed.base_lr, changed.flip, changed.total_steps) == (0.5, False, 100)
    assert SHORT.base_lr == 0.1


@pytest.mark.parametrize(
    "changes, warmup",
    [({"total_steps": 50}, 15), ({"total_steps": 50, "warmup_steps": 2}, 2), ({"base_lr": 1.0}, 30)],
)
def test_other_total_steps_take_the_warm_up_with_them(changes, warmup):
    assert SHORT.with_changes(**changes).warmup_steps == warmup


def test_unknown_fields_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="a recipe has no lr, steps; its fields are optimizer, base_lr, "):
        SHORT.with_changes(lr=1.0, steps=3)


def test_an_unknown_recipe_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="recipe 'fine' is unknown; choose one of digits, finetune"):
        find_recipe("fine")


WRONG = {
    "optimizer": ["adam"],
    "base_lr": [0, -1.0, "0.1", None, True],
    "total_steps": [0, 1.5, "100"],
    "batch_size": [0, "8"],
    "eval_every": [0, 2.0],
    "warmup_steps": [-1, 0.5, "3"],
    "seed": [-1, "a"],
    "momentum": [1.0, "0.9"],
    "weight_decay": [-0.1, None],
    "label_smoothing": [1.0, "x"],
    "clip_norm": [0, "1"],
    "crop_area": [0.5, (0.5,), (0.0, 1.0), (0.5, 0.2), (0.5, 1.5), "ab", ("a", "b")],
    "shift": [-0.1, 1.5, "0.1"],
    "flip": ["maybe", 1],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_a_value_that_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} .*(must be|is unknown)") as refused:
        SHORT.with_changes(**{name: value})
    assert repr(value) in str(refused.value)


def test_a_number_that_the_optimizer_does_not_use_is_refused():
    with pytest.raises(ValueError, match="weight_decay is of 'adamw'; got 0.3 with 'sgd'"):
        RECIPES["finetune"].with_changes(weight_decay=0.3)
