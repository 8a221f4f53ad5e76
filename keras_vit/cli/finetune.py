"""`keras-vit finetune`: train a model on a data set."""

import os

from _keras_vit_cli import settings
from keras_vit.cli.run_report import REPORT, summary, write_run_report
from keras_vit.cli.source import trained_file
from keras_vit.training.named_recipes import find_recipe
from keras_vit.training.run import RunConfig, train
from keras_vit.training.strategy import is_chief
from keras_vit.weights.catalogue import find


def run(args):
    changes = settings(args.set)
    for name in ("total_steps", "batch_size"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    config = RunConfig(
        dataset=_absolute_folder(args.dataset),
        recipe=find_recipe(args.recipe).with_changes(**changes),
        model=args.model,
        weights=args.weights and _absolute(trained_file(args.weights)),
        image_size=args.image_size,
        on_bad_image=args.on_bad_image,
        objective=args.objective,
        target=args.target,
    )
    workdir, record = train(
        config,
        args.workdir,
        strategy=args.strategy,
        data_dir=args.data_dir,
        deterministic=args.deterministic,
    )
    if is_chief(args.strategy) and not (workdir.path / REPORT).exists():
        write_run_report(config, workdir, record, args.data_dir)
    for path in record["bad_images"]:
        print(f"left out, unreadable: {path}")
    print(f"{summary(record)}; everything is in {workdir.path}, {REPORT} to look at")


def _absolute(path):
    """The whole path, so that a run is known again from elsewhere; an address or name stays as it is."""
    return path if "://" in path or find(path) else os.path.abspath(os.path.expanduser(path))


def _absolute_folder(dataset):
    kind, _, path = dataset.partition(":")
    return f"folder:{_absolute(path)}" if kind == "folder" and path else dataset
