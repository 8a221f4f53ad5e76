"""What machine a benchmark ran on, and how fast it multiplies matrices.

    python benchmarks/machine.py "TensorFlow XLA"

prints the GFLOP/s of the largest products by precision: the ceiling that no model passes.
"""

import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import time

SIDES = (2048, 3072, 4096)  # of the square matrices; on an accelerator those of four times the size
REPEATS = 5
PACKAGES = ("keras_vit", "keras", "tensorflow", "jax", "ai-edge-litert", "onnxruntime", "keras-hub", "torch")
PACKAGES += ("transformers", "timm", "flax")


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


def circumstances(threads=None):
    """When, where and of what a measurement is; the load is that before it, the cores those it had."""
    script, *arguments = sys.argv
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        if installed(package.replace("-", "_")):
            versions[package] = importlib.metadata.version(package)
    return {
        "date": datetime.datetime.now().isoformat(" ", "minutes"),
        "command": shlex.join(["python", f"benchmarks/{pathlib.Path(script).name}", *arguments]),
        "processor": processor(),
        "cores": threads or len(os.sched_getaffinity(0)),
        "accelerator": accelerator(),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


# The ceiling ------------------------------------------------------------------------------------


def ceiling(threads=None):
    """precision → the best GFLOP/s of a product of large matrices, and who made it.

    Each library multiplies in a process of its own.
    """
    best = {}
    for name, (modules, _) in PRODUCTS.items():
        if not installed(*modules) or ("tensorflow" in modules and os.environ.get("KERAS_BACKEND") == "jax"):
            continue
        command = [sys.executable, __file__, name, *([str(threads)] if threads else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        rates = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
        for precision, rate in rates.items():
            if rate > best.get(precision, {"gflops": 0})["gflops"]:
                best[precision] = {"gflops": rate, "by": name}
    return best


def _tensorflow(precision, xla=False):
    import tensorflow as tf

    def product(side):
        a = tf.cast(tf.random.normal((side, side)), precision)
        multiply = tf.function(lambda a, b: tf.matmul(a, b), jit_compile=xla)
        return lambda: multiply(a, a)[0, 0].numpy()

    return product


def _jax(precision):
    import jax

    def product(side):
        a = jax.random.normal(jax.random.key(0), (side, side), precision)
        multiply = jax.jit(lambda a, b: a @ b)
        return lambda: multiply(a, a).block_until_ready()

    return product


def _torch(precision):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def product(side):
        a = torch.randn(side, side, device=device).to(getattr(torch, precision))
        return lambda: (a @ a)[0, 0].item()

    return product


PRODUCTS = {  # who multiplies → the modules it needs, precision → side → function
    "torch": (("torch",), _torch),
    "TensorFlow graph": (("tensorflow",), _tensorflow),
    "TensorFlow XLA": (("tensorflow",), lambda precision: _tensorflow(precision, xla=True)),
    "JAX": (("jax",), _jax),
}


def _rate(multiply, side):
    """GFLOP/s, of the median time."""
    multiply()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        multiply()
        seconds.append(time.perf_counter() - begin)
    return 2 * side**3 / statistics.median(seconds) / 1e9


def main():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    name, *threads = sys.argv[1:]
    use_cores(int(threads[0]) if threads else None)
    sides = [side * (4 if accelerator() else 1) for side in SIDES]
    rates = {}
    for precision in ("float32", "bfloat16"):
        product = PRODUCTS[name][1](precision)
        rates[precision] = max(_rate(product(side), side) for side in sides)
    print(json.dumps(rates))


def use_cores(count):
    """Let this process run on so many cores; None for all. Every library makes a thread for each then."""
    if count:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


if __name__ == "__main__":
    main()
