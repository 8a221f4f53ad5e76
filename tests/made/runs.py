"""One run with everything random, trained once for all tests; and configurations of other kinds of runs."""

import dataclasses
import pathlib

import pytest
from made.folders import (
    write_boxes,
    write_captions,
    write_classes,
    write_depths,
    write_keypoints,
    write_masks,
)
from reference.comparing import randomize
from reference.small import INTERRUPTED, SMALL

from keras_vit import (
    DepthEstimator,
    ImageSegmenter,
    ImageTextModel,
    KeypointEstimator,
    ObjectDetector,
    VisionTransformer,
)
from keras_vit.data.sources.digits_words import word_tokenizer
from keras_vit.training import Recipe, RunConfig
from keras_vit.training.workdir import Workdir

ENCODER = {name: value for name, value in SMALL.items() if name != "num_classes"} | {"num_layers": 1}
ROTARY = {"rotary": "dinov3", "max_rotary_rescale": 2.0}
MODEL = {**ENCODER, **ROTARY, "gated_mlp": True, "activation": "silu"}
RANDOM = {"crop_area": (0.5, 1.0), "stochastic_depth_rate": 0.2, "shift": 0.1, "mixup": 0.3}
RANDOM |= {"patch_dropout_rate": 0.25}
DECAY = {"weight_decay": 0.1, "layer_decay": 0.8, "label_smoothing": 0.1}
RECIPE = Recipe("adamw", 3e-3, total_steps=14, batch_size=4, **RANDOM, **DECAY, **INTERRUPTED)

SEGMENTERS = {
    "up": {"head": "up", "decoder_size": 8},
    "mask": {"head": "mask", "num_queries": 6, "query_blocks": 1, "loss_points": 32},
}
SCALED = {"crop_area": None, "scale_jitter": (0.5, 2.0), "photometric": 0.5}
SEGMENTATION = Recipe("sgd", 0.1, 24, batch_size=4, task="segmentation", **SCALED, **INTERRUPTED)


BOXES = Recipe("sgd", 0.1, 24, batch_size=4, task="detection", **SCALED, **INTERRUPTED)
DPT = {"decoder_size": 8, "head_size": 4}
DEPTHS = Recipe("sgd", 0.1, 24, batch_size=4, task="depth", head_options=DPT, **SCALED, **INTERRUPTED)
SIMPLE = {"head": "simple"}  # without a batch norm
POINTS = Recipe("sgd", 0.1, 24, batch_size=4, task="keypoints", head_options=SIMPLE, **SCALED, **INTERRUPTED)
WHOLE = {**INTERRUPTED, "accumulation_steps": 1}
PATCHES = {"crop_area": (0.5, 1.0), "patch_sizes": (4, 8, 16)}
FLEXIBLE = Recipe("sgd", 0.1, 24, batch_size=4, **PATCHES, **INTERRUPTED)
PAIRS = Recipe("sgd", 0.1, total_steps=24, batch_size=4, crop_area=(0.5, 1.0), image_text={}, **WHOLE)
WITHOUT_LABELS = Recipe("adamw", 3e-3, 24, batch_size=4, crop_area=(0.5, 1.0), **INTERRUPTED)
PIXELS = {"image_size": 4, "patch_size": 1, "palette": 6, "causal": True, "pooling": "gap", "norm": "rms"}
HEAD = {"num_local": 1, "local_size": 8, "out_dim": 16, "hidden_dim": 12, "bottleneck_dim": 6}
SCHEDULES = {"temperature_steps": 8, "first_teacher_temperature": 0.02, "freeze_steps": 3}
TAUGHT = {  # the fields of the recipe, and the options of the student and of its teacher
    "taught": ({"mixup": 0.3}, {"num_classes": 2}, {"num_classes": 2, "image_size": 32}),
    "features": ({"distillation": {"method": "features"}}, {"pooling": "gap"}, {"patch_size": 4}),
}
TEACHING = Recipe("sgd", 0.1, 24, batch_size=4, crop_area=(0.5, 1.0), **INTERRUPTED)
OBJECTIVES = {  # the encoder's sizes, and the fields of the recipe
    "mae": (
        {**ENCODER, "num_layers": 2},
        {"pretrainer": {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}},
    ),
    "igpt": ({**ENCODER, **PIXELS}, {}),
    "dino": (ENCODER, {"ema": None, "photometric": 0.5, "pretrainer": {**HEAD, **SCHEDULES}}),
}


def changed(config, **changes):
    """A configuration with other fields, of its own or else of its recipe."""
    own = {f.name: changes.pop(f.name) for f in dataclasses.fields(config) if f.name in changes}
    return dataclasses.replace(config, recipe=config.recipe.with_changes(**changes), **own)


def segmenter(head):
    encoder = VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1})
    return ImageSegmenter(encoder, 3, **SEGMENTERS[head])


def detector(labels):
    return ObjectDetector(VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1}), 2)


def depth_estimator(labels):
    return DepthEstimator(VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1}), **DPT)


def keypoint_estimator(labels):
    encoder = VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1})
    return KeypointEstimator(encoder, 3, flip_index=(1, 0, 2), **SIMPLE)


def pupil(labels):
    return VisionTransformer(**ENCODER | {"num_classes": None} | TAUGHT[labels][1])


def with_table(labels):
    return VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1, "position_grid": 3})


def towers(objective):
    prepare = word_tokenizer([f"some photo of a dark bright {' '.join(map(str, range(24)))}"])
    text = {"vocabulary_size": prepare.vocabulary_size, "length": prepare.length, "hidden_size": 12}
    text |= {"num_layers": 1, "mlp_dim": 12, "num_heads": 2}
    image = {**SMALL, "num_classes": None, "num_layers": 1, "pooling": "gap"}
    return ImageTextModel(image, text, objective, text_preprocessing=prepare)


@pytest.fixture(scope="session")
def labeled(tmp_path_factory):
    """A function to the RunConfig of a run: without labels, of another task, with a teacher or "flexible".

    All but those without labels start from the same weights on every backend.
    """
    folder = tmp_path_factory.mktemp("labeled")
    write_classes(folder / "classes", count=12)
    write_masks(folder / "masks", count=12, size=(16, 16))
    write_captions(folder / "captions", count=24)
    write_boxes(folder / "boxes", count=12)
    write_depths(folder / "depths", count=12)
    write_keypoints(folder / "points", count=12)

    def configure(labels, **changes):
        if labels in OBJECTIVES:
            model, fields = OBJECTIVES[labels]
            recipe = WITHOUT_LABELS.with_changes(**{**fields, **changes})
            return RunConfig(f"folder:{folder / 'classes'}", recipe, model, objective=labels)
        data, recipe, make = "captions", PAIRS, towers
        if labels in SEGMENTERS:
            data, recipe, make = (
                "masks",
                SEGMENTATION.with_changes(head_options=SEGMENTERS[labels]),
                segmenter,
            )
        elif labels == "boxes":
            data, recipe, make = "boxes", BOXES, detector
        elif labels == "depths":
            data, recipe, make = "depths", DEPTHS, depth_estimator
        elif labels == "points":
            data, recipe, make = "points", POINTS.with_changes(rotate=30.0), keypoint_estimator
        elif labels in TAUGHT:
            data, recipe, make = "classes", TEACHING.with_changes(**TAUGHT[labels][0]), pupil
        elif labels == "flexible":
            data, recipe, make = "classes", FLEXIBLE, with_table
        file = folder / f"{labels}.keras"
        if not file.exists():
            randomize(make(labels)).save(file)
        teachers = ()
        if labels in TAUGHT:
            teachers = (str(folder / f"teacher of {labels}.keras"),)
            randomize(VisionTransformer(**ENCODER | TAUGHT[labels][2]), seed=2).save(teachers[0])
        recipe = recipe.with_changes(**changes)
        return RunConfig(f"folder:{folder / data}", recipe, weights=str(file), teachers=teachers)

    return configure


@pytest.fixture(scope="session")
def finished(shared_folder):
    """(RunConfig, Workdir) of a finished run; its record is `workdir.result`."""
    from keras_vit.training.run import train

    def configure(folder):
        return RunConfig(f"folder:{folder / 'images'}", RECIPE, MODEL)

    def make(folder: pathlib.Path):
        write_classes(folder / "images", count=12)
        train(configure(folder), folder / "run", verbose=0)

    folder = shared_folder("training_run", make)
    config = configure(folder)
    return config, Workdir(folder / "run", config.with_dtype("float32").as_json())
