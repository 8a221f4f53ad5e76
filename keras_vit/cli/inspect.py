"""`keras-vit inspect`: what a model has learned and attends to, as figures and a report."""

import contextlib
import itertools
import json
import os
import pathlib

import numpy as np
from tqdm import tqdm

from keras_vit.cli import run_report
from keras_vit.cli.evaluation_summary import MAX_ROWS, sample_images, summarize, summary_sections
from keras_vit.cli.page import page, table
from keras_vit.cli.predict import images_of, predicted
from keras_vit.cli.report import introduce, print_now, text_table
from keras_vit.cli.run_report import MAX_INSPECTED, REPORT
from keras_vit.cli.source import finished_run, open_live, seed_of, task_of
from keras_vit.cli.views import Subject, check_image, draw_views
from keras_vit.data.datasets import folder_of, load_dataset, title_of
from keras_vit.evaluation.predicting import check_classes
from keras_vit.tasks import TASKS, get_task
from keras_vit.tasks.regression import REGRESSION
from keras_vit.writing import atomic_path

TOP = 5  # classes per image


def run(args):
    paths = [path for argument in args.image for path in images_of(argument)]
    if not paths and not args.dataset:
        raise ValueError("expected images with --image, or a data set with --dataset")
    folder = pathlib.Path(args.output).expanduser()
    with contextlib.ExitStack() as at_end, atomic_path(folder, overwrite=False) as temporary:
        value, files, predictions = _inspect(args, paths)
        encoded = json.dumps(value, indent=2, allow_nan=False)
        # Printed even if the folder cannot be written.
        at_end.callback(print_now, encoded if args.json else _summary(value, predictions))
        temporary.mkdir()
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        (temporary / "result.json").write_text(encoded + "\n")
    if not args.json:
        print_now("\n".join(f"  {folder / name}" for name in (REPORT, "result.json", *value["figures"])))


def _inspect(args, paths):
    """Return the values of result.json, the contents of the files by name, and (path, prediction) as text."""
    model = open_live(args.model, args.image_size, trust=args.trust, sha256=args.sha256)
    task = get_task(args.task or task_of(args.model, model)).name
    blocks = model.num_layers or 0
    if args.block is not None and args.block not in range(-blocks, blocks):
        raise ValueError(f"--block {args.block} is out of range: the model has {blocks} blocks")
    if paths and args.dataset and not model.is_classifier:
        raise ValueError("the model has no head to evaluate; give --image or --dataset, not both")
    value, sections, predictions, files = {"model": args.model}, {}, [], {}
    names = names_of(paths)
    inputs, source = _inputs(model, paths, names), f"{len(paths)} given"
    if paths and model.is_classifier:
        value["images"] = [*predicted(model, paths, task, TOP)]
        sections["Predictions"] = [_prediction_table(model, names, value["images"])]
        predictions = [(found["image"], _words(model, found, 1)) for found in value["images"]]
    names = names[:MAX_INSPECTED]
    if args.dataset:
        samples, class_names = _split(args, model, task)
        split = f"{title_of(args.dataset)}, {args.split}"
        if model.is_classifier:
            folder = folder_of(args.dataset)
            found = summarize(model, samples, task, class_names, args.batch_size, folder=folder)
            evaluated, files = summary_sections(found, split)
            sections |= evaluated
            value |= {"dataset": args.dataset, "split": args.split, **found.scores}
            value |= {"drawn_from": found.total} | ({"classes": found.classes} if found.classes else {})
        if not paths:
            inputs, names = sample_images(model, samples, task, class_names, MAX_INSPECTED)
            source = f"{len(samples)} of {split}"

    views, drawn, arrays, missing = draw_views(Subject(model, inputs, names, args.block))
    sections, files = sections | views, files | drawn
    run, tables = finished_run(args.model), ()
    if run:
        curves, drawn = run_report.curve_sections(run, run_report.run_title(run.config))
        sections, files = sections | curves, files | drawn
        tables = run_report.run_tables(run.config, run.result)
    files = {f"{name}.png": png for name, png in files.items()}
    if "distances" in arrays:
        value["mean_attention_distance"] = arrays["distances"].tolist()
    if "filters" in arrays:
        value["explained_variance"] = arrays["filters"][1].tolist()
    value |= {"looked_at": names, "left_out": missing, "figures": [*files]}
    sections |= run_report.configuration_section(model, *tables, run_report.environment_table())
    words = f"The figures are of {len(names)} of {source} images."
    files[REPORT] = page(f"Inside {run_report.name_of(args.model)}", [words], sections).encode()
    return value, files, predictions


def _inputs(model, paths, names):
    """Return the model inputs of the first images, after checking that the model accepts all."""
    inputs = []
    for path, name in zip(tqdm(paths, "reading", unit="image", delay=2, disable=None), names):
        (image,) = model.preprocessing([path])
        check_image(model, image, name)
        if len(inputs) < MAX_INSPECTED:
            inputs.append(image)
    return inputs


def names_of(paths):
    """Return the shortest ends of paths that are unique, so that a report does not name folders.

    >>> names_of(["a/1.png", "a/2.png"]), names_of(["a/1.png", "b/1.png"])
    (['1.png', '2.png'], ['a/1.png', 'b/1.png'])
    """
    paths = [pathlib.PurePath(os.path.abspath(path)) for path in paths]
    for count in itertools.count(1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len({*names}) == len({*paths}):
            return names


def _split(args, model, task):
    seed = seed_of(args.model, model) if args.seed is None else args.seed
    dataset = load_dataset(args.dataset, seed, args.on_bad_image, task=task, data_dir=args.data_dir)
    samples = dataset.split(args.split)
    if model.is_classifier:
        check_classes(model, dataset)
    introduce(args, dataset)
    names = model.class_names or dataset.class_names
    return samples, names if len(names) == model.num_classes or not model.is_classifier else None


def _prediction_table(model, names, predictions):
    rows = [(name, _words(model, found, TOP)) for name, found in zip(names, predictions[:MAX_ROWS])]
    title = "Predictions" if len(rows) == len(names) else f"The first {len(rows)} of {len(names)} predictions"
    return table(title, ("image", "prediction"), rows)


def _words(model, found, top):
    """Return a prediction as text."""
    if "values" in found:
        return REGRESSION.format_label(found["values"], model.class_names or range(model.num_classes))
    return "; ".join(f"{row['name']} {row['probability']:.1%}" for row in found["classes"][:top])


def _summary(value, predictions):
    """Return the results in a few lines."""
    rows = [(name, value[name]) for name in ("dataset", "split") if name in value]
    if "samples" in value:
        sampled = f" sampled from {value['drawn_from']}" if value["samples"] < value["drawn_from"] else ""
        rows.append(("samples", f"{value['samples']}{sampled}"))
    scores = [task.primary_metric for task in TASKS.values() if value.get(task.primary_metric) is not None]
    rows += predictions + [(name, f"{value[name]:.4f}") for name in scores]
    if "mean_attention_distance" in value:
        distances = ", ".join(f"{x:.1f}" for x in np.mean(value["mean_attention_distance"], axis=1))
        rows.append(("attention distance", f"{distances} pixels, by block"))
    rows.append(("inspected", "; ".join(value["looked_at"])))
    rows += [(f"no {name}", reason) for name, reason in value["left_out"].items()]
    return text_table(rows)
