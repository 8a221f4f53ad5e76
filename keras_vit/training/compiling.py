"""Compile a model by a recipe."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import keras

from keras_vit.engine.adapting import parts_of
from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.engine.optimizers import make_optimizer
from keras_vit.layers import EncoderBlock
from keras_vit.messages import did_you_mean
from keras_vit.models.backbones import inner_transformer
from keras_vit.models.preprocessed import prepared_model
from keras_vit.tasks import NAMES, task_of_model
from keras_vit.tasks.task import Task
from keras_vit.training.named_recipes import default_recipe, find_recipe
from keras_vit.training.probing import has_head
from keras_vit.training.recipes import Recipe

# The fields of a recipe that say how a model is compiled. Others are of the model, the data or a run.
COMPILED = (
    *("optimizer", "base_lr", "total_steps", "warmup_steps", "decay", "layer_decay", "clip_norm", "ema"),
    *("momentum", "beta_2", "accumulator_dtype", "weight_decay", "accumulation_steps"),
    *("loss", "label_smoothing", "freeze", "probe_first", "remat", "seed"),
)


def compile_model(
    model: keras.Model,
    recipe: str | Recipe | None = None,
    *,
    task: str | Task | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    weighted_metrics: bool = False,
    **overrides: Any,
) -> Recipe:
    """Set a model's optimizer, schedule, loss and metrics from a recipe.

    Layers that the recipe of an earlier call froze are trained again, unless this one freezes them.

    Args:
        model: Any `keras.Model` whose outputs are logits.
        recipe: Name of a recipe, or a `Recipe`; None: "finetune" for random weights and those that learned
            from labels, "probe_finetune" for others, by the model's option `pretraining`.
        task: The name of a task, or a `keras_vit.tasks.Task`; None: the model's own loss if it has one, and
            otherwise the recipe's task, in place of whose default, "single_label", the model's task is taken.
            A classifier keeps a named task, by which `classify`, files and exports read its outputs.
        epochs, steps_per_epoch: Those of `fit`; their product is `total_steps`.
        weighted_metrics: Whether sample weights also weight the metrics, not only the loss.
        **overrides: Fields of the recipe that say how a model is compiled, such as `total_steps` or
            `base_lr`, and Keras's `steps_per_execution`.

    Returns:
        The Recipe that was used. `model.fit` with integer or one-hot labels then trains by it. One with
        `probe_first` expects a head that `fit_head` has fitted, and warns if it is zero.

    Raises:
        ValueError: for an unknown recipe, a field that is unknown or of the model, the data or a run, no
            recipe if `pretraining` is "unknown", `epochs` without `steps_per_epoch` or the reverse, a
            `total_steps` that is not their product, a task that is not the model's, or micro-batches for a
            model that is not a `DistributedModel`.

    Example:
        >>> compile_model(model, "finetune", epochs=5, steps_per_epoch=20, base_lr=0.01).warmup_steps
        20

    Source: Dosovitskiy et al. 2021, tables 3 and 4.
    """
    inner = prepared_model(model)
    if recipe is None:
        recipe = default_recipe(getattr(inner_transformer(inner), "pretraining", None), "the model")
    recipe = recipe if isinstance(recipe, Recipe) else find_recipe(recipe)
    steps_per_execution = overrides.pop("steps_per_execution", 1)
    recipe = recipe.with_changes(**_with_total_steps(overrides, epochs, steps_per_epoch))
    if unused := [name for name in overrides if name not in COMPILED]:
        raise ValueError(
            f"compile_model does not use {', '.join(unused)}: expected {', '.join(COMPILED)} or "
            "steps_per_execution; give others to the model, the data, fit or keras_vit.training.train"
        )
    if recipe.probe_first and has_head(inner) and not keras.ops.any(inner.get_layer("head").kernel != 0):
        warnings.warn(
            "the recipe's probe_first expects a fitted head, but the model's is zero: call "
            "keras_vit.training.fit_head(model, images, labels) before `fit`",
            stacklevel=2,
        )
    compile_by(model, recipe, task, weighted_metrics, steps_per_execution)
    return recipe


def compile_by(model, recipe, task=None, weighted_metrics=False, steps_per_execution=1):
    """As `compile_model`, by a `Recipe` as it is."""
    options = {"steps_per_execution": steps_per_execution}
    if isinstance(model, DistributedModel):
        options |= {name: getattr(recipe, name) for name in ("accumulation_steps", "seed", "total_steps")}
    elif recipe.accumulation_steps > 1:
        raise ValueError(
            f"accumulation_steps={recipe.accumulation_steps} needs a keras_vit.models.DistributedModel; "
            f"got a {type(model).__name__}: convert it by DistributedModel(model.inputs, model.outputs)"
        )
    _freeze_by(model, recipe)
    for layer in model._flatten_layers():
        if isinstance(layer, EncoderBlock):
            layer.remat = recipe.remat
    if task is None and recipe.task != NAMES[0]:
        task = recipe.task
    inner, is_named = prepared_model(model), isinstance(task, str)
    chosen = task_of_model(inner, task) if task is None or is_named else task
    loss, metrics = chosen.loss(recipe, inner), chosen.metrics(inner)
    if is_named and has_head(inner):
        inner.task = task
    if task is None and isinstance(model, DistributedModel) and model.own_loss is not None:
        loss, metrics = None, []
    model.compile(
        optimizer=make_optimizer(recipe),
        loss=loss,
        **{"weighted_metrics" if weighted_metrics else "metrics": metrics},
        **options,
    )


def _freeze_by(model, recipe):
    """Freeze a recipe's layers, and restore what an earlier recipe froze."""
    _undo_freeze(model)
    layers = _layers_up_to(model, recipe.freeze) if recipe.freeze else ()
    for part in itertools.chain.from_iterable(map(parts_of, layers)):
        part.before_freeze = part.trainable
    for layer in layers:
        layer.trainable = False


def _undo_freeze(model):
    for part in parts_of(model):
        if getattr(part, "before_freeze", None) is not None:
            part.trainable, part.before_freeze = part.before_freeze, None


def _with_total_steps(overrides, epochs, steps_per_epoch):
    if epochs is None and steps_per_epoch is None:
        return overrides
    arguments = f"epochs={epochs!r} and steps_per_epoch={steps_per_epoch!r}"
    if not all(isinstance(number, int) and number > 0 for number in (epochs, steps_per_epoch)):
        raise ValueError(f"expected both epochs and steps_per_epoch, as positive ints; got {arguments}")
    total_steps = epochs * steps_per_epoch
    if overrides.get("total_steps", total_steps) != total_steps:
        raise ValueError(
            f"total_steps must be epochs × steps_per_epoch = {total_steps}; got {overrides['total_steps']!r} "
            f"with {arguments}"
        )
    return {**overrides, "total_steps": total_steps}


def freeze(model: keras.Model, up_to: str = "encoder_norm") -> None:
    """Make a model's first layers untrainable; call it before `compile`.

    It replaces the freeze of a recipe by which `compile_model` compiled the model.

    Args:
        model: A `VisionTransformer`, or any Keras model. Of a model with an `encoder`, or an image tower, the
            layers are its.
        up_to: Name of the last frozen layer: "encoder_block_8" for partial fine-tuning, "encoder_norm" for a
            linear probe; in a model without this norm it stands for the last block. Later layers are not
            changed.

    Raises:
        ValueError: if the model has no such layer.

    Example:
        >>> freeze(model, "encoder_norm")
        >>> [variable.path for variable in model.trainable_variables]
        ['head/kernel', 'head/bias']
    """
    layers = _layers_up_to(model, up_to)
    _undo_freeze(model)
    for layer in layers:
        layer.trainable = False


def _layers_up_to(model, up_to):
    """The first layers of a model, as of `freeze`."""
    layers = inner_transformer(prepared_model(model)).layers
    names = [layer.name for layer in layers]
    if up_to == "encoder_norm" and up_to not in names and "tokens" in names:
        up_to = "tokens"
    if up_to not in names:
        hint = did_you_mean(up_to, names)
        raise ValueError(f"expected a layer of the model, one of {', '.join(names)}; got {up_to!r}{hint}")
    return layers[: names.index(up_to) + 1]
