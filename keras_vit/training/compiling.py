"""A model made ready for `fit` by a recipe."""

from keras_vit.training.losses import SoftmaxCrossEntropy
from keras_vit.training.optimizers import make_optimizer
from keras_vit.training.recipes import Recipe, find_recipe


def compile_model(model, recipe="finetune", **overrides):
    """Set a model's optimizer, schedule, loss and metrics from a recipe.

    Args:
        model: Any `keras.Model` that puts out logits.
        recipe: Name of a recipe, or a `Recipe`.
        **overrides: Fields of the recipe, such as `total_steps` or `base_lr`.

    Returns:
        The Recipe that was used. `model.fit` with integer or one-hot labels is then a run of it.

    Raises:
        ValueError: for an unknown recipe or field.

    Example:
        >>> compile_model(model, "finetune", total_steps=100, base_lr=0.01).warmup_steps
        20

    Source: Dosovitskiy et al. 2021, tables 3 and 4.
    """
    recipe = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    recipe = recipe.with_changes(**overrides)
    model.compile(
        optimizer=make_optimizer(recipe),
        loss=SoftmaxCrossEntropy(recipe.label_smoothing),
        metrics=["accuracy"],
    )
    return recipe
