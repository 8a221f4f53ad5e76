"""Runs of `keras-vit finetune` and `keras-vit pretrain`, with their reports."""

import dataclasses
import functools
import os
import sys

from keras_vit.cli.options import changed_fields, settings
from keras_vit.cli.source import trained_file
from keras_vit.data.datasets import absolute_name
from keras_vit.engine.strategy import is_chief
from keras_vit.messages import printable, redact_url
from keras_vit.reports.run_report import REPORT, summary, write_run_report
from keras_vit.tasks import NAMES, get_task, stored_teachers
from keras_vit.training.named_recipes import DEFAULTS, default_recipe, find_recipe
from keras_vit.training.recipes import SIZES
from keras_vit.training.run import load_data, train
from keras_vit.training.run_config import RunConfig
from keras_vit.training.workdir import stored_recipe
from keras_vit.weights.catalogue import resolve
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.pretraining import of_arguments
from keras_vit.weights.tokenizer import tokenizer_source


def has_sizes(args):
    """Whether the recipe has the sizes of a model, so that none need be given."""
    return args.recipe is not None and find_recipe(args.recipe).with_changes(**settings(args.set)).has_sizes


def train_and_report(args, **options):
    """Train, write the report and print the result.

    Args:
        args: The arguments of `finetune` or `pretrain`.
        options: Further fields of `RunConfig`.
    """
    if args.model and os.path.exists(args.model):
        raise ValueError(f"--model is a variant such as B/16; use keras-vit finetune --weights {args.model}")
    changes = changed_fields(vars(args), ("total_steps", "batch_size", "seed", "dtype"))
    name, reason = (args.recipe, None) if args.recipe else _default_recipe(args, changes, **options)
    config = RunConfig(
        dataset=absolute_name(args.dataset),
        recipe=find_recipe(name).with_changes(**changes),
        model=args.model,
        image_size=args.image_size,
        on_bad_image=args.on_bad_image,
        fields=tuple(args.field),
        classes=args.classes and _absolute(args.classes),
        teachers=tuple(map(_absolute_teacher, args.teacher)),
        tokenizer=args.tokenizer and _absolute_tokenizer(args.tokenizer),
        **options,
    )
    # The report reads the data set that was loaded for the run.
    load = functools.cache(functools.partial(load_data, config, args.data_dir))
    sizes = None
    if args.recipe is None and not {"total_steps", "batch_size"} <= changes.keys():
        config, sizes = _sized(config, name, changes, args.workdir, load)
    workdir, record = train(
        config,
        args.workdir,
        strategy=args.strategy,
        deterministic=args.deterministic,
        dataset=load,
        note="\n".join(filter(None, (reason, sizes))) or None,
        log=args.log,
    )
    try:
        if is_chief(args.strategy) and not (workdir.path / REPORT).exists():
            print(f"writing {REPORT}", flush=True)
            write_run_report(config, workdir, record, load)
    finally:  # The results are printed even if the report cannot be written.
        for path in record["bad_images"]:
            print(f"skipped, unreadable: {printable(path)}")
        print(f"{summary(record)}; results are in {workdir.path}, see {REPORT}")


_LEARNED_FROM = {"supervised": "labels", "self_supervised": "images alone", "image_text": "images with texts"}


def _default_recipe(args, changes, weights=None, sha256=None, **_):
    """Return the name of the recipe by what the weights learned from, and a line that says so.

    A run that has begun keeps its recipe. Without a head on the encoder's output, `changes` get no probe.
    """
    reason = None
    if stored := stored_recipe(args.workdir):
        name = max(sorted({*DEFAULTS.values()}), key=lambda name: _agreement(find_recipe(name), stored))
    elif weights is None:
        name = DEFAULTS[None]
    else:
        learned_from = of_arguments(read_checkpoint(weights, sha256=sha256).arguments)
        name = default_recipe(learned_from, redact_url(weights))
        learned_from = _LEARNED_FROM[learned_from]
        reason = f"recipe {name}, since the weights learned from {learned_from}; --recipe selects another"
    has_head = "probe_first" in get_task(changes.get("task", NAMES[0])).recipe_fields
    if find_recipe(name).probe_first and (args.teacher or "image_text" in changes or not has_head):
        changes.setdefault("probe_first", False)
    return name, reason


def _agreement(recipe, stored):
    """Return the number of fields of a recipe that have the values of config.json."""
    return sum(stored.get(name) == value for name, value in recipe.hyperparameters().items())


def _sized(config, name, changes, workdir, load):
    """Return the configuration with the workdir's sizes, or sizes that fit the data, and a note."""
    if stored := stored_recipe(workdir):
        sizes = {name: stored[name] for name in SIZES if name in stored}
        return dataclasses.replace(config, recipe=config.recipe.with_changes(**sizes | changes)), None
    images = min(len(load().split("train")), config.recipe.train_samples or sys.maxsize)
    recipe = find_recipe(name).sized_for(images, **changes)
    epochs = recipe.total_steps * recipe.batch_size / images
    note = (
        f"{name}: {images} images, batch size {recipe.batch_size}, {recipe.total_steps} steps "
        f"(≈ {epochs:.0f} epochs); set --total_steps and --batch_size to change"
    )
    return dataclasses.replace(config, recipe=recipe), note


def absolute_weights(weights):
    """Return the absolute path, from which a run continues in any folder; a URL or name unchanged."""
    return weights if "://" in resolve(weights) else _absolute(trained_file(weights))


def _absolute_teacher(source):
    """As `absolute_weights`; or embeddings:DIR with an absolute path, which can then be opened."""
    stored = stored_teachers()
    if not stored.is_stored(source):
        return absolute_weights(source)
    return stored.PREFIX + _absolute(source.removeprefix(stored.PREFIX))


def _absolute_tokenizer(tokenizer):
    """Return PATH or PATH:FAMILY with an absolute path; a URL or name unchanged."""
    path, _ = tokenizer_source(tokenizer)
    return tokenizer if "://" in os.fspath(resolve(path)) else _absolute(tokenizer)


def _absolute(path):
    return os.path.abspath(os.path.expanduser(path))
