"""Depth estimators at their real sizes next to transformers' Depth Anything; writes DEPTH.md.

    python benchmarks/depth.py --cases "Depth Anything V2 S/14" --rounds 7

All weights are random. Each system runs in its own process, one image at a time, and the processes of a case
take turns. Cases that are not measured again keep their results.
"""

import dataclasses
import functools
import json
import pathlib

from cases import EXPORTED, OURS, PEERS, measure_cases
from harness import HERE
from machine import use_cores
from report import page_of_cases
from systems import (
    Case,
    declare_torchvision,
    depth_anything,
    keras_inference,
    openvino_step,
    timed,
    torch_step,
)

SIZE = 518  # pixels
CASES = {f"Depth Anything V2 {variant}": variant for variant in ("S/14", "B/14")}
BOUND = 3e-6
RESULTS = HERE / "DEPTH.json"
INTRODUCTION = f"""\
`benchmarks/depth.py` measures and writes this page. One image of {SIZE} pixels at a time, random weights,
float32. `keras_vit` is `predict_on_batch` of the model that `from_pretrained` reads from transformers' file;
`graph` and `XLA` are `tf.function` without and with `jit_compile`, `OpenVINO` is the exported model in
float32, `compiled` is `torch.compile`. The largest differences of the outputs are relative to the largest
output; the bound is {BOUND}.

Speed ratio: the time of the faster form of transformers ÷ the system's, medians of interleaved rounds;
above 1 is faster.

The processor is AMD's, where PyTorch's library for products, MKL, is slow: of 2,048×2,048 in float32 it has
194 GFLOP/s, and TensorFlow 433. On an Intel processor the ratios were 0.88 to 1.02, before the attention
by heads."""


def main():
    measure_cases("depth", __doc__, CASES, RESULTS)
    write_report()


# In a process of `harness.py` -------------------------------------------------------------------


def compare(title, folder):
    """Write transformers' model with random weights; the largest difference of outputs."""
    import numpy as np

    _random_peer(title).save_pretrained(folder)
    case = _case(title)
    images, _ = case.data()
    expected = torch_step(case, folder, functools.partial(_peer, folder=folder), compiled=False)()
    found = np.asarray(_ours(folder).predict_on_batch(images))[..., 0]
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def measure_system(name, title, folder, threads=None):
    """Build a system; the function that times it."""
    use_cores(threads)
    case, folder = _case(title), pathlib.Path(folder)
    if name == EXPORTED:
        return timed(openvino_step(_ours(folder), case, folder))
    if name in OURS:
        model, images = _ours(folder), case.data()[0]
        if name == OURS[0]:
            return timed(lambda: model.predict_on_batch(images))
        return timed(keras_inference(model, case, name == "keras_vit XLA"))
    build = functools.partial(_peer, folder=folder)
    return timed(torch_step(case, folder, build, name.endswith("compiled")))


def _case(title):
    return dataclasses.replace(Case(CASES[title]), image_size=SIZE)


def _ours(folder):
    import keras_vit

    return keras_vit.from_pretrained(folder)


def _random_peer(title):
    declare_torchvision()
    import torch

    torch.manual_seed(0)
    return depth_anything(_case(title))


def _peer(case, folder):
    declare_torchvision()
    import torch
    import transformers

    model = transformers.DepthAnythingForDepthEstimation.from_pretrained(folder).eval()

    class Depth(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model(pixel_values=images).predicted_depth

    return Depth()


# The page ---------------------------------------------------------------------------------------


def report(results):
    """The text of DEPTH.md."""
    return page_of_cases("Depth estimators at their real sizes", INTRODUCTION, results, PEERS)


def write_report():
    text = report(json.loads(RESULTS.read_text()))
    (HERE / "DEPTH.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
