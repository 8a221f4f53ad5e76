"""`keras-vit export`: a model in the formats that others load, each held against the live model."""

import pathlib
import re

from keras_vit.cli.report import introduce, report, table
from keras_vit.cli.source import open_live, run_of, seed_of, task_of
from keras_vit.data.datasets import load_dataset, title_of
from keras_vit.evaluation.predicting import check_classes
from keras_vit.export.folder import export_folder
from keras_vit.export.hub import Facts
from keras_vit.weights.catalogue import find


def run(args):
    model = open_live(args.model, args.image_size, trust=args.trust, sha256=args.sha256)
    task, seed = args.task or task_of(args.model, model), seed_of(args.model, model)
    dataset = None
    if args.dataset:
        dataset = load_dataset(args.dataset, seed, args.on_bad_image, task=task, data_dir=args.data_dir)
        if model.is_classifier and not args.representation:
            check_classes(model, dataset)
        introduce(args, dataset)
    found = export_folder(
        model,
        args.output,
        args.formats,
        precisions=args.precisions,
        task=task,
        representation=args.representation,
        dataset=dataset,
        split=args.split,
        seed=seed,
        images=args.images,
        batch_size=args.batch_size,
        integer_io=args.integer_io,
        version=args.version,
        name=args.name or _name(args.model),
        publisher=args.publisher,
        facts=_facts(args),
    )
    folder = pathlib.Path(args.output).expanduser()
    added = (folder / "result.json").exists()  # a version to what an export has written
    args.output = folder / (f"result-{args.version}.json" if added else "result.json")
    report(args, {"model": args.model, **found}, shown(found))


def shown(found):
    """What `export_folder` found, as a table, and where the files are.

    >>> row = {"score": 0.9, "agreement": None, "max_logit_difference": 0.0, "mean_logit_difference": 0.0}
    >>> row |= {"bytes": 2048, "ms_batch_1": 1.0, "ms_batch_16": 9.0, "warning": None, "path": "e/model.onnx"}
    >>> found = {"judged": "accuracy", "live": row, "formats": {"onnx": row}, "images": 9, "dataset": None}
    >>> print(shown(found))
    format      accuracy  agreement  largest difference  mean     KiB  ms    ms for 16
    live model  0.9000    -          0.0e+00             0.0e+00  2    1.00  9.00
    onnx        0.9000    -          0.0e+00             0.0e+00  2    1.00  9.00
    <BLANKLINE>
    on 9 images of noise; differences are shares of the largest output, times medians
      e/model.onnx
    """
    columns = ("format", found["judged"].replace("_", " "), "agreement", "largest difference", "mean")
    rows = [
        (
            name,
            _shown(row["score"], ".4f"),
            _shown(row["agreement"], ".1%"),
            _shown(row["max_logit_difference"], ".1e"),
            _shown(row["mean_logit_difference"], ".1e"),
            _shown(row["bytes"] and row["bytes"] / 2**10, ",.0f"),
            _shown(row["ms_batch_1"], ".2f"),
            _shown(row["ms_batch_16"], ".2f"),
        )
        for name, row in (("live model", found["live"]), *found["formats"].items())
    ]
    on = f"{found['images']} images of {found['dataset'] or 'noise'}"
    return "\n".join(
        [
            table(rows, (*columns, "KiB", "ms", "ms for 16")),
            f"\non {on}; differences are shares of the largest output, times medians",
            *(f"{name}: {row['warning']}" for name, row in found["formats"].items() if row["warning"]),
            *(f"  {row['path']}" for row in found["formats"].values()),
        ]
    )


def _shown(number, form):
    return "-" if number is None else format(number, form)


def _name(source):
    """A name for the Hub after the model's own: the run's folder, the file or the catalogue's row."""
    path = pathlib.Path(source.rstrip("/"))
    stem = path.parent.resolve().name if path.name == "model.keras" else re.sub(r"\.\w+$", "", path.name)
    return re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).strip("-.") or "vit"


def _facts(args):
    """What is known of the weights: from the arguments, the catalogue, and the run that trained them.

    No path of the user's machine is told.
    """
    trained = run_of(args.model)
    row = find(trained.get("weights") or args.model)
    data = [row and row.pretrained_on, title_of(trained["dataset"]) if trained else None]
    return Facts(
        licence=args.licence or (row and not trained and row.licence) or None,
        trained_on=", ".join(filter(None, data)) or None,
        source=row and row.source,
        url=args.url,
    )
