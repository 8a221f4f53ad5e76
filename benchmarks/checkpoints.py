"""Time and weigh the loading of checkpoints, and compare logits with other projects' software.

Prints tables and writes them to CHECKPOINTS.md. All weights are random. Figures of one run are
comparable with each other only, so what is bounded is a ratio. Another project's software that is
not installed (requirements-peers.txt) gets a line that says so.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from contenders import declare_torchvision  # noqa: E402
from machine import installed, processor  # noqa: E402

ROUNDS = 7
SLOWEST, LARGEST = 2, 2.5  # bounds on the two ratios of loading
LAYOUTS = {
    "vit_jax": "b16.npz",
    "big_vision": "b16_bv.npz",
    "timm": "b16_timm.safetensors",
    "huggingface": "b16_hf",
}
# What a layout cannot hold otherwise, or by default computes.
OPTIONS = {
    "vit_jax": {},
    "big_vision": {"pooling": "gap", "prefix_positions": False},
    "timm": {"activation": "gelu_erf"},
    "huggingface": {"activation": "gelu_erf"},
}
PEERS = {"timm": "timm", "huggingface": "transformers"}  # whose layout it is
PROCESSES = ("ours", "numpy", "timm", "transformers", "memory")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=PROCESSES, help="one measurement, in this process")
    parser.add_argument("--path")
    arguments = parser.parse_args()
    if arguments.job:
        with contextlib.redirect_stdout(sys.stderr):
            found = globals()[f"_job_{arguments.job}"](pathlib.Path(arguments.path))
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = _written(pathlib.Path(folder))
        text = _report(_loading(files), _logits(pathlib.Path(folder)))
    print(text)
    (HERE / "CHECKPOINTS.md").write_text(text)


# Loading -----------------------------------------------------------------------------------------


def _written(folder):
    """B/16 with 1000 classes and random weights in every layout: layout → path."""
    from keras_vit import save_weights

    files = {}
    for layout, name in LAYOUTS.items():
        model = _random("B/16", **OPTIONS[layout])
        save_weights(model, folder / name, layout)
        files[layout] = folder / name
    return files


def _random(variant, scale=0.05, **options):
    from reference.comparing import randomise

    from keras_vit import VisionTransformer

    return randomise(VisionTransformer.from_variant(variant, num_classes=1000, **options), scale)


def _loading(files):
    """layout → what is measured of its file."""
    return {layout: _measured(path, PEERS.get(layout)) for layout, path in files.items()}


def _measured(path, peer):
    """Bytes of a file, medians of the seconds to load and read it, and its peak memory ÷ size.

    `peer` are the seconds of the other project that the layout belongs to, None if it is not installed.
    """
    jobs = ("ours", "numpy", *([peer] if peer and installed(peer) else []))
    found = {job: [] for job in jobs}
    for _ in range(ROUNDS):
        for job in jobs:
            found[job].append(_process(job, path))

    def median(job, what="seconds"):
        return statistics.median(values[what] for values in found[job])

    size = _weights(path).stat().st_size
    return {
        "size": size,
        "load": median("ours"),
        "whole": median("ours", "whole"),
        "read": median("numpy"),
        "peak": statistics.median(_process("memory", path)["bytes"] / size for _ in range(3)),
        "peer": median(peer) if peer in jobs else None,
    }


def _process(job, path):
    """What a fresh process measures."""
    command = [sys.executable, __file__, "--job", job, "--path", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _job_ours(path):
    """Seconds of from_pretrained, with and without those of building the same model."""
    import keras_vit

    model = keras_vit.from_pretrained(path)  # the first warms the cache and TensorFlow up
    config = model.get_config()
    seconds = {"whole": [], "building": []}
    for _ in range(3):
        begin = time.perf_counter()
        keras_vit.from_pretrained(path)
        seconds["whole"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        keras_vit.VisionTransformer.from_config(config)
        seconds["building"].append(time.perf_counter() - begin)
    whole, building = (statistics.median(values) for values in seconds.values())
    return {"seconds": whole - building, "whole": whole}


def _job_numpy(path):
    """Seconds of reading the file's arrays as NumPy arrays."""
    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        _arrays(_weights(path))
        seconds.append(time.perf_counter() - begin)
    return {"seconds": statistics.median(seconds[1:])}


def _arrays(path):
    import numpy as np

    if path.suffix == ".npz":
        with np.load(path) as file:
            return {key: file[key] for key in file.files}
    from safetensors.numpy import load_file

    return load_file(path)


def _job_memory(path):
    """Bytes of peak resident memory above those after the import."""
    import keras_vit

    _ = keras_vit.from_pretrained
    page, peak, watching = os.sysconf("SC_PAGE_SIZE"), 0, True

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * page

    def watch():
        nonlocal peak
        while watching:
            peak = max(peak, resident())
            time.sleep(0.001)

    before = resident()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    model = keras_vit.from_pretrained(path)
    watching = False
    watcher.join()
    return {"bytes": max(peak, resident()) - before, "layers": len(model.layers)}


def _job_timm(path):
    """Seconds of making the model, reading the file and loading its state dict."""
    declare_torchvision()
    import timm
    from safetensors.torch import load_file

    def load():
        timm.create_model("vit_base_patch16_224").load_state_dict(load_file(path))

    return {"seconds": _median(load)}


def _job_transformers(path):
    declare_torchvision()
    from transformers import ViTForImageClassification

    def load():
        for parameter in ViTForImageClassification.from_pretrained(path).parameters():
            parameter.max()

    return {"seconds": _median(load)}


def _median(load):
    load()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        load()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _weights(path):
    return path / "model.safetensors" if path.is_dir() else path


# Logits ------------------------------------------------------------------------------------------


def _logits(folder):
    """Largest difference of the logits of S/16 at 224 pixels by peer; None where it is not installed."""
    import numpy as np
    from reference.comparing import numpy

    model = _random("S/16", activation="gelu_erf")
    images = np.random.default_rng(0).uniform(-1, 1, (4, 224, 224, 3)).astype("float32")
    ours, found = numpy(model(images)), {}
    for peer in ("timm", "transformers", "keras_hub", "vit_keras"):
        compute = globals()[f"_{peer}_logits"] if installed(peer) else None
        theirs = compute and compute(model, images, folder)
        found[peer] = compute and float(np.abs(theirs - ours).max() / np.abs(theirs).max())
    return found


def _timm_logits(model, images, folder):
    declare_torchvision()
    import timm
    import torch

    from keras_vit import save_weights

    path = save_weights(model, folder / "s16_timm.safetensors", "timm")
    theirs = timm.create_model("vit_small_patch16_224", checkpoint_path=str(path)).eval()
    with torch.no_grad():
        return theirs(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def _transformers_logits(model, images, folder):
    declare_torchvision()
    import torch
    from transformers import ViTForImageClassification

    from keras_vit import save_weights

    save_weights(model, folder / "s16", "huggingface")
    theirs = ViTForImageClassification.from_pretrained(folder / "s16").eval()
    with torch.no_grad():
        return theirs(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).logits.numpy()


def _keras_hub_logits(model, images, folder):
    from peers.keras_hub_models import copied

    return copied(model)(images).numpy()


def _vit_keras_logits(model, images, folder):
    import numpy as np
    from vit_keras import utils, vit

    from keras_vit import save_weights

    with np.load(save_weights(model, folder / "s16_vit_keras.npz", "vit_jax")) as file:
        arrays = dict(file)
    for new, old in (("LayerNorm_1", "LayerNorm_2"), ("MlpBlock_0", "MlpBlock_3"), ("tion_0/", "tion_1/")):
        arrays = {key.replace(new, old) if "block" in key else key: a for key, a in arrays.items()}
    np.savez(folder / "s16_before_linen.npz", **arrays)  # the names that it knows
    theirs = vit.build_model(
        image_size=model.image_size,
        patch_size=model.patch_size[0],
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        name="theirs",
        mlp_dim=model.mlp_dim,
        classes=model.num_classes,
    )
    rows, columns = (side // patch for side, patch in zip(model.image_size, model.patch_size))
    utils.load_weights_numpy(theirs, str(folder / "s16_before_linen.npz"), True, columns, rows)
    return theirs(images).numpy()


# What both use -----------------------------------------------------------------------------------


def _report(loading, logits):
    names = ["keras_vit", "keras", "tensorflow", "safetensors", "timm", "transformers", "torch", "keras_hub"]
    names = [name for name in (*names, "vit_keras") if installed(name)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    lines = [
        "# Checkpoints",
        "",
        f"`python benchmarks/checkpoints.py`, {datetime.date.today()}: {versions}, "
        f"Python {platform.python_version()}, {processor()}, {os.cpu_count()} cores. "
        f"All weights are random. The load average at the end was {os.getloadavg()[2]:.1f}.",
        "",
        "## B/16 with 1000 classes: from_pretrained against numpy",
        "",
        "Seconds of `from_pretrained` without those of building the model, and of reading the file's arrays "
        f"with NumPy: medians of {ROUNDS} interleaved fresh processes, the file in the cache. Memory: the "
        "peak above that after the import, medians of 3 processes.",
        "",
        "| layout | MB | load, s | read, s | load ÷ read | bound | peak ÷ size | bound |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {layout} | {m['size'] / 1e6:.0f} | {m['load']:.3f} | {m['read']:.3f} "
            f"| {m['load'] / m['read']:.2f} | {SLOWEST} | {m['peak']:.2f} | {LARGEST} |"
            for layout, m in loading.items()
        ),
        "",
        "## The same file, loaded by others",
        "",
        "Building the model included on both sides, in the same rounds. transformers maps the file into "
        "memory and reads it when its numbers are wanted, so each of its parameters is looked at.",
        "",
        "| who | theirs, s | ours, s | ours ÷ theirs |",
        "|---|---|---|---|",
        *(
            f"| {peer} | not installed | | |"
            if (m := loading[layout])["peer"] is None
            else f"| {peer} | {m['peer']:.3f} | {m['whole']:.3f} | {m['whole'] / m['peer']:.2f} |"
            for layout, peer in PEERS.items()
        ),
        "",
        "## S/16 at 224 pixels: logits from the same random weights",
        "",
        "Largest difference ÷ largest logit, float32, four images.",
        "",
        "| who | difference |",
        "|---|---|",
        *(
            f"| {peer} | {'not installed' if found is None else f'{found:.1e}'} |"
            for peer, found in logits.items()
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
