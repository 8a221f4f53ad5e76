"""`keras-vit inspect`: what a model has learned and looks at, as figures and a page."""

import contextlib
import itertools
import json
import os
import pathlib

import numpy as np
from tqdm import tqdm

from keras_vit.cli.judging import ROWS, drawn_images, judge, judged_sections
from keras_vit.cli.page import Section, Table, page
from keras_vit.cli.predict import images_of, predicted
from keras_vit.cli.report import introduce, print_now, table
from keras_vit.cli.run_report import (
    REPORT,
    configuration,
    environment,
    name_of,
    run_tables,
    run_title,
    trained_sections,
)
from keras_vit.cli.showing import Subject, check_fits, look, view_sections
from keras_vit.cli.source import finished_run, open_live, seed_of, task_of
from keras_vit.data.datasets import folder_of, load_dataset, title_of
from keras_vit.evaluation.predicting import check_classes
from keras_vit.tasks.regression import REGRESSION
from keras_vit.writing import atomic_path

TOP = 5  # classes named of an image
LOOKED_AT = 8  # images whose attention is shown


def run(args):
    images = [path for given in args.image for path in images_of(given)]
    if not images and not args.dataset:
        raise ValueError("nothing to look at: give images with --image, or a data set with --dataset")
    folder = pathlib.Path(args.output).expanduser()
    with contextlib.ExitStack() as at_end, atomic_path(folder, overwrite=False) as writing:
        value, files, said = _inspected(args, images)
        # Printed even if the folder cannot be written.
        at_end.callback(
            print_now, json.dumps(value, indent=2, allow_nan=False) if args.json else _told(value, said)
        )
        writing.mkdir()
        for name, content in files.items():
            (writing / name).write_bytes(content)
        (writing / "result.json").write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    if not args.json:
        print_now("\n".join(f"  {folder / name}" for name in (REPORT, "result.json", *value["figures"])))


def _inspected(args, paths):
    """What was found in numbers, the contents of the files by name, and (path, what the model says of it)."""
    model = open_live(args.model, args.image_size, trust=args.trust, sha256=args.sha256)
    task = args.task or task_of(args.model, model)
    blocks = model.num_layers or 0
    if args.block is not None and args.block not in range(-blocks, blocks):
        raise ValueError(f"--block {args.block} is not there; the model has {blocks} blocks")
    if paths and args.dataset and not model.is_classifier:
        raise ValueError("the model has no head to judge by --dataset; give --image or --dataset, not both")
    value, sections, said, pngs = {"model": args.model}, [], [], {}
    names = names_of(paths)
    inputs = _inputs(model, paths, names)
    of = f"{len(paths)} given"
    if paths and model.is_classifier:
        value["images"] = [*predicted(model, paths, task, TOP)]
        sections.append(_predictions(model, names, value["images"]))
        said = [(found["image"], _says(model, found, 1)) for found in value["images"]]
    names = names[:LOOKED_AT]
    if args.dataset:
        samples, class_names = _split(args, model, task)
        split = f"{title_of(args.dataset)}, {args.split}"
        if model.is_classifier:
            judged = judge(model, samples, task, class_names, args.batch_size, folder=folder_of(args.dataset))
            more, pngs = judged_sections(judged, split)
            sections += more
            value |= {"dataset": args.dataset, "split": args.split, **judged.scores}
            value |= {"drawn_from": judged.total}
            value |= {"classes": judged.classes} if judged.classes else {}
        if not paths:
            inputs, names = drawn_images(model, samples, task, class_names, LOOKED_AT)
            of = f"{len(samples)} of {split}"

    subject = Subject(model, inputs, names, args.block)
    found, missing = look(subject)
    more, drawn = view_sections(subject, found, missing)
    sections += more
    run, tables = finished_run(args.model), ()
    if run:
        more, curves = trained_sections(run, run_title(run.config))
        sections, drawn = sections + more, drawn | curves
        tables = run_tables(run.config, run.result)
    files = {f"{name}.png": png for name, png in (pngs | drawn).items()}
    if "distances" in found:
        value["mean_attention_distance"] = found["distances"].tolist()
    if "filters" in found:
        value["explained_variance"] = found["filters"][1].tolist()
    value |= {"looked_at": names, "left_out": missing, "figures": [*files]}
    lead = f"The images looked at are {len(names)} of {of}."
    sections.append(configuration(model, *tables, environment()))
    files[REPORT] = page(f"Inside {name_of(args.model)}", [lead], sections).encode()
    return value, files, said


def _inputs(model, paths, names):
    """The first images as the model reads them, after all were seen to be images that it can read."""
    inputs = []
    for path, name in zip(tqdm(paths, "reading", unit="image", delay=2, disable=None), names):
        (image,) = model.preprocessing([path])
        check_fits(model, image, name)
        if len(inputs) < LOOKED_AT:
            inputs.append(image)
    return inputs


def names_of(paths):
    """The ends of paths that tell them apart, as a page shows them: no more of where images lie than that.

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
    fits = len(names) == model.num_classes or not model.is_classifier
    return samples, names if fits else None


def _predictions(model, names, predicted):
    rows = [(name, _says(model, found, TOP)) for name, found in zip(names, predicted[:ROWS])]
    title = "Predictions" if len(rows) == len(names) else f"The first {len(rows)} of {len(names)} predictions"
    return Section("Predictions", tables=(Table(title, ("image", "says"), rows),))


def _says(model, found, top):
    """What the model says of an image, in words."""
    if "values" in found:
        return REGRESSION.format_label(found["values"], model.class_names or range(model.num_classes))
    return "; ".join(f"{row['name']} {row['probability']:.1%}" for row in found["classes"][:top])


def _told(value, said):
    """The numbers in a few lines."""
    rows = [(name, value[name]) for name in ("dataset", "split") if name in value]
    if "samples" in value:
        drawn = f" drawn from {value['drawn_from']}" if value["samples"] < value["drawn_from"] else ""
        rows.append(("samples", f"{value['samples']}{drawn}"))
    rows += said
    scores = ("accuracy", "mean_average_precision", "mae")
    rows += [(name, f"{value[name]:.4f}") for name in scores if value.get(name) is not None]
    if "mean_attention_distance" in value:
        blocks = np.mean(value["mean_attention_distance"], axis=1)
        rows.append(("attention distance", f"{', '.join(f'{x:.1f}' for x in blocks)} pixels, by block"))
    rows.append(("looked at", "; ".join(value["looked_at"])))
    rows += [(f"no {name}", reason) for name, reason in value["left_out"].items()]
    return table([(name, str(found)) for name, found in rows], ("", "")).strip()
