"""`keras-vit inspect`: what a model has learned and attends to, as figures and a report."""

import contextlib
import pathlib

from keras_vit.cli import options
from keras_vit.cli.report import STDOUT, encode, print_now, report, text_table
from keras_vit.cli.rows import best_of
from keras_vit.messages import spelled
from keras_vit.writing import atomic_path

TOP = 5  # classes per image


def add_arguments(add):
    options.device(add)
    options.model(add)
    several = {"nargs": "+", "action": "extend", "default": []}
    add("--image", **several, metavar="IMAGE", help="image files, or folders")
    options.dataset(add, required=False)
    options.split(add)
    options.on_bad_image(add)
    options.task(add)
    add("--image_size", type=options.image_size, help=f"{options.SIZE} (default: the model's)")
    options.patch_size(add)
    add("--block", type=int, help="block of the heads: 0, 1, …, -1 (default: the last, or the probe)")
    patch = "patches whose similar patches are drawn, from 0,0 (default: three on the diagonal)"
    add("--patch", **several, type=options.patch, metavar="ROW,COLUMN", help=patch)
    add("--output", required=True, metavar="DIR", help="folder to write")
    options.json(add)


def run(args):
    from keras_vit.cli.images import images_of
    from keras_vit.reports.run_report import REPORT

    paths = [path for argument in args.image for path in images_of(argument, urls=True)]
    if not paths and not args.dataset:
        raise ValueError("expected images with --image, or a data set with --dataset")
    if not args.dataset:
        options.refuse_unused(args, options.OF_DATASET, "--dataset")
    folder = pathlib.Path(args.output).expanduser()
    with contextlib.ExitStack() as at_end, atomic_path(folder, overwrite=False) as temporary:
        value, files, predictions = _inspect(args, paths)
        # Printed even if the folder cannot be written.
        at_end.callback(report, args, value, _summary(value, predictions))
        temporary.mkdir()
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        (temporary / "result.json").write_text(encode(value) + "\n")
    if args.json != STDOUT:
        print_now("\n".join(f"  {folder / name}" for name in (REPORT, "result.json", *value["figures"])))


def _inspect(args, paths):
    """Return the values of result.json, the contents of the files by name, and (path, prediction) as text."""
    from keras_vit.cli.images import names_of, shown_names
    from keras_vit.cli.source import finished_run
    from keras_vit.reports import run_report
    from keras_vit.reports.model_views import whole_inputs
    from keras_vit.reports.page import Report
    from keras_vit.reports.run_report import MAX_INSPECTED

    model, task, encoder = _opened(args)
    has_scores = model.is_classifier or task.label.moves
    if has_scores:
        task.check_model(model)
    elif paths and args.dataset:
        raise ValueError("the model has no head to evaluate; give --image or --dataset, not both")
    elif encoder:
        encoder = _of_any_size(args, encoder)
    value, report, predictions = {"model": args.model}, Report(), []
    names, source = names_of(shown_names(paths)), f"{len(paths)} given"
    inputs, resized = [], "Images are shown as the model receives them."
    if encoder:
        inputs, resized = whole_inputs(encoder, paths[:MAX_INSPECTED])
    elif paths:
        inputs = [model.preprocessing([path])[0] for path in paths[:MAX_INSPECTED]]
    if paths and has_scores:
        predictions = _add_predictions(report, value, model, task, paths, inputs, names)
    names = names[:MAX_INSPECTED]
    if args.dataset:
        images, labeled, source_of_set = _add_dataset(args, report, value, model, task, encoder, not paths)
        if not paths:
            names, source = labeled, source_of_set
            inputs, resized = whole_inputs(encoder, images) if encoder else (images, resized)

    if encoder and has_scores and model.preprocessing.crops:
        resized += " Predictions and scores are of cropped images, as the model receives them."
    finished = finished_run(args.model)
    missing = _add_views(args, report, value, encoder, inputs, names, finished)
    if finished:
        run_report.add_curves(report, finished)
        run_report.add_run(report, finished.config, finished.result)
    if encoder:
        run_report.add_configuration(report, encoder)
    value |= {"inspected": names, "left_out": missing, "figures": [*report.figures]}
    introduction = f"The figures are of {len(names)} of {source} images. {resized}"
    text = report.page(f"Inside {run_report.name_of(args.model)}", introduction)
    return value, {**report.figures, run_report.REPORT: text.encode()}, predictions


def _opened(args):
    """Return the model, its task and its encoder; None for that of an exported file."""
    from keras_vit.cli.source import open_live, open_model, task_of
    from keras_vit.export.exported_model import ExportedModel
    from keras_vit.models.backbones import backbone
    from keras_vit.tasks import get_task

    trust = {"trust": args.trust, "sha256": args.sha256}
    # Exports have none of these.
    if args.image_size or args.patch_size or args.patch or args.block is not None:
        model = open_live(args.model, args.image_size, **trust, patch_size=args.patch_size)
    else:
        model = open_model(args.model, **trust)
    task = get_task(args.task or task_of(args.model, model))
    if task.label.moves and model.preprocessing.image_size is None:
        raise ValueError("this model takes images of any size; give --image_size, a size for the figures")
    encoder = None if isinstance(model, ExportedModel) else backbone(model)
    if encoder:
        encoder.check_one_size("inspection")
    blocks = encoder.num_layers or 0 if encoder else 0
    if args.block is not None and args.block not in range(-blocks, blocks):
        raise ValueError(f"--block {args.block} is out of range: the model has {blocks} blocks")
    return model, task, encoder


def _add_predictions(report, value, model, task, paths, inputs, names):
    """Add the predictions for images; (path, prediction) as text."""
    from keras_vit.cli.image_batches import predicted

    value["images"] = [*predicted(task, model, paths, TOP)]
    report.add("Predictions", _prediction_table(task, model, names, value["images"]))
    task.draw_predictions(report, model, inputs, names[: len(inputs)])
    return [(row["image"], _words(task, model, row, 1)) for row in value["images"]]


def _add_dataset(args, report, value, model, task, encoder, is_drawn):
    """Add the evaluation on a data set; the images of samples to draw, their titles, and the sample count."""
    from keras_vit.cli.source import open_dataset
    from keras_vit.data.datasets import folder_of, title_of
    from keras_vit.preprocessing import Preprocessing
    from keras_vit.reports.evaluation_summary import add_evaluation, sample_images
    from keras_vit.reports.run_report import MAX_INSPECTED

    dataset = open_dataset(args, model, task.name)
    samples, split = dataset.split(args.split), f"{title_of(args.dataset)}, {args.split}"
    class_names = model.class_names or dataset.class_names
    if model.is_classifier or task.label.moves:
        value |= {"dataset": args.dataset, "split": args.split}
        class_names = class_names if len(class_names) == model.num_classes else None
        data = samples, task.name, split, class_names, args.batch_size, folder_of(args.dataset)
        value |= add_evaluation(report, model, *data)[0]
    images, titles = [], []
    if is_drawn:
        # A backbone resizes the images itself, from pixels in [0, 1] at their own sizes.
        channels = model.preprocessing.channels
        unchanged = Preprocessing(None, mean=(0,) * channels, std=(1,) * channels)
        preprocessing = unchanged if encoder else model.preprocessing
        images, titles = sample_images(preprocessing, samples, task.name, class_names, MAX_INSPECTED)
    return images, titles, f"{len(samples)} of {split}"


def _add_views(args, report, value, encoder, inputs, names, finished):
    """Add the figures of the encoder; the reasons for those that are left out by their titles."""
    from keras_vit.reports.model_views import Subject, add_views, seen_gray

    if not encoder:
        return {}
    gray = bool(finished) and seen_gray(finished.config, encoder, inputs)
    arrays, missing = add_views(report, Subject(encoder, inputs, names, args.block, tuple(args.patch), gray))
    if "distances" in arrays:
        value["mean_attention_distance"] = arrays["distances"].tolist()
    if "filters" in arrays:
        value["explained_variance"] = arrays["filters"][1].tolist()
    return missing


def _of_any_size(args, model):
    """Return a model without a head for images of any size, or as it is if it has to have one."""
    from keras_vit.cli.source import open_live
    from keras_vit.models.backbones import backbone
    from keras_vit.models.vit.geometry import DYNAMIC_SIZE, is_dynamic

    if args.image_size or is_dynamic(model.image_size):
        return model
    try:
        return backbone(
            open_live(args.model, DYNAMIC_SIZE, args.trust, args.sha256, patch_size=args.patch_size)
        )
    except ValueError:  # of relative positions, for example, or pixels
        return model


def _prediction_table(task, model, names, predictions):
    from keras_vit.reports.evaluation_summary import MAX_ROWS
    from keras_vit.reports.page import table

    rows = [(name, _words(task, model, found, TOP)) for name, found in zip(names, predictions[:MAX_ROWS])]
    title = "Predictions" if len(rows) == len(names) else f"The first {len(rows)} of {len(names)} predictions"
    return table(title, ("image", "prediction"), rows)


def _words(task, model, found, top):
    """Return a prediction as text."""
    if "values" in found:
        return ", ".join(f"{name} {x:.4g}" for name, x in zip(task.value_names(model), found["values"]))
    scores = ([*row.values()][:2] for row in best_of(found)[:top])
    return "; ".join(f"{name} {score:.1%}" for name, score in scores) or "none"


def _summary(value, predictions):
    """Return the results in a few lines."""
    import numpy as np

    from keras_vit.tasks import label_tasks

    rows = [(name, value[name]) for name in ("dataset", "split") if name in value]
    if "samples" in value:
        sampled = f" sampled from {value['drawn_from']}" if value["samples"] < value["drawn_from"] else ""
        rows.append(("samples", f"{value['samples']}{sampled}"))
    metrics = dict.fromkeys(task.primary_metric for task in label_tasks().values())  # Several share "ap".
    scores = [name for name in metrics if value.get(name) is not None]
    rows += predictions + [(spelled(name), f"{value[name]:.4f}") for name in scores]
    if "mean_attention_distance" in value:
        distances = ", ".join(f"{x:.1f}" for x in np.mean(value["mean_attention_distance"], axis=1))
        rows.append(("attention distance", f"{distances} pixels, by block"))
    rows.append(("inspected", "; ".join(value["inspected"])))
    rows += [(f"no {name}", reason) for name, reason in value["left_out"].items()]
    return text_table(rows)
