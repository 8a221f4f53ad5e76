"""Time and memory of loading checkpoints, and logits compared with peers; writes CHECKPOINTS.md.

All weights are random. Results of one run are comparable with each other only. A peer that is not installed
(requirements-peers.txt) gets a row that says so.
"""

import argparse
import datetime
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from harness import measure  # noqa: E402
from machine import installed, processor, versions  # noqa: E402
from report import table  # noqa: E402
from systems import declare_torchvision, mebibytes, reset_peak  # noqa: E402

ROUNDS = 7
# Layout → the file, and options that the layout cannot hold otherwise.
LAYOUTS = {
    "vit_jax": ("b16.npz", {}),
    "big_vision": ("b16_bv.npz", {"pooling": "gap", "prefix_positions": False}),
    "timm": ("b16_timm.safetensors", {"activation": "gelu_erf"}),
    "huggingface": ("b16_hf", {"activation": "gelu_erf"}),
}
PEERS = {"timm": "timm", "huggingface": "transformers"}  # layout → the package that it belongs to
PACKAGES = ("keras_vit", "keras", "tensorflow", "safetensors", "timm", "transformers", "torch", "keras_hub")


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loading = {layout: loaded(layout, pathlib.Path(folder)) for layout in LAYOUTS}
        text = report(loading, logit_differences(pathlib.Path(folder)))
    print(text)
    (HERE / "CHECKPOINTS.md").write_text(text)


def random_model(variant, scale=0.05, **options):
    from reference.comparing import randomize

    from keras_vit import VisionTransformer

    return randomize(VisionTransformer.from_variant(variant, num_classes=1000, **options), scale)


# Loading -----------------------------------------------------------------------------------------


def loaded(layout, folder):
    """File size, median seconds of loading and of reading with NumPy, and the peak memory ÷ file size."""
    from keras_vit import save_weights

    name, options = LAYOUTS[layout]
    path = folder / name
    save_weights(random_model("B/16", **options), path, layout)
    peer = PEERS.get(layout)
    jobs = ["time_ours", "time_numpy", *([f"time_{peer}"] if peer and installed(peer) else [])]
    found = {job: [] for job in jobs}
    for _ in range(ROUNDS):
        for job in jobs:
            found[job].append(measure(f"checkpoints.{job}", path=str(path)))

    def median(job, what="seconds"):
        return statistics.median(values[what] for values in found[job]) if job in found else None

    size = _weights(path).stat().st_size
    peaks = [measure("checkpoints.peak_memory", path=str(path))["bytes"] / size for _ in range(3)]
    return {
        "size": size,
        "load": median("time_ours"),
        "whole": median("time_ours", "whole"),
        "read": median("time_numpy"),
        "peak": statistics.median(peaks),
        "peer": median(f"time_{peer}"),
    }


def time_ours(path):
    """Seconds of from_pretrained, with and without the time to build the model."""
    import keras_vit

    config = keras_vit.from_pretrained(path).get_config()
    whole = _median(lambda: keras_vit.from_pretrained(path))
    building = _median(lambda: keras_vit.VisionTransformer.from_config(config))
    return {"seconds": whole - building, "whole": whole}


def time_numpy(path):
    """Seconds of reading the file's arrays as NumPy arrays."""
    return {"seconds": _median(lambda: _arrays(_weights(pathlib.Path(path))))}


def time_timm(path):
    """Seconds of building the model, reading the file and loading its state dict."""
    declare_torchvision()
    import timm
    from safetensors.torch import load_file

    return {
        "seconds": _median(lambda: timm.create_model("vit_base_patch16_224").load_state_dict(load_file(path)))
    }


def time_transformers(path):
    """Seconds of loading, with one use of each parameter, because the file is memory-mapped."""
    declare_torchvision()
    from transformers import ViTForImageClassification

    def load():
        for parameter in ViTForImageClassification.from_pretrained(path).parameters():
            parameter.max()

    return {"seconds": _median(load)}


def peak_memory(path):
    """Peak bytes of resident memory while loading, minus the memory after the import."""
    import keras_vit

    _ = keras_vit.from_pretrained
    before = mebibytes("VmRSS")
    reset_peak()
    model = keras_vit.from_pretrained(path)
    return {"bytes": (mebibytes("VmHWM") - before) * 2**20, "layers": len(model.layers)}


def _median(load, repeats=3):
    """Median seconds after a first call, which fills caches."""
    seconds = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        load()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def _arrays(path):
    import numpy as np
    from safetensors.numpy import load_file

    return dict(np.load(path)) if path.suffix == ".npz" else load_file(path)


def _weights(path):
    return path / "model.safetensors" if path.is_dir() else path


# Logits ------------------------------------------------------------------------------------------


def logit_differences(folder):
    """Peer → largest difference of the logits of S/16 at 224 pixels ÷ the largest logit."""
    import numpy as np
    from reference.comparing import numpy

    model = random_model("S/16", activation="gelu_erf")
    images = np.random.default_rng(0).uniform(-1, 1, (4, 224, 224, 3)).astype("float32")
    ours, found = numpy(model(images)), {}
    for peer, compute in LOGITS.items():
        theirs = compute(model, images, folder) if installed(peer) else None
        found[peer] = None if theirs is None else float(np.abs(theirs - ours).max() / np.abs(theirs).max())
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


LOGITS = {
    "timm": _timm_logits,
    "transformers": _transformers_logits,
    "keras_hub": _keras_hub_logits,
}


def report(loading, differences):
    found = ", ".join(f"{name} {version}" for name, version in versions(PACKAGES).items())
    peers = [
        (peer, "not installed", "", "")
        if (m := loading[layout])["peer"] is None
        else (peer, f"{m['peer']:.3f}", f"{m['whole']:.3f}", f"{m['whole'] / m['peer']:.2f}")
        for layout, peer in PEERS.items()
    ]
    sizes = [
        (
            *(layout, f"{m['size'] / 1e6:.0f}", f"{m['load']:.3f}", f"{m['read']:.3f}"),
            *(f"{m['load'] / m['read']:.2f}", f"{m['peak']:.2f}"),
        )
        for layout, m in loading.items()
    ]
    logits = [(peer, "not installed" if d is None else f"{d:.1e}") for peer, d in differences.items()]
    parts = [
        "# Checkpoints",
        f"`python benchmarks/checkpoints.py`, {datetime.date.today()}: {found}, {processor()}, "
        f"{os.cpu_count()} cores. All weights are random. The load average at the end was "
        f"{os.getloadavg()[2]:.1f}.",
        "## B/16 with 1000 classes: from_pretrained and NumPy",
        "Seconds of `from_pretrained` minus those of building the model, and of reading the arrays with "
        f"NumPy: medians of {ROUNDS} interleaved fresh processes, the file in the page cache. Memory: the "
        "peak above that after the import, medians of 3 processes.",
        table(("layout", "MB", "load, s", "read, s", "load ÷ read", "peak ÷ size"), sizes),
        "## The same file, loaded by peers",
        "Building the model included on both sides, in the same rounds. transformers maps the file into "
        "memory and reads it on use, so each of its parameters is used once.",
        table(("peer", "peer, s", "keras_vit, s", "keras_vit ÷ peer"), peers),
        "## S/16 at 224 pixels: logits from the same random weights",
        "Largest difference ÷ largest logit, float32, four images.",
        table(("peer", "difference"), logits),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
