"""Weigh and time a model in every format that it is exported to, in one run.

Prints tables and writes them to EXPORT.md and EXPORT.json. The weights and images are random. Figures
of one run are comparable with each other only, so latencies are given as ratios to TensorFlow's as well.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from machine import processor  # noqa: E402

THREADS = (1, 2, 4)
BATCHES = (1, 16)
CALIBRATION = 8  # images; enough to time it
FORMATS = {  # format → the file, and how it is made of the SavedModel
    "SavedModel, signature": ("saved_model", None),
    "SavedModel, call in a graph": ("saved_model", None),
    "LiteRT float32": ("float32.tflite", "float32"),
    "LiteRT float16": ("float16.tflite", "float16"),
    "LiteRT dynamic int8": ("dynamic_int8.tflite", "dynamic_int8"),
    "LiteRT full int8": ("int8.tflite", "int8"),
    "ONNX": ("model.onnx", None),
}
FIRST = next(iter(FORMATS))  # what the others are compared with
PACKAGES = ("keras_vit", "keras", "tensorflow", "ai-edge-litert", "onnx", "onnxruntime", "tf2onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--output", default=HERE, type=pathlib.Path, help="folder of EXPORT.md and EXPORT.json"
    )
    parser.add_argument("--job", choices=("export", "serve"), help="one process's work")
    parser.add_argument("--format", choices=FORMATS)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.job:
        globals()[f"_job_{args.job}"](args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.folder = pathlib.Path(folder)
        files = {name: _exported(name, args) for name in FORMATS}
        latency = {threads: _latencies(threads, args) for threads in THREADS}
    found = {
        "date": str(datetime.date.today()),
        "variant": args.variant,
        "image_size": args.image_size,
        "rounds": args.rounds,
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[2],
        "versions": {"python": platform.python_version()}
        | {p: importlib.metadata.version(p) for p in PACKAGES},
        "files": files,
        "latency": latency,
    }
    text = _report(found)
    print(text)
    (args.output / "EXPORT.md").write_text(text)
    (args.output / "EXPORT.json").write_text(json.dumps(found, indent=1) + "\n")


def _process(job, name, args, **options):
    """The command of a process that does one job."""
    given = {
        "job": job,
        "format": name,
        "folder": args.folder,
        "variant": args.variant,
        "image_size": args.image_size,
        **options,
    }
    return [sys.executable, __file__, *(f"--{key}={value}" for key, value in given.items())]


def _exported(name, args):
    """Bytes of a format's file, seconds and peak memory of its export in a process of its own."""
    path = args.folder / FORMATS[name][0]
    if path.exists():  # another way to run the same file
        return None
    done = subprocess.run(_process("export", name, args), check=True, stdout=subprocess.PIPE, text=True)
    files = [path, *path.rglob("*")]
    return json.loads(done.stdout.splitlines()[-1]) | {
        "bytes": sum(file.stat().st_size for file in files if file.is_file())
    }


def _job_export(args):
    import numpy as np

    from keras_vit.export.onnx import export_onnx
    from keras_vit.export.saved_model import export_saved_model
    from keras_vit.export.tflite import export_tflite

    file, precision = FORMATS[args.format]
    saved, path = args.folder / "saved_model", args.folder / file
    if path == saved:
        model = _random(args)
        export = lambda: export_saved_model(model, path, warmup=())  # noqa: E731
    elif precision is None:
        export = lambda: export_onnx(saved, path)  # noqa: E731
    else:
        images = np.random.default_rng(0).random(
            (CALIBRATION, args.image_size, args.image_size, 3), "float32"
        )
        calibration = {"calibration": images} if precision == "int8" else {}
        export = lambda: export_tflite(saved, path, precision=precision, **calibration)  # noqa: E731
    before, begin = _peak(), time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        export()
    print(json.dumps({"seconds": time.perf_counter() - begin, "peak": _peak(), "before": before}))


def _random(args):
    from reference.comparing import randomise

    from keras_vit import VisionTransformer

    return randomise(VisionTransformer.from_variant(args.variant, args.image_size, num_classes=1000), 0.05)


def _peak():
    """Bytes of peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _latencies(threads, args):
    """format → seconds to load and medians of the seconds a batch, in interleaved rounds."""
    servers = {}
    try:
        found = {}
        for name in FORMATS:
            servers[name] = subprocess.Popen(
                _process("serve", name, args, threads=threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            found[name] = {"load": _answer(servers[name])}
        for batch in BATCHES:
            seconds = {name: [] for name in FORMATS}
            for measured in range(
                -1 if batch > 1 else -2, _rounds(batch, args.rounds)
            ):  # below 0: warming up
                for name, server in servers.items():
                    print(batch, file=server.stdin, flush=True)
                    answer = _answer(server)
                    time.sleep(0.05)  # some runtimes' threads wait busily for a while
                    if measured >= 0:
                        seconds[name].append(answer)
            for name, values in seconds.items():
                found[name][str(batch)] = statistics.median(values)
        return found
    finally:
        for server in servers.values():
            server.kill()
            server.communicate()


def _rounds(batch, rounds):
    """Fewer of large batches, which take long and vary less."""
    return rounds if batch == 1 else max(rounds // 3, 3)


def _answer(server):
    line = server.stdout.readline()
    if not line:
        raise RuntimeError(f"a process ended early: {' '.join(map(str, server.args))}")
    return float(line)


def _job_serve(args):
    """Say how long loading took, then for each line with a batch size how long that batch took."""
    import numpy as np
    import tensorflow as tf

    from keras_vit.export.exported_model import open_exported

    path = args.folder / FORMATS[args.format][0]
    begin = time.perf_counter()
    compute = open_exported(path, args.threads).outputs
    print(time.perf_counter() - begin, flush=True)
    if args.format == "SavedModel, call in a graph":
        loaded = tf.saved_model.load(path)
        graph = tf.function(lambda images: loaded(images), autograph=False, reduce_retracing=True)
        compute = lambda images: graph(tf.constant(images)).numpy()  # noqa: E731
    shape = (max(BATCHES), args.image_size, args.image_size, 3)
    images = np.random.default_rng(0).random(shape, "float32")
    for line in sys.stdin:
        begin = time.perf_counter()
        compute(images[: int(line)])
        print(time.perf_counter() - begin, flush=True)


def _report(found):
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    mib = 2**20
    lines = [
        "# Exports",
        "",
        f"`python benchmarks/export.py --variant {found['variant']} --image_size {found['image_size']}`, "
        f"{found['date']}: {versions}; {found['processor']}, {found['cores']} cores, load average "
        f"{found['load_average']:.1f}. 1000 classes, random weights and images.",
        "",
        "## Size, export and loading",
        "",
        "Each export ran in a process of its own; its peak of resident memory includes TensorFlow, "
        "whose share is in the next column (with the live model, for the SavedModel).",
        "",
        "| format | MiB | export, s | peak, MiB | of which before, MiB | load, s |",
        "|---|---|---|---|---|---|",
    ]
    for name, file in found["files"].items():
        load = found["latency"][THREADS[0]][name]["load"]
        if file:
            lines.append(
                f"| {name} | {file['bytes'] / mib:.1f} | {file['seconds']:.1f} | {file['peak'] / mib:.0f} | "
                f"{file['before'] / mib:.0f} | {load:.2f} |"
            )
    for batch in BATCHES:
        heads = [f"{threads} thread{'s' if threads > 1 else ''}, ms | ratio" for threads in THREADS]
        lines += [
            "",
            f"## Latency of a batch of {batch}",
            "",
            f"Medians of {_rounds(batch, found['rounds'])} rounds, in each of which every format computes "
            "once; the ratio is to the first row, below 1 is faster.",
            "",
            f"| format | {' | '.join(heads)} |",
            "|---" * (1 + 2 * len(THREADS)) + "|",
        ]
        for name in FORMATS:
            cells = []
            for threads in THREADS:
                values = found["latency"][threads]
                mine, first = (values[key][str(batch)] for key in (name, FIRST))
                cells.append(f"{mine * 1e3:.1f} | {mine / first:.2f}")
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
