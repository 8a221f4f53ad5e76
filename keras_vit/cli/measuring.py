"""Speed and peak memory of a model's files, each in a process of its own."""

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
import time

import numpy as np

from keras_vit.cli.source import is_exported, open_dataset, open_live, task_of
from keras_vit.export.description import describe
from keras_vit.export.exported_model import exported_model, exported_path
from keras_vit.export.folder import calibration_images
from keras_vit.export.formats import FORMATS, SAVED_MODEL, ExportJob, choose_formats, format_of, in_order
from keras_vit.export.saved_model import float32_copy, set_threads
from keras_vit.export.verify import BATCH, live_reference, normalize_as_exports_do, size_of
from keras_vit.models import VisionTransformer
from keras_vit.progress import Progress
from keras_vit.startup_logs import quiet_startup_logs
from keras_vit.variants import parse_variant
from keras_vit.weights.checkpoint import read_model

DEFAULT = ("live", "saved_model", "tflite")
VARIANT_SIZE = (224, 224)
PAUSE = 0.05  # seconds for which the threads of some runtimes wait actively after a batch
MIB = 2**20
NOISE_IMAGES = 20  # that calibrate int8 without a data set


def all_files(args, folder):
    """Return the file of each format, the reasons why others are missing, and the live model's outputs."""
    if is_exported(args.model) or args.formats or args.precisions:
        unused = "--precisions" if args.precisions else "--formats"
        raise ValueError(f"--all exports a model in every format; omit {unused}, and give no export")
    model = float32_copy(_live(args.model, args.image_size, args.patch_size, **_checks(args)))
    task = task_of(args.model, model)
    dataset = open_dataset(args, model, task) if args.dataset else None
    description = describe(model, task).with_size(args.image_size)
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
    for format in Progress(formats, "exporting", unit="format"):
        try:
            format.check(job)
            format.write(job, format.target(folder, job))
        except (ImportError, ValueError) as error:
            missing[format.name] = str(error)
        else:
            files[format.name] = format.target(folder, job)
    return files, missing, reference


def files_of(args, folder):
    """Return the file or folder of each format: that of an export, or new ones."""
    if is_exported(args.model):
        for name in ("formats", "precisions", "patch_size"):
            if getattr(args, name):
                raise ValueError(f"{args.model!r} is an export and is measured as it is; omit --{name}")
        path = exported_path(args.model, trust=args.trust, sha256=args.sha256)
        return {format_of(path).option: path}
    options = [option for option in args.formats or DEFAULT if option != "live"]
    chosen = choose_formats(options, args.precisions) if options else []
    model = _live(args.model, args.image_size, args.patch_size, **_checks(args))
    # int8 is calibrated on noise, since the ranges change its outputs and not its speed.
    noise = _noise(2, (*describe(model).native_image_size, model.in_channels))
    job = ExportJob(model, calibration=[noise])
    job = dataclasses.replace(job, saved_model=SAVED_MODEL.target(folder, job))
    for format in chosen:
        format.check(job)
    targets = {format.name: format.target(folder, job) for format in chosen}
    needed = in_order(chosen) if chosen else []
    for format in Progress(needed, "exporting", unit="format"):
        format.write(job, format.target(folder, job))
    if "live" not in (args.formats or DEFAULT):
        return targets
    model.save(folder / "model.keras")
    return {"live": folder / "model.keras", **targets}


def _checks(args):
    return {"trust": args.trust, "sha256": args.sha256}


def _live(source, image_size, patch_size=None, **checks):
    """Return the model that --model names, or one of random weights for a variant's name."""
    try:
        parse_variant(source)
    except ValueError:
        return open_live(source, image_size, patch_size=patch_size, **checks)
    sizes = {"patch_size": patch_size} if patch_size else {}
    return VisionTransformer.from_variant(source, image_size or VARIANT_SIZE, num_classes=1000, **sizes)


def _noise(batch, shape):
    return np.random.default_rng(0).random((batch, *shape), "float32")


def measure(files, args, reference=None):
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
            for _ in Progress(range(args.rounds + 1), doing, unit="round"):
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
        exported = exported_model(*format_of(path).open(path, threads))
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
