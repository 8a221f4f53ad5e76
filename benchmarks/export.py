"""Size and latency of a model in every export format; writes EXPORT.md and EXPORT.json.

`keras-vit benchmark` measures, once for each number of threads: every format in its own process, in
interleaved rounds. Weights and images are random.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import real_int8
from machine import circumstances, installed, versions
from report import machine_text, table

HERE = pathlib.Path(__file__).resolve().parent
THREADS = tuple(threads for threads in (1, 2, 4) if threads <= os.cpu_count())
BATCHES = ("1", "16")
PACKAGES = ("keras_vit", "keras", "tensorflow", "ai-edge-litert", "onnx", "onnxruntime", "tf2onnx")
PEERS = ("openvino", "nncf")
FORMATS, PRECISIONS = "live,saved_model,tflite,onnx", "float32,float16,dynamic_int8,int8,full_int8"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--image_size", default="224")
    parser.add_argument("--rounds", default="9")
    parser.add_argument(
        "--output", default=HERE, type=pathlib.Path, help="folder of EXPORT.md and EXPORT.json"
    )
    args = parser.parse_args()
    formats, precisions, packages = FORMATS, PRECISIONS, PACKAGES
    if installed(*PEERS):
        formats, precisions, packages = f"{formats},openvino", f"{precisions},bfloat16", (*packages, *PEERS)
    options = ["--formats", formats, "--precisions", precisions]
    found = circumstances() | {"versions": versions(packages), "variant": args.variant, "threads": {}}
    for threads in THREADS:
        found["threads"][str(threads)] = _measured(threads, args, options)
    text = report(found)
    print(text)
    (args.output / "EXPORT.json").write_text(json.dumps(found, indent=1) + "\n")
    (args.output / "EXPORT.md").write_text(text)


def _measured(threads, args, options):
    """The rows of `keras-vit benchmark` with so many threads."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "found.json")
        options = [*options, "--model", args.variant, "--image_size", args.image_size]
        options += ["--rounds", args.rounds, "--threads", str(threads), "--batch_sizes", ",".join(BATCHES)]
        command = [sys.executable, "-m", "keras_vit", "benchmark", *options, "--json", output]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text())["rows"]


def report(found):
    """The text of EXPORT.md."""
    rows = {(t, r["format"], str(r["batch"])): r for t, rs in found["threads"].items() for r in rs}
    formats = list(dict.fromkeys(name for _, name, _ in rows))
    sizes = []
    for name in formats:
        row = rows[str(THREADS[-1]), name, BATCHES[-1]]
        sizes.append((name, *(f"{row[k] / 2**20:.1f}" for k in ("bytes", "peak_bytes", "imports_bytes"))))
    parts = [
        f"# Exports of {found['variant']}",
        f"{found['date']}, load average before {found['load']:.1f}: {machine_text(found)} 1000 classes, "
        "random weights and images.",
        "## Size and memory",
        f"The peak is of batches of {BATCHES[-1]}, and includes what the process imports.",
        table(("format", "MiB", "peak MiB", "of which imports"), sizes),
    ]
    for batch in BATCHES:
        lines = []
        for name in formats:
            ms = [(rows[str(t), name, batch]["ms"], rows[str(t), formats[0], batch]["ms"]) for t in THREADS]
            lines.append(
                (name, *(cell for own, first in ms for cell in (f"{own:.1f}", f"{own / first:.2f}")))
            )
        parts += [
            f"## Latency of a batch of {batch}",
            "Medians of interleaved rounds; the ratio is to the first row, below 1 is faster.",
            table(
                ("format", *(head for t in THREADS for head in (f"{t} thread{'s' * (t > 1)}, ms", "ratio"))),
                lines,
            ),
        ]
    trained = json.loads((HERE / "REAL.json").read_text()).get("int8")
    if trained:
        about = f"[DINOv2 ViT-S/14 on photographs](REAL.md), {trained['date']}: {machine_text(trained)}"
        parts += ["## Trained weights", about, table(real_int8.COLUMNS, trained["rows"])]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
