"""Detectors at their real sizes next to transformers' OWLv2, OWL-ViT and YOLOS; writes DETECTION.md.

    python benchmarks/detection.py --cases "OWL-ViT B/32, 768 px" --rounds 7

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
    DETECTED,
    Case,
    declare_torchvision,
    keras_inference,
    openvino_step,
    timed,
    torch_step,
    yolos,
)

CASES = {  # title → (transformers' class, variant, image size)
    "OWL-ViT B/32, 768 px": ("OwlViT", "B/32", 768),
    "OWLv2 B/16, 960 px": ("Owlv2", "B/16", 960),
    "S/16 with 91 classes, 512 px": ("Yolos", "S/16", 512),
}
QUERIES, CLASSES, BOUND = 4, DETECTED, 3e-6
RESULTS = HERE / "DETECTION.json"
INTRODUCTION = f"""\
`benchmarks/detection.py` measures and writes this page. One image at a time, random weights, float32.
`keras_vit` is `predict_on_batch`; `graph` and `XLA` are `tf.function` without and with `jit_compile`,
`OpenVINO` is the exported model in float32, `compiled` is `torch.compile`.

OWL-ViT and OWLv2 have {QUERIES} classes, whose texts neither package computes with the image: transformers'
`image_embedder`, `class_predictor` and `box_predictor` are compared with `ObjectDetector.with_queries`. The
largest differences of their outputs, boxes and logits, are relative to the largest output; the bound is
{BOUND}. YOLOS is another model of the same size with {CLASSES} classes, which has 100 tokens for objects in
place of a head for each patch; it is compared with an `ObjectDetector` of as many classes.

Speed ratio: the time of the faster form of transformers ÷ the system's, medians of interleaved rounds;
above 1 is faster.

The processor is AMD's, where PyTorch's library for products, MKL, is slow: of 2,048×2,048 in float32 it has
194 GFLOP/s, and TensorFlow 433. On an Intel processor the ratios were 0.78 to 0.89 (OWLv2),
before the attention by heads."""


def main():
    measure_cases("detection", __doc__, CASES, RESULTS)
    write_report()


# In a process of `harness.py` -------------------------------------------------------------------


def compare(title, folder):
    """Write transformers' model with random weights; the largest difference of outputs, or None of YOLOS."""
    import numpy as np

    theirs, folder = _random_peer(title), pathlib.Path(folder)
    theirs.save_pretrained(folder)
    if CASES[title][0] == "Yolos":
        return None
    ours = _ours(title, folder)
    case = _case(title)
    images, _ = case.data()
    expected = torch_step(case, folder, lambda case: _image_part(theirs, folder), compiled=False)()
    found = np.asarray(ours.predict_on_batch(images))
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def measure_system(name, title, folder, threads=None):
    """Build a system; the function that times it."""
    use_cores(threads)
    case, folder = _case(title), pathlib.Path(folder)
    if name == EXPORTED:
        return timed(openvino_step(_ours(title, folder), case, folder))
    if name in OURS:
        model, images = _ours(title, folder), case.data()[0]
        if name == OURS[0]:
            return timed(lambda: model.predict_on_batch(images))
        return timed(keras_inference(model, case, name == "keras_vit XLA"))
    build = functools.partial(_peer, title=title, folder=folder)
    return timed(torch_step(case, folder, build, name.endswith("compiled")))


def _case(title):
    _, variant, size = CASES[title]
    return dataclasses.replace(Case(variant), image_size=size)


def _ours(title, folder):
    import keras_vit

    name, variant, size = CASES[title]
    if name == "Yolos":
        options = keras_vit.variants.parse_variant(variant) | {"image_size": size, "class_token": True}
        return keras_vit.ObjectDetector(keras_vit.VisionTransformer.from_config(options), CLASSES)
    model = keras_vit.from_pretrained(folder)
    return model.with_queries([*map(str, range(QUERIES))], _vectors(model.query_size))


def _vectors(size):
    import numpy as np

    return np.random.default_rng(1).standard_normal((QUERIES, size)).astype("float32")


def _random_peer(title):
    declare_torchvision()
    import torch
    import transformers

    name, variant, size = CASES[title]
    sides = {"image_size": size, "patch_size": int(variant.partition("/")[2])}
    torch.manual_seed(0)
    if name == "Yolos":
        return yolos(_case(title))
    config = getattr(transformers, f"{name}Config")(vision_config=sides)
    return getattr(transformers, f"{name}ForObjectDetection")(config)


def _peer(case, title, folder):
    declare_torchvision()
    import transformers

    name = CASES[title][0]
    model = getattr(transformers, f"{name}ForObjectDetection").from_pretrained(folder).eval()
    return model if name == "Yolos" else _image_part(model, folder)


def _image_part(model, folder):
    """A module from images to boxes and the logits of classes with given vectors."""
    import torch

    class ImagePart(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model.eval()
            queries = torch.from_numpy(_vectors(model.config.projection_dim))[None]
            self.register_buffer("queries", queries / queries.norm(dim=-1, keepdim=True))

        def forward(self, images):
            grid, _ = self.model.image_embedder(pixel_values=images)
            tokens = grid.reshape(grid.shape[0], -1, grid.shape[-1])
            logits, _ = self.model.class_predictor(tokens, self.queries, None)
            return torch.cat([self.model.box_predictor(tokens, grid), logits], dim=-1)

    return ImagePart()


# The page ---------------------------------------------------------------------------------------


def report(results):
    """The text of DETECTION.md."""
    return page_of_cases("Detectors at their real sizes", INTRODUCTION, results, PEERS)


def write_report():
    text = report(json.loads(RESULTS.read_text()))
    (HERE / "DETECTION.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
