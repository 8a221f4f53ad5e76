"""`keras-vit benchmark`: speed and peak memory of a model on this machine, live and in each format."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import multiprocessing
import os
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import time

import numpy as np
from tqdm import tqdm

from _keras_vit_cli import quiet_startup_logs
from keras_vit.cli.report import check_output, report, text_table
from keras_vit.cli.source import is_exported, open_dataset, open_live, task_of
from keras_vit.export.description import describe
from keras_vit.export.exported_model import ExportedModel, exported_path
from keras_vit.export.folder import calibration_images
from keras_vit.export.formats import FORMATS, SAVED_MODEL, ExportJob, choose_formats, format_of, in_order
from keras_vit.export.saved_model import float32_copy, set_threads
from keras_vit.export.verify import BATCH, live_reference, normalize_as_exports_do, size_of
from keras_vit.models import VisionTransformer
from keras_vit.variants import parse_variant
from keras_vit.weights.checkpoint import read_model

DEFAULT = ("live", "saved_model", "tflite")
VARIANT_SIZE = (224, 224)
PAUSE = 0.05  # seconds for which the threads of some runtimes wait actively after a batch
MIB = 2**20
NOISE_IMAGES = 20  # that calibrate int8 without a data set


def run(args):
    check_output(args)
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # the processes share a GPU's memory
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # of the processes, too, whose errors are raised here
    with tempfile.TemporaryDirectory() as folder:
        if args.all:
            files, missing, reference = _all_files(args, pathlib.Path(folder))
        else:
            files, missing, reference = _files(args, pathlib.Path(folder)), {}, None
        result = _measure(files, args, reference) | ({"missing": missing} if args.all else {})
    report(args, {"model": args.model, **result}, (comparison if args.all else summary)(result))


def summary(found):
    """Return the measurements as a table.

    >>> row = {"format": "live", "batch": 1, "ms": 12.5, "images_per_second": 80.0, "ratio": 1.0}
    >>> row |= {"bytes": 3 * MIB, "peak_bytes": 700 * MIB, "imports_bytes": 500 * MIB}
    >>> found = {"rows": [row], "image_size": [32, 48], "rounds": 9, "threads": None, "live": "graph"}
    >>> print(summary(found))
    format  batch    ms  images/s  ratio  MiB  peak MiB  imports MiB
    live        1  12.5      80.0    1.0  3.0       700          500
    <BLANKLINE>
    images of 32x48 pixels; medians of 9 interleaved rounds; ratio of images/s to live
    predict of the live model runs as graph; each format runs in a separate process, whose memory this is
    """
    columns = ("format", "batch", "ms", "images/s", "ratio", "MiB", "peak MiB", "imports MiB")
    rows = []
    for row in found["rows"]:
        speed = round(row["ms"], 2), round(row["images_per_second"], 1), round(row["ratio"], 2)
        memory = ("-" if row[name] is None else row[name] // MIB for name in ("peak_bytes", "imports_bytes"))
        rows.append((row["format"], row["batch"], *speed, round(row["bytes"] / MIB, 1), *memory))
    height, width = found["image_size"]
    threads = f"; threads: {found['threads']}" if found["threads"] else ""
    live = f"predict of the live model runs as {found['live']}; " if found["live"] else ""
    return (
        f"{text_table(rows, columns)}\n\nimages of {height}x{width} pixels; medians of {found['rounds']} "
        f"interleaved rounds{threads}; ratio of images/s to {found['rows'][0]['format']}\n"
        f"{live}each format runs in a separate process, whose memory this is"
    )


def comparison(found):
    """Return the measurements as a table with a row for each format, the fastest first.

    >>> row = {"format": "live", "batch": 1, "ms": 12.5, "images_per_second": 80.0, "ratio": 1.0}
    >>> row |= {"bytes": 3 * MIB, "peak_bytes": 700 * MIB, "imports_bytes": 500 * MIB, "score": None}
    >>> row |= {"mean_logit_difference": 0.0, "agreement": None}
    >>> rows = [row, row | {"format": "onnx", "ms": 9.0, "mean_logit_difference": 1e-6}]
    >>> found = {"rows": rows, "image_size": [32, 48], "rounds": 9, "threads": None, "live": "graph"}
    >>> print(comparison(found | {"missing": {"openvino_int8": "OpenVINO requires nncf"}}))
    format  ms for 1  MiB  peak MiB  mean difference  agreement  score
    onnx    9.00      3.0       700  1.0e-06          -          -
    live    12.50     3.0       700  0.0e+00          -          -
    <BLANKLINE>
    openvino_int8: OpenVINO requires nncf
    <BLANKLINE>
    images of 32x48 pixels; medians of 9 interleaved rounds; differences from the live model's outputs are
    relative to the largest; each format runs in a separate process, whose memory this is
    """
    batches = list(dict.fromkeys(row["batch"] for row in found["rows"]))
    by_format = {}
    for row in found["rows"]:
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
    missing = [f"{name}: {reason}" for name, reason in found["missing"].items()]
    height, width = found["image_size"]
    threads = f"; threads: {found['threads']}" if found["threads"] else ""
    lines = [
        text_table(rows, (*columns, "mean difference", "agreement", "score")),
        "",
        *(missing + [""] * bool(missing)),
        f"images of {height}x{width} pixels; medians of {found['rounds']} interleaved rounds{threads}; "
        "differences from the live model's outputs are",
        "relative to the largest; each format runs in a separate process, whose memory this is",
    ]
    return "\n".join(lines)


def _all_files(args, folder):
    """Return the file of each format, the reasons why others are missing, and the live model's outputs."""
    if is_exported(args.model) or args.formats:
        raise ValueError("--all exports a model in every format; omit --formats, and give no export")
    model = float32_copy(_live(args.model, args.image_size, trust=args.trust, sha256=args.sha256))
    task = task_of(args.model, model)
    dataset = open_dataset(args, model, task) if args.dataset else None
    description = describe(model, task)
    description = description.with_size(args.image_size)
    samples = dataset and dataset.split("test")
    reference = live_reference(model, description, samples)
    noise = _noise(NOISE_IMAGES, (*description.image_size, description.channels))
    calibration = calibration_images(dataset, description) or [noise]
    job = ExportJob(model, task=task, image_size=description.image_size, calibration=calibration)
    job = dataclasses.replace(job, saved_model=SAVED_MODEL.target(folder, job))
    files, missing = {"live": folder / "model.keras"}, {}
    model.save(files["live"])
    # The archive for TF Hub and the page contain the files of other formats.
    formats = [format for format in FORMATS if not format.repackages]
    for format in tqdm(formats, "exporting", unit="format", delay=2, disable=None):
        try:
            format.check(job)
            format.write(job, format.target(folder, job))
        except (ImportError, ValueError) as error:
            missing[format.name] = str(error)
        else:
            files[format.name] = format.target(folder, job)
    return files, missing, reference


def _files(args, folder):
    """Return the file or folder of each format: that of an export, or new ones."""
    if is_exported(args.model):
        if args.formats:
            raise ValueError(f"{args.model!r} is an export and is measured as it is; omit --formats")
        path = exported_path(args.model, trust=args.trust, sha256=args.sha256)
        return {format_of(path).option: path}
    options = [option for option in args.formats or DEFAULT if option != "live"]
    chosen = choose_formats(options, args.precisions) if options else []
    model = _live(args.model, args.image_size, trust=args.trust, sha256=args.sha256)
    # int8 is calibrated on noise, since the ranges change its outputs and not its speed.
    noise = _noise(2, (*describe(model).native_image_size, model.in_channels))
    job = ExportJob(model, calibration=[noise])
    job = dataclasses.replace(job, saved_model=SAVED_MODEL.target(folder, job))
    for format in chosen:
        format.check(job)
    targets = {format.name: format.target(folder, job) for format in chosen}
    needed = in_order(chosen) if chosen else []
    for format in tqdm(needed, "exporting", unit="format", delay=2, disable=None):
        format.write(job, format.target(folder, job))
    if "live" not in (args.formats or DEFAULT):
        return targets
    model.save(folder / "model.keras")
    return {"live": folder / "model.keras", **targets}


def _live(source, image_size, **checks):
    """Return the model that --model names, or one of random weights for a variant's name."""
    try:
        parse_variant(source)
    except ValueError:
        return open_live(source, image_size, **checks)
    return VisionTransformer.from_variant(source, image_size or VARIANT_SIZE, num_classes=1000)


def _noise(batch, shape):
    return np.random.default_rng(0).random((batch, *shape), "float32")


def _measure(files, args, reference=None):
    """Return the measurements after rounds in each of which every format computes a batch."""
    batches, rows = sorted({*args.batch_sizes}), []  # ascending: a process's peak only grows
    quality = {}
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(_process()) for name in files}
        with quiet_startup_logs(drop_on_error=True):  # of the processes
            options = args.threads, args.image_size
            futures = {name: processes[name].submit(_open, path, *options) for name, path in files.items()}
            opened = {name: _result(name, future) for name, future in futures.items()}
        for batch in batches:
            measured = {name: [] for name in files}
            doing = f"batches of {batch}"
            for _ in tqdm(range(args.rounds + 1), doing, unit="round", delay=2, disable=None):
                for name, process in processes.items():
                    measured[name].append(_result(name, process.submit(_compute, batch)))
                    time.sleep(PAUSE)
            for name, path in files.items():
                seconds, peaks = zip(*measured[name][1:])  # the first batch compiles and allocates
                median = statistics.median(seconds)
                row = {"format": name, "batch": batch, "ms": median * 1e3}
                row |= {"images_per_second": batch / median, "bytes": size_of(path), "peak_bytes": peaks[-1]}
                rows.append(row | {"imports_bytes": opened[name]["imports_bytes"]})
        if reference is not None:
            for name, process in processes.items():
                outputs = _result(name, process.submit(_outputs, reference.images))
                quality[name] = reference.compare(outputs)
    first = {row["batch"]: row["ms"] for row in reversed(rows)}
    any_file = opened[next(iter(files))]
    return {
        **{name: any_file[name] for name in ("image_size", "live")},
        "rounds": args.rounds,
        "threads": args.threads,
        "cores": os.cpu_count(),
        "rows": [
            row | {"ratio": first[row["batch"]] / row["ms"]} | quality.get(row["format"], {}) for row in rows
        ],
    }


def _process():
    """Return an executor of one process; a fork would begin with this process's memory."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(1, context, _ignore_interrupt)


def _ignore_interrupt():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and ends this process


def _result(name, future):
    try:
        return future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise ValueError(f"the process of {name} ended early, probably for lack of memory") from None


_COMPUTE = {}  # in a process: what `_open` leaves for `_compute`


def _open(path, threads, image_size):
    """Open a file in this process; return what it is, and the memory of the imports."""
    imports, live = peak_memory(), None
    if path.suffix != ".keras":  # an export takes images in [0, 1]
        exported = ExportedModel(*format_of(path).open(path, threads))
        prepare, compute, description = np.asarray, exported.main_output, exported.description
    else:
        set_threads(threads)
        model = read_model(path)
        prepare, compute = functools.partial(normalize_as_exports_do, model), model.predict_on_batch
        description = describe(model)
        live = "XLA" if model.jit_compile else "graph"
    size = image_size or description.native_image_size
    _COMPUTE.update(prepare=prepare, compute=compute, shape=(*size, description.channels))
    return {"image_size": size, "live": live, "imports_bytes": imports}


def _compute(batch):
    """Return the seconds that a batch takes in this process, and its peak memory."""
    images = _COMPUTE["prepare"](_noise(batch, _COMPUTE["shape"]))
    start = time.perf_counter()
    _COMPUTE["compute"](images)
    return time.perf_counter() - start, peak_memory()


def _outputs(images):
    """Return the outputs of this process for images in [0, 1], in batches of one size."""
    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    return np.concatenate([_COMPUTE["compute"](_COMPUTE["prepare"](batch)) for batch in batches])


def peak_memory():
    """Return the peak memory of this process in bytes; None where the system does not report it.

    >>> peak_memory() > 10 * MIB
    True
    """
    try:  # getrusage would include the memory of a parent that forked this process
        status = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    except (OSError, TypeError):
        with contextlib.suppress(ImportError):
            resource = importlib.import_module("resource")
            unit = 1 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None
