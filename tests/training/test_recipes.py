import dataclasses
import json

import pytest
from made.tables import by_table

from keras_vit.training import RECIPES, Recipe
from keras_vit.training.recipes import PROVENANCE, SIZES

SHORT = Recipe("sgd", 0.1, total_steps=100, warmup_steps=30, batch_size=8)


@pytest.mark.parametrize(
    "changes, warmup",
    [({"total_steps": 50}, 15), ({"total_steps": 50, "warmup_steps": 2}, 2), ({"base_lr": 1.0}, 30)],
)
def test_the_warm_up_scales_with_the_total_steps(changes, warmup):
    assert SHORT.with_changes(**changes).warmup_steps == warmup
    assert SHORT.warmup_steps == 30


WRONG = {
    **dict.fromkeys(("momentum", "ema", "label_smoothing", "dropout_rate", "patch_dropout_rate"), [1.0]),
    **dict.fromkeys(
        ("clip_norm", "accumulation_steps", "train_samples", "eval_every", "checkpoint_every"), [0]
    ),
    **{"base_lr": [0, "0.1", True], "total_steps": [0, 1.5], "batch_size": [0, "8"], "layer_decay": [0, 1.5]},
    **{"warmup_steps": [-1], "seed": [-1], "split_seed": [-1, 0.5], "weight_decay": [-0.1, None]},
    **{"stochastic_depth_rate": [-0.1], "class_weights": ["even", (1, -1), 2], "head_bias": ["-10"]},
    **{"optimizer": ["adam"], "accumulator_dtype": ["float16"], "dtype": ["float16"], "remat": [1]},
    **{"task": ["labels"], "loss": ["hinge"], "freeze": [9], "model": ["B/16"], "mixup": [1.5]},
    **{"patch_sizes": [8, (8,), (8, 8), (0, 8)], "crop_area": [0.5, (0.5, 0.1)]},
}


@by_table("name", WRONG)
def test_a_value_that_is_not_allowed_is_refused(name):
    for value in WRONG[name]:
        with pytest.raises(ValueError) as refused:
            SHORT.with_changes(**{name: value})
        message = str(refused.value)
        assert message.startswith(f"{name} must be") and f"; got {value!r}" in message


@by_table(
    "changes, words",
    [
        ({"weight_decay": 0.3}, "weight_decay needs the optimizer 'adamw' or 'muon'; got 0.3 for 'sgd'"),
        ({"beta_2": 0.5}, "beta_2 needs the optimizer 'adamw' or 'muon'; got 0.5 for 'sgd'"),
        ({"optimizer": "muon", "momentum": 0.1}, "momentum needs the optimizer 'sgd'; got 0.1 for 'muon'"),
        (
            {"optimizer": "adamw", "accumulator_dtype": "bfloat16"},
            "needs the optimizer 'sgd'; got 'bfloat16'",
        ),
        ({"task": "multi_label", "label_smoothing": 0.1}, "need single labels; got task 'multi_label'"),
        ({"task": "regression", "class_weights": "balanced"}, "need single labels; got task 'regression'"),
        ({"task": "regression", "cutmix": 0.1}, "need single labels; got task 'regression'"),
        ({"task": "segmentation", "randaugment": (2, 0.5)}, "with which they move; got randaugment"),
        ({"eval_every": 20, "checkpoint_every": 30}, "checkpoint_every must divide .*; got 30 and 20"),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        SHORT.with_changes(**changes)


def test_another_optimizer_has_none_of_the_fields_that_it_does_not_use():
    adamw = RECIPES["finetune"].with_changes(optimizer="adamw", weight_decay=0.1, beta_2=0.95)
    assert (adamw.accumulator_dtype, adamw.weight_decay, adamw.beta_2) == (None, 0.1, 0.95)
    assert adamw.with_changes(optimizer="muon") == dataclasses.replace(adamw, optimizer="muon")
    sgd = adamw.with_changes(optimizer="sgd", accumulator_dtype="bfloat16")
    assert sgd == RECIPES["finetune"]


def test_there_is_a_checkpoint_with_every_evaluation_unless_there_are_more():
    assert SHORT.with_changes(eval_every=20).checkpoint_steps == 20
    assert SHORT.with_changes(eval_every=20, checkpoint_every=5).checkpoint_steps == 5


@by_table(
    "changes, every",
    [
        ({}, (400, 100)),
        ({"total_steps": 300}, (300, 100)),
        ({"total_steps": 250}, (250, None)),
        ({"total_steps": 300, "eval_every": 500}, (500, 100)),
        ({"total_steps": 300, "checkpoint_every": 200}, (400, 200)),
    ],
)
def test_a_run_is_evaluated_at_its_end_at_the_latest(changes, every):
    recipe = dataclasses.replace(SHORT, total_steps=1000, eval_every=400, checkpoint_every=100)
    recipe = recipe.with_changes(**changes)
    assert (recipe.eval_every, recipe.checkpoint_every) == every


def test_hyperparameters_are_json_and_exclude_provenance():
    for recipe in RECIPES.values():
        found = recipe.hyperparameters()
        assert {*found} == {field.name for field in dataclasses.fields(Recipe)} - {*PROVENANCE}
        json.dumps(found, allow_nan=False)
        assert recipe.with_changes(source="", cost="else", result="else").hyperparameters() == found
        assert recipe.with_changes(seed=recipe.seed + 1).hyperparameters() != found


@by_table(
    "images, changes, sizes",
    [
        (81, {}, (16, 200, 40, 50)),
        (4, {}, (8, 100, 20, 50)),
        (5760, {}, (512, 400, 80, 50)),
        (5761, {}, (512, 500, 100, 100)),
        (81, {"batch_size": 32}, (32, 100, 20, 50)),
        (81, {"total_steps": 60}, (16, 60, 12, 50)),
        (81, {"warmup_steps": 3, "eval_every": 7}, (16, 200, 3, 7)),
    ],
)
def test_a_recipe_is_sized_for_the_number_of_images_except_for_given_fields(images, changes, sizes):
    recipe = RECIPES["finetune"].sized_for(images, **changes)
    assert tuple(getattr(recipe, name) for name in SIZES) == sizes
    others = {name: value for name, value in recipe.hyperparameters().items() if name not in SIZES}
    assert others == {n: v for n, v in RECIPES["finetune"].hyperparameters().items() if n not in SIZES}
