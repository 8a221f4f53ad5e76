"""Every kind of model with everything that can be done with a model: it works, or is refused in one line."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
from unittest import mock

import keras
import numpy as np
import pytest
from made.folders import write_classes, write_depths, write_keypoints, write_masks
from made.sampling import some
from made.scenes import few_scenes
from made.servers import asked_hub
from made.tables import by_table
from PIL import Image
from reference.comparing import assert_same_arrays, randomize
from reference.small import DECODER, HEAD, HYBRID, NO_TRANSFORMER, PACKED, PIXELS, SMALL, TEXT

import _keras_vit_cli
import keras_vit
from keras_vit import evaluation, export, inspection
from keras_vit.cli import image_batches
from keras_vit.cli.labels import with_labels
from keras_vit.data import datasets, load_dataset
from keras_vit.embeddings import embed, plan_embeddings, read_embeddings
from keras_vit.engine.adapting import plain_arrays
from keras_vit.evaluation.representations import encoder_of
from keras_vit.export import folder as exporting
from keras_vit.export.formats import FORMATS
from keras_vit.models.backbones import backbone
from keras_vit.tasks import NAMES, OBJECTIVES, get_task
from keras_vit.training import RunConfig, compile_model, find_recipe
from keras_vit.training.building import build_model
from keras_vit.weights import average_models
from keras_vit.weights.checkpoint import KINDS as STORED_KINDS
from keras_vit.weights.kinds import stored_classes
from keras_vit.weights.layouts import LAYOUTS

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")
ONE = {**SMALL, "num_layers": 1, "num_classes": 10, "mlp_dim": 24, "activation": "gelu_erf"}
BARE = {**ONE, "num_classes": None}
ANY_SIZE = {"image_size": (None, None), "position_grid": 2}
TOWERS = {"text": TEXT, "text_projection": 12, "projection_bias": True}
QUERIES = {"head": "mask", "num_queries": 3, "query_blocks": 1}
DINOV2 = {**BARE, "mlp_dim": 48, "layer_scale": 0.1, "prefix_positions": False}
MAP = {**BARE, "pooling": "map", "prefix_positions": False}
WORDS = {
    **{"encoder": {**BARE, "pre_norm": True}, "merge_class_token": True, "head_activation": "gelu_erf"},
    **{"query_size": 12, "text": {**TEXT, "causal": True, "pooling": "argmax"}},
    "class_ids": [[number] * TEXT["length"] for number in range(1, 11)],
}
VIT, SEGMENTER, PAIR = keras_vit.VisionTransformer, keras_vit.ImageSegmenter, keras_vit.ImageTextModel
DETECTOR, ESTIMATOR, POINTS = keras_vit.ObjectDetector, keras_vit.DepthEstimator, keras_vit.KeypointEstimator
DPT = {"decoder_size": 8, "head_size": 4}
KINDS = {
    "classifier": (VIT, ONE),
    "features": (VIT, BARE),
    "tokens": (VIT, {**BARE, "pooling": None}),
    "distilled": (VIT, {**ONE, "distillation": True}),
    "registers": (VIT, {**ONE, "num_registers": 2, "prefix_positions": False}),
    "adapted": (VIT, ONE),
    "quantized": (VIT, ONE),
    "hybrid": (VIT, {**ONE, **HYBRID, "resnet": (1,)}),
    "patches": (VIT, {**ONE, **NO_TRANSFORMER}),
    "any size": (VIT, {**ONE, **ANY_SIZE}),
    "packed": (keras_vit.PackedVisionTransformer, {**ONE, **PACKED}),
    "palette": (keras_vit.PixelTransformer, {**ONE, **PIXELS, "norm": "rms"}),
    "iGPT": (keras_vit.ImageGPT, {"encoder": {**BARE, **PIXELS, "norm": "rms"}}),
    "masked patches": (keras_vit.MaskedPatchPredictor, {"encoder": BARE}),
    "MAE": (keras_vit.MaskedAutoencoder, {"encoder": BARE, **DECODER}),
    "DINO": (keras_vit.DINO, {"encoder": BARE, **HEAD}),
    "segmenter": (SEGMENTER, {"encoder": BARE, "num_classes": 11}),
    "any-size segmenter": (SEGMENTER, {"encoder": {**BARE, **ANY_SIZE}, "num_classes": 11}),
    "EoMT": (SEGMENTER, {"encoder": DINOV2, "num_classes": 11, **QUERIES}),
    "detector": (DETECTOR, {"encoder": BARE, "num_classes": 10}),
    "any-size detector": (DETECTOR, {"encoder": {**BARE, **ANY_SIZE}, "num_classes": 10}),
    "word detector": (DETECTOR, WORDS),
    "depth estimator": (ESTIMATOR, {"encoder": BARE, **DPT}),
    "any-size depth estimator": (ESTIMATOR, {"encoder": {**BARE, **ANY_SIZE}, **DPT}),
    "Depth Anything": (ESTIMATOR, {"encoder": DINOV2, **DPT, "quantity": "disparity"}),
    "depth bins": (ESTIMATOR, {"encoder": BARE, "head": "linear", "head_norm": "batch", "bins": 8}),
    "surface normals": (
        ESTIMATOR,
        {"encoder": BARE, "head": "linear", "quantity": "values", "num_classes": 3},
    ),
    "keypoint estimator": (POINTS, {"encoder": BARE, "num_classes": 3, "decoder_width": 4}),
    "any-size keypoint estimator": (
        POINTS,
        {"encoder": {**BARE, **ANY_SIZE}, "num_classes": 3, "head": "simple"},
    ),
    "vitpose": (
        POINTS,
        {"encoder": {**BARE, "pooling": "gap", "patch_padding": 2}, "num_classes": 3, "head": "simple"},
    ),
    "two towers": (PAIR, {"image": MAP, **TOWERS}),
    "packed towers": (PAIR, {"image": {**BARE, **PACKED, "activation": "gelu_tanh"}, **TOWERS}),
    "text": (keras_vit.TextTransformer, TEXT),
}
CHANGED = {"adapted": lambda model: model.enable_lora(2), "quantized": lambda model: model.quantize("int8")}
SEGMENTERS = {"segmenter", "any-size segmenter", "EoMT"}
DETECTORS = {"detector", "any-size detector", "word detector"}
DEPTHS = {"depth estimator", "any-size depth estimator", "Depth Anything", "depth bins"}
ESTIMATORS = DEPTHS | {"surface normals"}
KEYPOINTS = {"keypoint estimator", "any-size keypoint estimator", "vitpose"}
# Of data with a channel, and with objects that are cropped to a size.
OF_TASKS = {
    **{"segmentation": SEGMENTERS, "detection": DETECTORS, "depth": DEPTHS},
    "keypoints": KEYPOINTS - {"any-size keypoint estimator"},
}
HEADED = SEGMENTERS | DETECTORS | ESTIMATORS | KEYPOINTS
PAIRS = {"two towers", "packed towers"}
OPEN_SIZE = {
    *("any size", "any-size segmenter", "any-size detector", "any-size depth estimator"),
    "any-size keypoint estimator",
}
PRETRAINERS = {"iGPT", "masked patches", "MAE", "DINO"}
PLAIN = {"classifier", "features", "tokens", "any size", "adapted", "quantized"}  # of every project's files
VITS = PLAIN | {"distilled", "registers", "hybrid", "patches", "packed", "palette"}
WITH_HEAD = VITS - {"features", "tokens"}
WITH_IMAGES = {*KINDS} - {"text"}
UNPACKED = WITH_IMAGES - {"packed", "packed towers"}
WITH_BLOCKS = UNPACKED - {"patches"}
INSPECTED = VITS & WITH_BLOCKS
EXPORTED = VITS & UNPACKED | HEADED
TRAINED = UNPACKED - {"two towers"}  # two towers end with their pooling
FILES = {"huggingface": "folder", "open_clip": "folder", "timm": "model.safetensors"}  # .npz of others
PRECISIONS = {format.option: format.precision or "float32" for format in reversed(FORMATS)}


@functools.cache
def digits(task="single_label"):
    """A few scanned digits, with labels of a task for whole images."""
    labels = {
        "single_label": lambda digit: digit,
        "multi_label": lambda digit: tuple(float(digit == index) for index in range(10)),
        "regression": lambda digit: (float(digit),) * 10,
    }[task]

    def few(samples):
        samples = samples.take(range(60))
        return dataclasses.replace(samples, labels=tuple(map(labels, samples.labels)))

    data = load_dataset("digits")
    return dataclasses.replace(data, task=task, splits={name: few(of) for name, of in data.splits.items()})


def scans(task="single_label"):
    return digits(task).split("test").take([0, 1])


def inputs_of(model):
    return backbone(model).preprocessing([*IMAGES])


def evaluated(task):
    def evaluate(model, folder, file):
        if get_task(task).label.is_map:
            folder = file.with_name({"segmentation": "masks", "depth": "depths"}[task])
            samples = load_dataset(folder, task=task).split("train").take([0, 1])
        elif task == "detection":
            samples = few_scenes().split("test").take([0, 1])
        elif task == "keypoints":
            samples = load_dataset(file.with_name("points"), task=task).split("train").take([0, 1])
        else:
            samples = scans(task)
        return evaluation.evaluate(model, samples, task=task)

    return evaluate


def retrieved(model, *_):
    def encode_text(self, texts, batch_size):
        return self.text(np.ones((len(texts), TEXT["length"]), "int32"))

    with mock.patch.object(PAIR, "encode_text", encode_text):
        return evaluation.retrieval(model, scans(), [("a digit",)] * 10)


def predicted(model, folder, file):
    """What `keras-vit predict` does."""
    model = with_labels(model, None, None)
    task = get_task(getattr(model, "task", None) or "single_label")
    task.check_model(model)
    return [*image_batches.predicted(task, model, [str(file.with_name("image.png"))], 5)]


def embedded(model, folder, file):
    images = write_classes(file.with_name("images"), count=1)
    embedder = plan_embeddings(folder / "out", "", model, {"name": f"folder:{images}"}, batch_size=2)
    found = embed(embedder)
    assert (found["images"], found["errors"]) == (2, 0) and read_embeddings(folder / "out").num_rows == 2


def inspected(name, *arguments):
    def inspect_model(model, *_):
        return getattr(inspection, name)(model, *(argument(model) for argument in arguments))

    return inspect_model


def reloaded(model, folder, _):
    model.save(folder / "model.keras")
    assert_same_arrays(plain_arrays(keras.models.load_model(folder / "model.keras")), plain_arrays(model))


def survives(copied):
    """A copy of a compiled model, by a function of the model and a folder, is compiled in the same way."""

    def check(model, folder, _):
        model = type(model).from_config(model.get_config())
        compile_model(model, total_steps=2)
        copied_model = copied(model, folder)
        assert copied_model.compiled and type(copied_model.optimizer) is type(model.optimizer)
        assert (copied_model.loss is None) == (model.loss is None)
        if type(copied_model) is type(model):
            assert_same_arrays(plain_arrays(copied_model), plain_arrays(model))
            for name in ("accumulation_steps", "random_seed", "total_steps"):
                assert getattr(copied_model, name) == getattr(model, name)
        else:
            assert copied is cloned and type(copied_model).__name__ == "Functional"

    return check


def cloned(model, _):
    return keras.models.clone_model(model)


def saved(model, folder):
    model.save(folder / "compiled.keras")
    return keras.models.load_model(folder / "compiled.keras")


def averaged(model, folder, file):
    """The mean of a model and another one of its kind."""
    other = type(model).from_config(model.get_config())
    with tempfile.TemporaryDirectory() as elsewhere:
        other.save(f"{elsewhere}/other.keras")
        return average_models([file, f"{elsewhere}/other.keras"])


def loaded(**options):
    return lambda model, folder, file: keras_vit.from_pretrained(file, **options)


def stored(layout):
    return lambda model, folder, _: keras_vit.save_weights(
        model, folder / FILES.get(layout, "model.npz"), layout
    )


def changed(change):
    """Change the model itself, and restore it from a copy of its configuration."""
    return lambda model, *_: change(type(model).from_config(model.get_config()))


def pushed(model, folder, _):
    repository = "me/model"
    with pytest.MonkeyPatch.context() as changes, asked_hub(folder / "hub", changes) as hub:
        changes.setenv("HF_TOKEN", "hf_secret")
        try:
            keras_vit.push_to_hub(model, repository)
        except ValueError:
            assert hub.seen == []
            raise
        files = hub.repositories[repository]["main"][1]
        card = files["README.md"].decode()
        assert f'from_pretrained("hf://{repository}"' in card and "{" not in card and "None" not in card
        arguments = re.search(rf'hf://{repository}"(.*)\)', card)[1]
        options = dict(re.findall(r'(kind)="(\w+)"', arguments))
        again = keras_vit.from_pretrained(repository, **options, **sized(model))
    assert type(again) is type(model)
    assert_same_arrays(plain_arrays(again), plain_arrays(model))
    names = json.loads(files["config.json"]).get("architectures")
    assert names is None or isinstance(model, VIT) or f"{names[0]}.from_pretrained" in card


def sized(model):
    """What the model's files do not hold."""
    encoder = backbone(model)
    is_open = encoder.image_size == (None, None) and not encoder.preprocessing.packs
    return {"image_size": encoder.image_size} if is_open else {}


def checked_export(option):
    """An export up to the writing of its files, which is what is checked before that."""
    row = {"score": None}

    def written(format, job, target, reference):
        target.mkdir(parents=True, exist_ok=True)
        return row

    parts = {
        "_export": written,
        "live_reference": lambda *_: mock.Mock(images=IMAGES, **{"measure.return_value": row}),
        "live_run": lambda *_: None,
        "references": lambda *_: dict.fromkeys(("text", "image_text")),
    }

    def export_folder(model, folder, _):
        with mock.patch.multiple(exporting, **parts):
            precisions = (PRECISIONS[option],)
            return export.export_folder(model, folder / "export", (option,), precisions=precisions)

    return export_folder


def trained_from(objective="classify", teachers=(), **fields):
    """The compiled model of a run that starts from the model's file."""

    def build(model, folder, file):
        recipe = find_recipe("finetune").with_changes(total_steps=2, warmup_steps=1, **fields)
        config = RunConfig("digits", recipe, weights=file, objective=objective, teachers=teachers)
        classes = types.SimpleNamespace(class_names=("cat", "dog"), splits={})
        data = load_dataset("digits_words") if "image_text" in fields else classes
        return compile_model(build_model(config, data), recipe, task=config.task)

    return build


def taught(model, folder, file):
    """The same, of a student that starts from the file."""
    return trained_from("distill", (file.with_name("classifier.keras"),))(model, folder, file)


# What is done → (the function of a model, a folder to write to and the model's `.keras` file, and the kinds
# that it works with). Of methods, the classes that lack them raise Python's own error.
VERBS = {
    "classify": (lambda model, *_: model.classify(IMAGES), WITH_HEAD),
    "segment": (lambda model, *_: model.segment([*IMAGES]), SEGMENTERS),
    "detect": (lambda model, *_: model.detect([*IMAGES], threshold=0.0), DETECTORS),
    "estimate": (lambda model, *_: model.estimate([*IMAGES]), ESTIMATORS),
    "estimate_keypoints": (lambda model, *_: model.estimate_keypoints([*IMAGES]), OF_TASKS["keypoints"]),
    "with_queries": (lambda model, *_: model.with_queries("ab", np.ones((2, 12))), {"word detector"}),
    "image_queries": (lambda model, *_: model.image_queries(IMAGES), {"word detector"}),
    "panoptic": (lambda model, *_: model.panoptic([*IMAGES]), {"EoMT"}),
    "instances": (lambda model, *_: model.instances([*IMAGES]), {"EoMT"}),
    "query_predictions": (lambda model, *_: model.query_predictions(), {"EoMT"}),
    "encode_images": (lambda model, *_: model.encode_images(IMAGES), PAIRS),
    "vision_transformer": (lambda model, *_: model.vision_transformer(), PAIRS),
    "sample": (lambda model, *_: model.sample(1), {"iGPT"}),
    "complete": (lambda model, *_: model.complete(IMAGES, 1), {"iGPT"}),
    "reconstruct": (lambda model, *_: model.reconstruct(inputs_of(model)), {"MAE"}),
    "to_vision_transformer": (lambda model, *_: model.to_vision_transformer(num_classes=2), PRETRAINERS),
    "finished": (lambda model, *_: model.finished(), WITH_IMAGES),
    "with_preprocessing": (
        lambda model, *_: model.with_preprocessing().predict(IMAGES, verbose=0),
        UNPACKED - PRETRAINERS - {"two towers", "EoMT"},
    ),
    "feature_extractor": (
        lambda model, *_: model.feature_extractor("tokens", grid=True),
        VITS - {"packed"} | HEADED,
    ),
    **{
        f"evaluate {task}": (
            evaluated(task),
            OF_TASKS.get(task, WITH_HEAD & UNPACKED),
        )
        for task in NAMES
    },
    "predict": (predicted, (WITH_HEAD | HEADED) - {"any-size keypoint estimator"}),
    "retrieval": (retrieved, {"two towers"}),
    "representations": (lambda model, *_: evaluation.representations(model, scans()), UNPACKED),
    "knn": (lambda model, *_: evaluation.knn(model, scans(), scans()), UNPACKED),
    "few_shot": (lambda model, *_: evaluation.few_shot(model, digits(), shots=(1,), seeds=(0,)), UNPACKED),
    "probe_blocks": (lambda model, *_: evaluation.probe_blocks(model, digits(), shots=1), WITH_BLOCKS),
    "embed": (embedded, WITH_IMAGES),
    "encoder_of": (lambda model, *_: encoder_of(model)[0](inputs_of(model)), WITH_IMAGES),
    "dense_features": (lambda model, *_: keras_vit.dense_features(model, [*IMAGES]), UNPACKED),
    "attention_maps": (inspected("attention_maps", inputs_of), INSPECTED),
    "attention_rollout": (inspected("attention_rollout", inputs_of), INSPECTED),
    "attention_weights": (inspected("attention_weights", inputs_of), INSPECTED),
    "attention_distance": (inspected("attention_distance", inputs_of), INSPECTED),
    "patch_norms": (inspected("patch_norms", inputs_of), INSPECTED),
    "patch_similarity": (inspected("patch_similarity", inputs_of), VITS & UNPACKED),
    "filter_components": (inspected("filter_components"), VITS - {"palette"}),
    "position_similarity": (inspected("position_similarity"), VITS - {"patches"}),
    "compile_model": (changed(lambda model: compile_model(model, total_steps=2)), {*KINDS}),
    "enable_lora": (changed(lambda model: model.enable_lora(2)), {*KINDS} - {"patches", "adapted"}),
    "merge_lora": (changed(lambda model: model.merge_lora()), {"adapted"}),
    "quantize": (changed(lambda model: model.quantize("int8")), {*KINDS} - {"quantized"}),
    "copy": (lambda model, *_: type(model).from_config(model.get_config()), {*KINDS}),
    "save .keras": (reloaded, {*KINDS}),
    "reload compiled": (survives(saved), {*KINDS}),
    "copy compiled": (survives(lambda model, _: copy.deepcopy(model)), {*KINDS}),
    # Keras makes a plain functional model of the layers, so it cannot copy those with models of their own.
    "clone_model": (survives(cloned), {*KINDS} - {"DINO", "word detector"}),
    "average": (averaged, WITH_IMAGES - {"adapted", "quantized"}),
    "load auto": (loaded(), WITH_IMAGES),
    "load stored": (loaded(kind="stored"), WITH_IMAGES),
    "load classifier": (loaded(kind="classifier"), WITH_IMAGES),
    "load segmenter": (loaded(kind="segmenter"), SEGMENTERS),
    "load detector": (loaded(kind="detector"), DETECTORS),
    "load depth_estimator": (loaded(kind="depth_estimator"), ESTIMATORS),
    "load keypoint_estimator": (loaded(kind="keypoint_estimator"), KEYPOINTS),
    "load image_text": (loaded(kind="image_text"), PAIRS),
    "load pretrainer": (loaded(kind="pretrainer"), PRETRAINERS),
    "load with another head": (loaded(num_classes=3), WITH_IMAGES - DEPTHS),
    "load with another size": (loaded(image_size=32), WITH_IMAGES),
    "load to pack patches": (loaded(max_num_patches=6), PAIRS | {"packed"}),
    "save vit_jax": (stored("vit_jax"), PLAIN | {"hybrid"}),
    "save big_vision": (stored("big_vision"), PLAIN | {"two towers"}),
    "save timm": (stored("timm"), PLAIN | {"distilled", "registers", "hybrid"}),
    "save huggingface": (
        stored("huggingface"),
        PLAIN - {"tokens"} | PAIRS | {"distilled", "MAE", "iGPT", "EoMT", "word detector", "vitpose"},
    ),
    "save open_clip": (stored("open_clip"), set()),
    "save scenic": (stored("scenic"), set()),
    "push": (
        pushed,
        PLAIN | PAIRS | {"distilled", "registers", "MAE", "iGPT", "EoMT", "word detector", "vitpose"},
    ),
    "export_saved_model": (
        lambda model, folder, _: export.export_saved_model(model, folder / "1", warmup=()),
        EXPORTED,
    ),
    **{
        f"export {option}": (checked_export(option), EXPORTED | {"two towers"})
        for option in ("saved_model", "tflite", "onnx", "openvino", "hub")
    },
    "export web": (checked_export("web"), EXPORTED - {"features", "tokens", "surface normals"}),
    "train single_label": (trained_from(task="single_label"), UNPACKED - {"tokens"}),
    "train multi_label": (trained_from(task="multi_label"), UNPACKED - {"tokens"}),
    "train regression": (trained_from(task="regression"), UNPACKED - {"tokens"}),
    "train segmentation": (trained_from(task="segmentation"), TRAINED - {"patches"}),
    "train detection": (trained_from(task="detection"), TRAINED - {"patches"}),
    "train depth": (trained_from(task="depth", head_options={"quantity": "values"}), TRAINED - {"patches"}),
    "train keypoints": (trained_from(task="keypoints", crop_area=None), TRAINED - {"patches"}),
    "train pairs": (trained_from(image_text={"text": TEXT}), UNPACKED - {"tokens"}),
    "train masked_patch": (trained_from("masked_patch"), TRAINED - {"patches", "palette", "iGPT"}),
    "train distill": (taught, UNPACKED - {"tokens", "distilled"} - OPEN_SIZE),
    "train mae": (
        trained_from("mae", pretrainer=DECODER),
        TRAINED - {"patches", "palette", "iGPT"} - OPEN_SIZE,
    ),
    "train igpt": (trained_from("igpt"), {"palette", "iGPT"}),
    "train dino": (
        trained_from("dino", pretrainer=HEAD),
        TRAINED - {"patches", "palette", "iGPT", "tokens"} - OPEN_SIZE,
    ),
}
# Of these every 64th case is fast: they make pipelines of images, or build models to load files into. Of the
# others every twelfth one is.
# OpenVINO is among the packages that only test-full installs.
COSTLY = re.compile(
    "embed$|average|evaluate|retrieval|representations|knn|few_shot|probe|save .keras|load|train|export|"
    "enable_lora|quantize|copy|clone_model|finished"
)
READING = re.compile("average|load|train")  # These are refused after a file was read.
# Methods that layers, runs and other methods call.
INTERNAL_METHODS = {
    "trained",
    *("after_step", "train_on_features", "min_own_parameters", "own_layers", "own_loss", "from_variant"),
    *("caches", "step", "color_ids", "images_of", "patch_targets", "check_projections", "check_one_size"),
    *("schema", "store_arguments", "with_stored"),
    "exported",
    *(
        "encode_text",
        "similarity",
        "class_vectors",
        "zero_shot",
        "with_labels",
    ),  # which need a tokenizer or texts
}
_MADE = {}


def model_of(kind):
    if kind not in _MADE:
        cls, arguments = KINDS[kind]
        _MADE[kind] = randomize(cls(**arguments))
        CHANGED.get(kind, lambda model: None)(_MADE[kind])
    return _MADE[kind]


def working():
    """The pairs that work; all but a sample are slow."""
    pairs = [(kind, verb) for verb, (_, kinds) in VERBS.items() for kind in KINDS if kind in kinds]
    costly = [pair for pair in pairs if COSTLY.match(pair[1])]
    cheap = [pair for pair in pairs if pair not in costly]
    fast = {*[pair for pair in costly if pair[1] != "export openvino"][::64], *cheap[::12]}
    return [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in fast)) for pair in pairs]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of an image, images with masks, and a `.keras` file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    Image.fromarray(IMAGES[0]).save(folder / "image.png")
    write_masks(folder / "masks")
    write_depths(folder / "depths")
    write_keypoints(folder / "points")
    for kind in KINDS:
        model_of(kind).save(folder / f"{kind}.keras")
    return folder


def names_in(prefix):
    return {verb.removeprefix(prefix) for verb in VERBS if verb.startswith(prefix)}


def functions_of_models(module):
    """The public functions of a module whose first argument is a model."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {name for name, of in functions if next(iter(inspect.signature(of).parameters), None) == "model"}


def test_every_kind_of_model_and_everything_done_with_one_is_in_the_table():
    classes = {of for of in vars(keras_vit).values() if inspect.isclass(of) and issubclass(of, keras.Model)}
    classes -= {keras_vit.DistillationModel}  # It has no files: tests/tasks/distillation.
    assert classes == {cls for cls, _ in KINDS.values()} and classes >= {*stored_classes()}
    assert {cls.kind for cls in classes} - {None} == {*STORED_KINDS} - {"auto", "stored"}
    methods = {
        name for cls in classes for name in dir(cls) if name[0] != "_" and callable(getattr(cls, name))
    }
    methods -= {*dir(keras.Model), *INTERNAL_METHODS}
    assert methods | functions_of_models(inspection) | functions_of_models(keras_vit.models) <= {*VERBS}
    assert functions_of_models(evaluation) - {"evaluate"} <= {*VERBS}
    assert names_in("load ") >= {*STORED_KINDS}
    assert names_in("save ") == {".keras", *LAYOUTS}
    assert names_in("export ") == {*PRECISIONS}
    assert names_in("evaluate ") == {*NAMES}
    assert names_in("train ") == {*NAMES, "pairs", *OBJECTIVES}


@pytest.mark.parametrize("kind, verb", working())
def test_it_works(kind, verb, tmp_path, files, eager):
    VERBS[verb][0](model_of(kind), tmp_path, files / f"{kind}.keras")


@pytest.mark.parametrize("reads", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", some(KINDS, 4))
def test_the_rest_is_refused_in_one_line_before_anything_is_written(kind, reads, tmp_path, files, eager):
    model = model_of(kind)
    refused = [verb for verb, (_, kinds) in VERBS.items() if kind not in kinds]
    for verb in (verb for verb in refused if bool(READING.match(verb)) == reads):
        error = None
        try:
            VERBS[verb][0](model, tmp_path, files / f"{kind}.keras")
        except (ValueError, AttributeError) as caught:
            error = caught
        assert type(error) in (ValueError, AttributeError) and "\n" not in str(error), (verb, error)
        if type(error) is AttributeError:
            assert (
                str(error).partition(";")[0] == f"{type(model).__name__!r} object has no attribute {verb!r}"
            )
        assert not [*tmp_path.iterdir()], verb


@pytest.mark.slow
@pytest.mark.parametrize("option", ["openvino", "web"])
@pytest.mark.parametrize("kind", sorted(VERBS["export web"][1]))
def test_the_files_of_an_export_compute_what_the_model_does(kind, option, tmp_path):
    """In an OpenVINO model and in a LiteRT file with the page around it."""
    options = {"precisions": (PRECISIONS[option],), "images": 2}
    export.export_folder(model_of(kind), tmp_path / "export", (option,), **options)


READS_ALL = """
import pathlib, sys
import keras, keras_vit
import numpy as np
from keras_vit.embeddings import embed, plan_embeddings, read_embeddings
from keras_vit.engine.adapting import plain_arrays
from reference.comparing import without_initial_values

with without_initial_values():
    for file in pathlib.Path(sys.argv[1]).glob("*.keras"):
        np.savez(file.with_suffix(".npz"), **plain_arrays(keras.saving.load_model(file)))
"""


@pytest.mark.slow
@pytest.mark.tensorflow_only("the files are written on it")
def test_a_fresh_process_on_another_backend_reads_the_files_of_all_kinds(files):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", READS_ALL, files]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for kind in KINDS:
        expected = plain_arrays(model_of(kind))
        with np.load(files / f"{kind}.npz") as arrays:
            assert {*arrays} == {*expected}
            for name, array in arrays.items():  # Of quantized kernels the last bit may differ.
                np.testing.assert_allclose(array, expected[name], rtol=1e-6, err_msg=f"{kind}: {name}")


@by_table("kind", sorted(WITH_IMAGES))
def test_pixels_are_no_input(kind):
    """Keras would compute with them as if they were normalized."""
    model = model_of(kind)
    pixels = keras.tree.map_structure(
        lambda x: np.zeros((1, *(side or 16 for side in x.shape[1:])), "uint8"), model.input
    )
    for call in (model, model.predict, model.predict_on_batch):
        with pytest.raises(
            ValueError, match="^expected float input, as from model.preprocessing; got uint8$"
        ):
            call(pixels)


# Options of `predict`.
PREDICT_OPTIONS = (
    [],
    ["--maps", "maps"],
    ["--windows"],
    ["--boxes", "boxes"],
    ["--threshold", "0.1"],
    ["--output", "rows.csv"],
    ["--output", "rows.coco.json"],
)
EXPORT_FORMATS = ("saved_model", "tflite", "onnx", "openvino", "web")
OPENED = [  # each kind in two of the formats, since all of them would take an hour
    (kind, option)
    for number, kind in enumerate(sorted(EXPORTED))
    for position, option in enumerate(EXPORT_FORMATS)
    if (number + position) % len(EXPORT_FORMATS) < 2
    and kind in VERBS[f"export {option}"][1]
    # A page has a size, to which objects are cropped, and the live model has none.
    and (kind, option) != ("any-size keypoint estimator", "web")
]


def command(*arguments):
    """The status of a command, what it prints, and its lines of errors."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = _keras_vit_cli.main([*map(str, arguments)])
    return status, out.getvalue(), errors.getvalue().splitlines()


def numbers_in(value, path=()):
    """The numbers in a JSON value by their paths, in which objects and classes have their names."""
    if isinstance(value, dict):
        rows = value.items()
    elif isinstance(value, list):
        rows = [(row.get("name", i) if isinstance(row, dict) else i, row) for i, row in enumerate(value)]
    else:
        return {path: value} if isinstance(value, float) else {}
    return {key: x for name, row in rows for key, x in numbers_in(row, (*path, name)).items()}


def assert_same_command(live, exported, folder, arguments, bound=1e-3):
    """The same status, number of lines of errors and files, and with `bound` the same numbers."""
    results, values = [], []
    for model in (live, exported):
        with tempfile.TemporaryDirectory(dir=folder) as empty, contextlib.chdir(empty):
            printing = ("--format", "json") if arguments[0] == "predict" else ("--json", "-")
            status, text, errors = command(*arguments, *printing, "--model", model)
            written = {path.relative_to(empty) for path in pathlib.Path(empty).rglob("*")}
        results.append((status, status and len(errors), written))
        values.append(numbers_in(json.loads(text)) if status == 0 else {})
    assert results[0] == results[1], (arguments, errors)
    if bound:
        assert values[1] == pytest.approx(values[0], rel=bound, abs=bound), arguments


def exported_file(kind, option, folder):
    """The file or folder of a format, exported from a kind of model."""
    options = {"precisions": (PRECISIONS[option],), "images": 2}
    rows = export.export_folder(model_of(kind), folder / "export", (option,), **options)["formats"]
    return folder / "export" / "web" if option == "web" else next(iter(rows.values()))["path"]


@pytest.fixture
def few(monkeypatch):
    """Data sets of few images."""
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name, *_, task, **options: digits(task) if name == "digits" else few_scenes(task),
    )


@pytest.mark.slow
@pytest.mark.tensorflow_only("exports are made on it")
def test_predict_finds_with_an_exported_detector_what_the_model_does(tmp_path, files, eager):
    exported = exported_file("detector", "onnx", tmp_path)
    for options in ([], ["--boxes", "boxes"]):
        arguments = ["predict", files / "image.png", *options]
        assert_same_command(files / "detector.keras", exported, tmp_path, arguments)


@pytest.mark.slow
@pytest.mark.tensorflow_only("exports are made on it")
@pytest.mark.parametrize("kind, option", OPENED)
def test_the_command_line_does_with_an_export_what_it_does_with_the_model(kind, option, tmp_path, files, few):
    """It also refuses the same in one line, and both write the same files."""
    exported = exported_file(kind, option, tmp_path)
    commands = [["predict", files / "image.png", *options] for options in PREDICT_OPTIONS]
    commands.append(["evaluate", "--dataset", "digits_scenes" if model_of(kind).task else "digits"])
    # A LiteRT file holds the classes of pixels, which are resized to the masks in another way than logits.
    is_same = option != "web" and (option != "tflite" or kind not in {*OPEN_SIZE, "segmenter"})
    bound = is_same and (0.1 if kind == "quantized" else 1e-3)  # Activations of exports are not quantized.
    for arguments in commands:
        assert_same_command(files / f"{kind}.keras", exported, tmp_path, arguments, bound)
    for arguments, words in (
        (["predict", files / "image.png", "--instances"], "need an ImageSegmenter with head='mask'"),
        (["embed", "--data", "digits", "--output", tmp_path / "vectors"], "expected the run, .keras file"),
    ):
        status, _, errors = command(*arguments, "--model", exported)
        assert (status, len(errors)) == (2, 1) and words in errors[0]
    assert command("benchmark", "--model", exported, "--batch_sizes", 1, "--rounds", 1)[0] == 0
