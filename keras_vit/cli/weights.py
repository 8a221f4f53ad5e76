"""`keras-vit weights show|convert|push`: the contents of a checkpoint, conversion, and upload."""

import keras_vit
from keras_vit import names
from keras_vit.cli import options
from keras_vit.cli.report import report, text_table
from keras_vit.messages import listed
from keras_vit.rules import one_of

# Errors in a file, by the keys of `show_checkpoint`.
_ERRORS = {
    "only_in_file": "only in file",
    "only_in_model": "only in model",
    "wrong_shape": "wrong shape",
    "not_finite": "NaN or infinity",
}


def _add_arguments(add):
    add("source", help=f"{options.CHECKPOINT}, or file.npz:part")
    values = "values that the file lacks or that are changed: num_heads=6, image_size=384"
    options.changes(add, "ARGUMENT", values)
    options.trust(add)
    options.json(add)


def _add_convert_arguments(add):
    _add_arguments(add)
    add("destination", help="file to write (.npz, .safetensors); a folder for huggingface")
    add("--layout", required=True, help=options.either(names.LAYOUTS))
    add("--dtype", default="float32", help=options.either(names.STORED_DTYPES))
    add("--overwrite", action="store_true", help="replace an existing file")


def _add_push_arguments(add):
    _add_arguments(add)
    add("repository", metavar="ORG/NAME", help="repository to create, or to add a commit to")
    layouts = options.either(names.PUSHED_LAYOUTS)
    add("--layout", help=f"{layouts} (default: the first that supports the model)")
    add("--private", action="store_true", help="make a new repository private")
    add("--license", help="of the weights: apache-2.0, … (default: the catalogue's)")
    add("--trained_on", metavar="DATASET", help="in words, or its name on Hugging Face (default: the run's)")


ACTIONS = {
    "show": (_add_arguments, "layout, architecture, parameters, and what is missing or unexpected"),
    "convert": (_add_convert_arguments, "write a checkpoint in another project's layout"),
    "push": (_add_push_arguments, "upload a checkpoint or run to Hugging Face, for transformers or timm"),
}


def run(args):
    return {"show": _show, "convert": _convert, "push": _push}[args.action](args)


def _show(args):
    from keras_vit.models.vit.schema import DEFAULTS

    stored = keras_vit.weights.show_checkpoint(args.source, **_loading(args))
    arguments = dict(stored["arguments"])
    class_names = arguments.pop("class_names", None)
    preprocessing = arguments.pop("preprocessing", None) or {}
    grid = stored["grid"]
    rows = [
        ("file", stored["file"]),
        ("layout", stored["layout"]),
        ("configuration", stored["configuration"] or "none"),
        ("variant", stored["variant"] or "none with a name"),
        ("parameters", f"{stored['parameters']:,}"),
        ("stored as", ", ".join(stored["dtypes"])),
        ("position grid", f"{grid[0]}×{grid[1]}" if grid else "none stored"),
        *((name, value) for name, value in sorted(arguments.items()) if DEFAULTS.get(name, ...) != value),
    ]
    if class_names:
        rows.append(("class names", f"{class_names[0]!r} … {class_names[-1]!r}"))
    if preprocessing:
        rows.append(("preprocessing", ", ".join(f"{name} {value}" for name, value in preprocessing.items())))
    if stored["left_out"]:
        rows.append(("not of the model", listed(stored["left_out"])))
    errors = [(title, listed(stored[name])) for name, title in _ERRORS.items() if stored[name]]
    fits = "no: from_pretrained refuses this file" if errors else "every array and variable"
    rows += [*errors, ("fits", fits)]
    report(args, {**stored, "fits": not errors}, text_table(rows))
    return 2 if errors else 0


def _convert(args):
    from keras_vit.weights.save import files_to_write

    one_of(names.LAYOUTS).check("--layout", args.layout)
    files_to_write(args.destination, args.layout, args.overwrite, "--overwrite")
    model = keras_vit.from_pretrained(args.source, **_loading(args))
    path = keras_vit.save_weights(
        model, args.destination, args.layout, dtype=args.dtype, overwrite=args.overwrite
    )
    value = {"source": str(args.source), "path": str(path), "layout": args.layout, "dtype": args.dtype}
    report(args, value, f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB, {args.layout}, {args.dtype})")


def _push(args):
    from keras_vit.cli.source import trained_file

    model = keras_vit.from_pretrained(trained_file(args.source), **{"kind": "stored", **_loading(args)})
    private = args.private or None
    url = keras_vit.push_to_hub(model, args.repository, layout=args.layout, private=private, **_facts(args))
    report(args, {"source": str(args.source), "url": url}, f"pushed to {url}")


def _loading(args):
    return {"trust": args.trust, "sha256": args.sha256, **options.settings(args.set)}


def _facts(args):
    """Return what is known of the weights: from the options, the catalogue, or the run."""
    from keras_vit.cli.source import finished_run, run_of
    from keras_vit.data.datasets import title_of
    from keras_vit.tasks import get_task
    from keras_vit.weights.catalogue import find

    trained, row = run_of(args.source), find(args.source)
    run = None if args.set else finished_run(args.source)  # its scores are of the unchanged model
    metric = get_task(trained["recipe"].get("task", "single_label")).primary_metric if run else None
    score = run.result.get(f"test_{metric}") if run else None
    data = title_of(trained["dataset"]) if trained else row and row.pretrained_on
    return {
        "license": args.license or (row and row.license),
        "dataset": args.trained_on or data,
        "metrics": None if score is None else {metric: score},
    }
