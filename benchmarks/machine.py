"""The machine and software that a benchmark runs on, and its peak rate of matmuls."""

import datetime
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time

from harness import Failed, measure

SIDES = (2048, 3072, 4096)  # of the square matrices; four times as large on an accelerator
REPEATS = 5
PACKAGES = ("keras_vit", "keras", "tensorflow", "jax", "ai-edge-litert", "onnxruntime", "keras-hub", "torch")
PACKAGES += ("transformers", "timm")
# By the names of packages, where they differ.
DISTRIBUTIONS = {"keras_vit": "keras-vision-transformer", "faiss": "faiss-cpu"}


def processor():
    """The processor's name."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def accelerator():
    """The NVIDIA GPU's name, or None."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
    except OSError:
        return None
    return names[0].strip() or None


def installed(*modules):
    return all(importlib.util.find_spec(module.partition(".")[0]) for module in modules)


def peak_memory(process="self"):
    """The peak memory of a process so far, in MiB."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) // 1024


def versions(packages=PACKAGES):
    """Package → version, of those that are installed."""
    found = {"Python": platform.python_version()}
    for package in packages:
        if installed(package.replace("-", "_")):
            found[package] = importlib.metadata.version(DISTRIBUTIONS.get(package, package))
    return found


def circumstances(threads=None):
    """Date, command, machine, load average before the measurement, and versions."""
    script, *arguments = sys.argv
    return {
        "date": datetime.datetime.now().isoformat(" ", "minutes"),
        "command": shlex.join(["python", f"benchmarks/{pathlib.Path(script).name}", *arguments]),
        "processor": processor(),
        "cores": threads or len(os.sched_getaffinity(0)),
        "accelerator": accelerator(),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions(),
    }


def peak_rates(threads=None, libraries=None):
    """precision → the highest GFLOP/s of a large matrix product, and the library that reached it.

    `libraries` are names of `MATMULS`; None for all.
    """
    best = {}
    for name in libraries or MATMULS:
        modules, _ = MATMULS[name]
        if not installed(*modules) or ("tensorflow" in modules and os.environ.get("KERAS_BACKEND") == "jax"):
            continue
        try:
            rates = measure("machine.matmul_rates", name=name, threads=threads)
        except Failed:
            continue
        for precision, rate in rates.items():
            if rate > best.get(precision, {"gflops": 0})["gflops"]:
                best[precision] = {"gflops": rate, "by": name}
    return best


def matmul_rates(name, threads):
    """precision → GFLOP/s of one library, the best of all sides, each by its median time."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    use_cores(threads)
    rates = {}
    for precision in ("float32", "bfloat16"):
        for side in (side * (4 if accelerator() else 1) for side in SIDES):
            multiply, seconds = MATMULS[name][1](precision, side), []
            multiply()
            for _ in range(REPEATS):
                begin = time.perf_counter()
                multiply()
                seconds.append(time.perf_counter() - begin)
            rate = 2 * side**3 / statistics.median(seconds) / 1e9
            rates[precision] = max(rate, rates.get(precision, 0))
    return rates


def _tensorflow(precision, side, xla=False):
    import tensorflow as tf

    a = tf.cast(tf.random.normal((side, side)), precision)
    multiply = tf.function(lambda a, b: tf.matmul(a, b), jit_compile=xla)
    return lambda: multiply(a, a)[0, 0].numpy()


def _jax(precision, side):
    import jax

    a = jax.random.normal(jax.random.key(0), (side, side), precision)
    multiply = jax.jit(lambda a, b: a @ b)
    return lambda: multiply(a, a).block_until_ready()


def _torch(precision, side):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a = torch.randn(side, side, device=device).to(getattr(torch, precision))
    return lambda: (a @ a)[0, 0].item()


MATMULS = {  # library → the modules that it needs, and (precision, side) → function
    "torch": (("torch",), _torch),
    "TensorFlow graph": (("tensorflow",), _tensorflow),
    "TensorFlow XLA": (("tensorflow",), lambda precision, side: _tensorflow(precision, side, xla=True)),
    "JAX": (("jax",), _jax),
}


def use_cores(count):
    """Restrict this process to `count` cores; None for all. Every library then uses as many threads."""
    if count:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
