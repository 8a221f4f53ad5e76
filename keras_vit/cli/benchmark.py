"""`keras-vit benchmark`: speed and peak memory of a model on this machine, live and in each format."""

import os
import pathlib
import tempfile

from keras_vit import names
from keras_vit.cli import options
from keras_vit.cli.device import note_formats
from keras_vit.cli.report import report, text_table

MIB = 2**20


def add_arguments(add):
    options.device(add)
    options.model(add, also="a variant such as B/16 with random weights, ")
    formats = ",".join(["live", *(name for name in names.FORMATS if name != "web")])
    add("--formats", type=options.words, help=f"of {formats} (default: the first three)")
    every = "every format and precision whose packages are installed, compared"
    add("--all", action="store_true", help=every)
    options.dataset(add, required=False)
    options.on_bad_image(add)
    options.precisions(add)
    add("--image_size", type=options.image_size, help=f"{options.SIZE} (default: the model's or 224)")
    options.patch_size(add)
    add("--batch_sizes", type=options.positive_ints, default="1,16", help="images per batch")
    add("--rounds", type=options.positive_int, default=9, help="batches measured per format")
    add("--threads", type=options.positive_int, help="number of threads (default: one per core)")
    options.json(add)


def run(args):
    from keras_vit.cli.measuring import all_files, files_of, measure

    if not args.all:
        options.refuse_unused(args, ("dataset", *options.OF_DATASET), "--all")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # the processes share a GPU's memory
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # of the processes, too, whose errors are raised here
    with tempfile.TemporaryDirectory() as folder:
        if args.all:
            files, missing, reference = all_files(args, pathlib.Path(folder))
        else:
            files, missing, reference = files_of(args, pathlib.Path(folder)), {}, None
        note_formats(args, files)
        result = measure(files, args, reference) | ({"missing": missing} if args.all else {})
    report(args, {"model": args.model, **result}, (comparison if args.all else summary)(result))


def summary(result):
    """Return the measurements as a table.

    >>> row = {"format": "live", "batch": 1, "ms": 12.5, "images_per_second": 80.0, "ratio": 1.0}
    >>> row |= {"bytes": 3 * MIB, "peak_bytes": 700 * MIB, "imports_bytes": 500 * MIB}
    >>> result = {"rows": [row], "image_size": [32, 48], "rounds": 9, "threads": None, "live": "graph"}
    >>> print(summary(result))
    format  batch    ms  images/s  ratio  MiB  peak MiB  imports MiB
    live        1  12.5      80.0    1.0  3.0       700          500
    <BLANKLINE>
    images of 32x48 pixels; medians of 9 interleaved rounds; ratio of images/s to live
    predict of the live model runs as graph; each format runs in a separate process, whose memory this is
    """
    columns = ("format", "batch", "ms", "images/s", "ratio", "MiB", "peak MiB", "imports MiB")
    rows = []
    for row in result["rows"]:
        speed = round(row["ms"], 2), round(row["images_per_second"], 1), round(row["ratio"], 2)
        memory = ("-" if row[name] is None else row[name] // MIB for name in ("peak_bytes", "imports_bytes"))
        rows.append((row["format"], row["batch"], *speed, round(row["bytes"] / MIB, 1), *memory))
    live = f"predict of the live model runs as {result['live']}; " if result["live"] else ""
    return (
        f"{text_table(rows, columns)}\n\n{_circumstances(result)}; ratio of images/s to "
        f"{result['rows'][0]['format']}\n{live}each format runs in a separate process, whose memory this is"
    )


def comparison(result):
    """Return the measurements as a table with a row for each format, the fastest first.

    >>> row = {"format": "live", "batch": 1, "ms": 12.5, "images_per_second": 80.0, "ratio": 1.0}
    >>> row |= {"bytes": 3 * MIB, "peak_bytes": 700 * MIB, "imports_bytes": 500 * MIB, "score": None}
    >>> row |= {"mean_logit_difference": 0.0, "agreement": None}
    >>> rows = [row, row | {"format": "onnx", "ms": 9.0, "mean_logit_difference": 1e-6}]
    >>> result = {"rows": rows, "image_size": [32, 48], "rounds": 9, "threads": None, "live": "graph"}
    >>> print(comparison(result | {"missing": {"openvino_int8": "OpenVINO requires nncf"}}))
    format  ms for 1  MiB  peak MiB  mean difference  agreement  score
    onnx    9.00      3.0       700  1.0e-06          -          -
    live    12.50     3.0       700  0.0e+00          -          -
    <BLANKLINE>
    openvino_int8: OpenVINO requires nncf
    <BLANKLINE>
    images of 32x48 pixels; medians of 9 interleaved rounds; differences from the live model's outputs are
    relative to the largest; each format runs in a separate process, whose memory this is
    """
    batches = list(dict.fromkeys(row["batch"] for row in result["rows"]))
    by_format = {}
    for row in result["rows"]:
        by_format.setdefault(row["format"], {})[row["batch"]] = row
    rows = []
    for name, by_batch in sorted(by_format.items(), key=lambda item: item[1][batches[0]]["ms"]):
        last = by_batch[batches[-1]]
        speed = (f"{by_batch[batch]['ms']:.2f}" for batch in batches)
        peak = "-" if last["peak_bytes"] is None else last["peak_bytes"] // MIB
        forms = {"mean_logit_difference": ".1e", "agreement": ".1%", "score": ".4f"}
        quality = ("-" if last.get(key) is None else format(last[key], form) for key, form in forms.items())
        rows.append((name, *speed, round(last["bytes"] / MIB, 1), peak, *quality))
    columns = ("format", *(f"ms for {batch}" for batch in batches), "MiB", "peak MiB")
    missing = [f"{name}: {reason}" for name, reason in result["missing"].items()]
    lines = [
        text_table(rows, (*columns, "mean difference", "agreement", "score")),
        "",
        *(missing + [""] * bool(missing)),
        f"{_circumstances(result)}; differences from the live model's outputs are",
        "relative to the largest; each format runs in a separate process, whose memory this is",
    ]
    return "\n".join(lines)


def _circumstances(result):
    height, width = result["image_size"]
    threads = f"; threads: {result['threads']}" if result["threads"] else ""
    return f"images of {height}x{width} pixels; medians of {result['rounds']} interleaved rounds{threads}"
