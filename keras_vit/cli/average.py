"""`keras-vit average`: the mean of several models' weights, a model soup."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_vit.cli import options
from keras_vit.cli.report import cell_text, report, text_table
from keras_vit.messages import spelled

METHODS = ("uniform", "greedy")


def add_arguments(add):
    add("models", nargs="+", metavar="RUN", help="workdir of a run, or .keras file; two or more")
    add("--output", required=True, metavar="FILE.keras", help="file to write")
    greedy = "of those that make the score on the validation split no worse"
    methods = f"uniform: mean of all models; greedy: {greedy}"
    add("--method", default=METHODS[0], help=methods)
    proportions = "uniform: each model's part in the mean, in proportion to positive numbers: 0.4,0.6"
    add("--proportions", type=numbers, metavar="NUMBERS", help=f"{proportions} (default: equal)")
    options.dataset(add, required=False)
    seed = "of the split that the models were trained on (default: theirs)"
    add("--seed", type=options.non_negative_int, help=seed)
    options.batch_size(add)
    options.on_bad_image(add)
    options.task(add)
    options.json(add)


def numbers(text):
    """Parse `0.4,0.6` to (0.4, 0.6).

    >>> numbers("3,1")
    (3.0, 1.0)
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas; got {text!r}") from None


def run(args):
    from keras_vit.cli.images import matching
    from keras_vit.weights.soups import ModelFiles, check_weights
    from keras_vit.writing import atomic_path

    args.models = [path for model in args.models for path in matching(model)]
    _check(args)
    check_weights(args.proportions, len(args.models))
    with atomic_path(args.output, overwrite=False) as temporary:
        files = ModelFiles(args.models, args.seed)
        scoring = _scoring(args, files.model) if args.dataset else None
        average = _greedy if args.method == "greedy" else _uniform
        value = {"output": args.output, "method": args.method, "models": average(args, files, scoring)}
        if scoring:  # The model in memory is the soup now.
            value |= {"dataset": args.dataset, "bad_images": [*scoring.dataset.bad_images]}
            value |= {split: scoring.scores(split) for split in ("validation", "test")}
        files.model.save(temporary)
    report(args, value, _text(value, scoring))


class _Scoring(NamedTuple):
    """How a model is scored on a data set.

    Attributes:
        dataset: `Dataset`.
        scores: A function from a split to a dict of scores.
        metric: The most important of them.
        higher_is_better: Whether a higher value of it is better.
    """

    dataset: Any
    scores: Callable
    metric: str
    higher_is_better: bool

    def on_validation(self):
        return self.scores("validation")[self.metric]


def _scoring(args, model):
    """Return the `_Scoring` of a model, whose weights may change, by --dataset."""
    from keras_vit import evaluation
    from keras_vit.cli.source import open_dataset, seed_of, task_of
    from keras_vit.models.backbones import image_model
    from keras_vit.tasks import get_task, pairs

    images, first = image_model(model), args.models[0]
    args.seed = images.split_seed = seed_of(first, images) if args.seed is None else args.seed
    if model.kind == "image_text":
        dataset = open_dataset(args, images, "single_label", texts=True)
        if dataset.captions("validation") is None:
            raise ValueError(f"image-text models are scored on images with captions; got {args.dataset}")

        def recall(split):
            return evaluation.retrieval(model, dataset.split(split), dataset.captions(split), args.batch_size)

        task = pairs()
        return _Scoring(dataset, recall, task.validation_metric, task.higher_is_better)
    task = get_task(args.task or task_of(first, images))
    task.check_model(model)
    dataset = open_dataset(args, model, task.name)

    def scores(split):
        return evaluation.evaluate(model, dataset.split(split), args.batch_size, task)

    return _Scoring(dataset, scores, task.judged_by(model)[0], task.higher_is_better)


def _uniform(args, files, scoring):
    """Make the mean of all models; return a row for each."""
    weights, rows = args.proportions or [1.0] * len(files), []
    for index, name in enumerate(files.names):
        rows.append({"model": name, "weight": weights[index] / sum(weights)})
        if scoring:
            files.average([index])
            rows[-1][f"validation_{scoring.metric}"] = scoring.on_validation()
    files.average(range(len(files)), weights)
    return rows


def _greedy(args, files, scoring):
    """Make the greedy soup; return a row for each model, in the order in which they were tried."""
    from keras_vit.weights.soups import greedy_soup

    _, decisions = greedy_soup(
        files, lambda _: scoring.on_validation(), higher_is_better=scoring.higher_is_better
    )
    score = f"validation_{scoring.metric}"
    return [
        {
            "model": files.names[row["index"]],
            score: row["score"],
            f"{score}_with_it": row["score_with_it"],
            "kept": row["kept"],
        }
        for row in decisions
    ]


def _text(value, scoring):
    """Return the result as tables: of the models, and of the soup's scores."""
    columns = [spelled(name) for name in value["models"][0]]
    rows = [[_cell(cell) for cell in row.values()] for row in value["models"]]
    text = text_table(rows, columns)
    if scoring:
        splits = value["validation"], value["test"]
        rows = [(name, *(cell_text(scores[name]) for scores in splits)) for name in splits[0]]
        rows += [("unreadable image", path, "") for path in value["bad_images"]]
        text += f"\n\n{text_table(rows, ('soup', 'validation', 'test'))}"
    return f"{text}\n\nwrote {value['output']}"


def _cell(value):
    return ("yes" if value else "no") if isinstance(value, bool) else cell_text(value)


def _check(args):
    """Refuse impossible options before anything is read."""
    from keras_vit.rules import one_of

    one_of(METHODS).check("--method", args.method)
    if not args.output.endswith(".keras"):
        raise ValueError(f"expected --output to be a .keras file; got {args.output!r}")
    if args.method == "greedy" and not args.dataset:
        raise ValueError("--method greedy needs --dataset, on whose validation split models are scored")
    if args.method == "greedy" and args.proportions:
        raise ValueError("expected --proportions with --method uniform only; got --method greedy")
    if not args.dataset:
        options.refuse_unused(args, (*options.OF_DATASET, "task"), "--dataset")
