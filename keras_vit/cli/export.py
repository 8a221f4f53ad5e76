"""`keras-vit export`: a model in the formats that other software loads, each compared with the live model."""

import pathlib
import re

import keras_vit
from keras_vit import names
from keras_vit.cli import options
from keras_vit.cli.options import non_negative_int, positive_int
from keras_vit.cli.report import encode, report, text_table
from keras_vit.export.tolerance import MARGIN
from keras_vit.messages import spelled
from keras_vit.writing import atomic_write


def add_arguments(add):
    options.model(add, exported=False)
    folder = "folder to write; an existing export only accepts a saved_model with another --version"
    add("--output", required=True, metavar="DIR", help=folder)
    formats = f"of {','.join(names.FORMATS)}"
    add("--formats", type=options.words, default="saved_model,tflite", help=formats)
    options.precisions(add)
    options.dataset(add, required=False)
    split = "split to verify on; int8 and full_int8 are calibrated on train"
    add("--split", default="test", help=split)
    add("--max_images", type=positive_int, default=512, help="at most so many images of the data set")
    margin = "logits by which the live model decides what 8 bits have to keep"
    add("--margin", type=float, default=MARGIN, help=margin)
    options.on_bad_image(add)
    options.task(add)
    options.labels(add)
    add("--representation", action="store_true", help="export feature vectors instead of class scores")
    add("--image_size", type=options.image_size, help=f"{options.SIZE} (default: the model's)")
    options.patch_size(add)
    add("--batch_size", type=positive_int, default=1, help="images in a batch of the LiteRT files")
    add("--integer_io", help="input and output type of LiteRT's full_int8: uint8 or int8 (default: float32)")
    add("--version", type=non_negative_int, default=1, help="number of the SavedModel's folder")
    add("--name", help="of the Hub archive (default: the model's)")
    add("--publisher", default="keras-vit", help="of the Hub archive: lowercase letters, digits and -")
    add("--license", help="of the weights, for the Hub model card: Apache-2.0, …")
    add("--url", metavar="URL", help="URL at which the Hub archive will be published")
    add("--single_file", action="store_true", help="web: put everything into web/index.html")
    side = "web: add a field to draw on, whose drawings are reduced to SIDE×SIDE pixels"
    add("--attention", action="store_true", help="web: show attention rollout over the picture")
    add("--drawing", type=positive_int, metavar="SIDE", help=side)
    fused = "onnx: compute attention by an operation of ONNX Runtime, which is faster for many tokens"
    add("--fused_attention", action="store_true", help=fused)
    options.json(add)


def run(args):
    from keras_vit.cli.labels import with_labels
    from keras_vit.cli.source import open_dataset, open_live, seed_of, task_of
    from keras_vit.models.backbones import image_model

    is_image_part = args.representation and not (args.labels or args.prompts)
    opened_kind = "auto" if is_image_part else "stored"
    opening = {"image_size": args.image_size, "patch_size": args.patch_size}
    opening |= {"trust": args.trust, "sha256": args.sha256}
    if not args.dataset:
        options.refuse_unused(args, options.OF_DATASET, "--dataset")
    model = open_live(args.model, kind=opened_kind, **opening)
    if args.labels or args.prompts:
        model = with_labels(model, args.labels, args.prompts)
    images = image_model(model)
    task = args.task or task_of(args.model, images)
    dataset = None
    if args.dataset:
        dataset = open_dataset(args, images, task, same_classes=not args.representation)
    same = (
        "precisions",
        "representation",
        "split",
        "margin",
        "batch_size",
        "integer_io",
        "version",
        "fused_attention",
    )
    page = ("single_file", "drawing", "attention")
    result = keras_vit.export.export_folder(
        model,
        args.output,
        args.formats,
        task=task,
        dataset=dataset,
        seed=seed_of(args.model, images),
        name=args.name or _name(args.model),
        publisher=args.publisher,
        facts=_facts(args),
        images=args.max_images,
        **{name: getattr(args, name) for name in (*same, *page)},
    )
    folder = pathlib.Path(args.output).expanduser()
    added = (folder / "result.json").exists()  # a version was added to an export
    value = {"model": args.model, **result}
    try:
        report(args, value, summary(result))
    finally:
        file = folder / (f"result-{args.version}.json" if added else "result.json")
        atomic_write(file, encode(value) + "\n")
    if result["failed"]:
        raise ValueError("; ".join(result["failed"].values()))


def summary(found):
    """Return the result of `export_folder` as a table, and the paths of the files.

    >>> row = {"score": 0.9, "agreement": None, "max_logit_difference": 0.0, "mean_logit_difference": 0.0}
    >>> row |= {"bytes": 2048, "ms_batch_1": 1.0, "ms_batch_16": 9.0, "warning": None, "path": "e/m.tflite"}
    >>> row |= {"delegates": {"XNNPACK": "run", "NNAPI": "not run"}}
    >>> found = {"judged": "accuracy", "live": row, "formats": {"tflite": row}, "images": 9, "dataset": None}
    >>> print(summary(found | {"margin": 0.5}))
    format      accuracy  max difference  mean     KiB  ms    ms for 16
    live model  0.9000    0.0e+00         0.0e+00  2    1.00  9.00
    tflite      0.9000    0.0e+00         0.0e+00  2    1.00  9.00
    <BLANKLINE>
    on 9 images of noise; differences are relative to the largest output, times are medians
    tflite on XNNPACK: run
    tflite on NNAPI: not run
      e/m.tflite
    """
    columns = {
        "score": (spelled(found["judged"]), ".4f"),
        "agreement": ("agreement", ".1%"),
        "decided_agreement": ("decided", ".1%"),
        "cosine": ("cosine", ".4f"),
        "max_logit_difference": ("max difference", ".1e"),
        "mean_logit_difference": ("mean", ".1e"),
        "kib": ("KiB", ",.0f"),
        "ms_batch_1": ("ms", ".2f"),
        "ms_batch_16": ("ms for 16", ".2f"),
    }
    measured = {"live model": found["live"], **found["formats"]}
    values = {name: {**row, "kib": row["bytes"] and row["bytes"] / 2**10} for name, row in measured.items()}
    columns = {
        key: column
        for key, column in columns.items()
        if any(row.get(key) is not None for row in values.values())
    }
    rows = []
    for name, row in values.items():
        cells = (
            "-" if row.get(key) is None else format(row[key], form) for key, (_, form) in columns.items()
        )
        rows.append((name, *cells))
    decided = f"decided: the predictions that the live model decides by more than {found['margin']:g} logits"
    tried = {}  # (delegate, whether it was run) → formats
    for name, row in found["formats"].items():
        for delegate in row["delegates"].items():
            tried.setdefault(delegate, []).append(name)
    lines = [
        text_table(rows, ("format", *(title for title, _ in columns.values()))),
        f"\non {found['images']} images of {found['dataset'] or 'noise'}; differences are relative to the "
        "largest output, times are medians",
        *([decided] if "decided_agreement" in columns else []),
        *(f"{name}: {row['warning']}" for name, row in found["formats"].items() if row["warning"]),
        *(f"{', '.join(formats)} on {delegate}: {run}" for (delegate, run), formats in tried.items()),
        *(f"  {row['path']}" for row in found["formats"].values()),
    ]
    return "\n".join(lines)


def _name(source):
    """Return a name for the Hub: of the run's folder, the file or the catalogue's row."""
    path = pathlib.Path(source.rstrip("/"))
    stem = path.parent.resolve().name if path.name == "model.keras" else re.sub(r"\.\w+$", "", path.name)
    return re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).strip("-.") or "vit"


def _facts(args):
    """Return what is known of the weights from the options, the catalogue and the run, without paths."""
    from keras_vit.cli.source import run_of
    from keras_vit.data.datasets import title_of
    from keras_vit.weights.catalogue import find

    trained = run_of(args.model)
    row = find(trained.get("weights") or args.model)
    data = [row and row.pretrained_on, title_of(trained["dataset"]) if trained else None]
    return keras_vit.export.Facts(
        license=args.license or (row and not trained and row.license) or None,
        trained_on=", ".join(filter(None, data)) or None,
        source=row and row.source,
        url=args.url,
    )
