"""`keras-vit benchmark`: how fast a model is here and what memory it takes, live and in each format."""

import contextlib
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
import tensorflow as tf
from tqdm import tqdm

from _keras_vit_cli import quiet_startup_logs
from keras_vit.cli.report import check_output, report, table
from keras_vit.cli.source import is_exported, open_live
from keras_vit.export.description import describe
from keras_vit.export.exported_model import ExportedModel, exported_path
from keras_vit.export.formats import SAVED_MODEL, ExportJob, choose_formats, format_of
from keras_vit.export.verify import normalised, size_of
from keras_vit.models import VisionTransformer
from keras_vit.variants import parse_variant
from keras_vit.weights.checkpoint import read_model

DEFAULT = ("live", "saved_model", "tflite")
VARIANTS_SIZE = (224, 224)
PAUSE = 0.05  # seconds for which some runtimes' threads go on waiting busily, in the next one's time
LEAVE = 10  # seconds that a process has to end by itself
MIB = 2**20


def run(args):
    check_output(args)
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # the processes share a GPU's memory
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # of the processes, too, whose errors come as exceptions
    with tempfile.TemporaryDirectory() as folder:
        files = _files(args, pathlib.Path(folder))
        found = _measured(files, args)
    report(args, {"model": args.model, **found}, shown(found))


def shown(found):
    """What was measured, as a table.

    >>> row = {"format": "live", "batch": 1, "ms": 12.5, "images_per_second": 80.0, "ratio": 1.0}
    >>> row |= {"bytes": 3 * MIB, "peak_bytes": 700 * MIB, "imports_bytes": 500 * MIB}
    >>> found = {"rows": [row], "image_size": [32, 48], "rounds": 9, "threads": None, "live": "graph"}
    >>> print(shown(found))
    format  batch    ms  images/s  ratio  MiB  peak MiB  of it imports
    live        1  12.5      80.0    1.0  3.0       700            500
    <BLANKLINE>
    images of 32x48 pixels; medians of 9 interleaved rounds; the ratio is of images/s to live's
    predict of the live model runs as graph; each format's memory is that of a process of its own
    """
    columns = ("format", "batch", "ms", "images/s", "ratio", "MiB", "peak MiB", "of it imports")
    rows = [
        (
            row["format"],
            row["batch"],
            round(row["ms"], 2),
            round(row["images_per_second"], 1),
            round(row["ratio"], 2),
            round(row["bytes"] / MIB, 1),
            *("-" if row[name] is None else row[name] // MIB for name in ("peak_bytes", "imports_bytes")),
        )
        for row in found["rows"]
    ]
    height, width = found["image_size"]
    threads = f"; threads: {found['threads']}" if found["threads"] else ""
    live = f"predict of the live model runs as {found['live']}; " if found["live"] else ""
    return "\n".join(
        [
            table(rows, columns),
            f"\nimages of {height}x{width} pixels; medians of {found['rounds']} interleaved rounds{threads}; "
            f"the ratio is of images/s to {found['rows'][0]['format']}'s",
            f"{live}each format's memory is that of a process of its own",
        ]
    )


def _files(args, folder):
    """format → the file or folder to time: what --model is an export already, or is exported to here."""
    if is_exported(args.model):
        if args.formats:
            raise ValueError(f"{args.model!r} is exported already, and timed as it is; leave out --formats")
        path = exported_path(args.model, trust=args.trust, sha256=args.sha256)
        return {format_of(path).option: path}
    options = [option for option in args.formats or DEFAULT if option != "live"]
    chosen = choose_formats(options, args.precisions) if options else []
    model = _live(args.model, args.image_size, trust=args.trust, sha256=args.sha256)
    noise = functools.partial(_calibration, model)
    job = ExportJob(model, saved_model=folder / "saved_model", calibration=noise)
    for format in chosen:
        format.check(job)
    files = {}
    if "live" in (args.formats or DEFAULT):
        files["live"] = folder / "model.keras"
        model.save(files["live"])
    if chosen:  # All other formats are converted from the SavedModel.
        SAVED_MODEL.write(job, job.saved_model)
    for format in tqdm(chosen, "exporting", unit="format", delay=2, disable=None):
        files[format.name] = job.saved_model if format is SAVED_MODEL else format.target(folder, job)
        if format is not SAVED_MODEL:
            format.write(job, files[format.name])
    return files


def _live(source, image_size, **checks):
    """The model that --model names, or one of random weights where that is a variant's name."""
    try:
        parse_variant(source)
    except ValueError:
        return open_live(source, image_size, **checks)
    return VisionTransformer.from_variant(source, image_size or VARIANTS_SIZE, num_classes=1000)


def _calibration(model):
    """Noise to calibrate int8 on: the ranges found change its outputs and not its speed."""
    return _noise(2, (*describe(model).usual_size, model.in_channels))


def _noise(batch, shape):
    return np.random.default_rng(0).random((batch, *shape), "float32")


def _measured(files, args):
    """What is told of the formats' files, after rounds in each of which every one computes a batch."""
    batches, rounds = sorted({*args.batch_sizes}), args.rounds  # ascending: a process's peak only grows
    rows = []
    with contextlib.ExitStack() as stack:
        with quiet_startup_logs(drop_on_error=True):  # of each process
            processes = {
                name: stack.enter_context(_process(name, path, args.threads, args.image_size))
                for name, path in files.items()
            }
            opened = {name: answer() for name, (_, answer) in processes.items()}
        bar = tqdm(total=len(batches) * (rounds + 1), desc="timing", unit="round", delay=2, disable=None)
        stack.enter_context(bar)
        for batch in batches:
            answers = {name: [] for name in files}
            for _ in range(rounds + 1):
                for name, (ask, answer) in processes.items():
                    ask(batch)
                    answers[name].append(answer())
                    time.sleep(PAUSE)
                bar.update()
            rows += [_row(name, batch, answers[name], opened[name], size_of(files[name])) for name in files]
    first = {row["batch"]: row["ms"] for row in reversed(rows)}
    return {
        **{name: next(iter(opened.values()))[name] for name in ("image_size", "live")},
        "rounds": rounds,
        "threads": args.threads,
        "cores": os.cpu_count(),
        "rows": [row | {"ratio": first[row["batch"]] / row["ms"]} for row in rows],
    }


def _row(name, batch, answers, opened, size):
    seconds, peaks = zip(*answers[1:])  # the first compiles and allocates
    median = statistics.median(seconds)
    return {
        "format": name,
        "batch": batch,
        "ms": median * 1e3,
        "images_per_second": batch / median,
        "bytes": size,
        "peak_bytes": peaks[-1],
        "imports_bytes": opened["imports_bytes"],
    }


@contextlib.contextmanager
def _process(name, path, threads, image_size):
    """A process that opens a file: (function that sends it a batch size, function for its next answer)."""
    context = multiprocessing.get_context("spawn")  # a fork would begin with this process's memory
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, path, threads, image_size), daemon=True)
    process.start()
    there.close()

    def ask(batch):
        with contextlib.suppress(ConnectionError):  # which `answer` tells of
            here.send(batch)

    def answer():
        try:
            found = here.recv()
        except (EOFError, ConnectionError):
            raise ValueError(f"the process of {name} ended early, as it does for want of memory") from None
        if isinstance(found, Exception):
            raise found
        return found

    try:
        yield ask, answer
    finally:
        here.close()  # at which it ends, and removes what TensorFlow wrote for it
        process.join(LEAVE)
        process.kill()
        process.join()


def _serve(connection, path, threads, image_size):
    """Say what was opened, then for each batch size the seconds of such a batch, and the peak memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it, and ends this process
    try:
        imports = peak_memory()
        prepare, compute, description, live = _opened(path, threads)
        size = image_size or description.usual_size
        connection.send({"image_size": size, "live": live, "imports_bytes": imports})
        for batch in _asked(connection):
            images = prepare(_noise(batch, (*size, description.channels)))
            start = time.perf_counter()
            compute(images)
            connection.send((time.perf_counter() - start, peak_memory()))
    except ConnectionError:  # the parent is gone
        return
    except Exception as error:
        connection.send(error)


def _asked(connection):
    """The batch sizes that come, until the parent has no more or is gone."""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            yield connection.recv()


def _opened(path, threads):
    """What images in [0, 1] are made to before they are timed, the function that is timed, and more.

    The Description, and how a live model computes: "graph", "XLA" or None.
    """
    if path.suffix != ".keras":  # it takes them as they are
        exported = ExportedModel(*format_of(path).open(path, threads))
        return np.asarray, exported.predict_on_batch, exported.description, None
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    model = read_model(path)
    prepare, how = functools.partial(normalised, model), "XLA" if model.jit_compile else "graph"
    return prepare, model.predict_on_batch, describe(model), how


def peak_memory():
    """The most bytes of memory that this process has held at a time; None where the system does not tell.

    >>> peak_memory() > 10 * MIB
    True
    """
    try:  # getrusage would count what a parent held when it started this process
        status = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    except (OSError, TypeError):
        with contextlib.suppress(ImportError):
            resource = importlib.import_module("resource")
            unit = 1 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None
