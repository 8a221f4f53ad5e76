"""Every kind of model with everything that can be done with a model: it works, or is refused in one line."""

import dataclasses
import functools
import inspect
import json
import re

import keras
import numpy as np
import pytest
from reference.comparing import assert_same_arrays, randomize
from reference.small import HYBRID, NO_TRANSFORMER, SMALL

import keras_vit
from keras_vit import evaluation, export, inspection
from keras_vit.data import load_dataset
from keras_vit.engine.adapting import plain_arrays
from keras_vit.evaluation.representations import encoder_of
from keras_vit.models.configured import backbone
from keras_vit.training import compile_model
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.push import write_repository

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")
ONE = {**SMALL, "num_layers": 1, "num_classes": 10, "mlp_dim": 24, "activation": "gelu_erf"}
BARE = {**ONE, "num_classes": None}
ANY_SIZE = {"image_size": (None, None), "position_grid": 2}
PACKED = {**ANY_SIZE, "max_num_patches": 5, "pooling": "map"}
PIXELS = {
    **{"image_size": (4, 4), "patch_size": 1, "pooling": "gap", "palette": 7, "causal": True},
    **{"norm": "rms"},
}
TEXT = {"vocabulary_size": 11, "length": 5, "hidden_size": 12, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
TOWERS = {"text": TEXT, "text_projection": 12, "projection_bias": True}
DECODER = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
QUERIES = {"head": "mask", "num_queries": 3, "query_blocks": 1}
DINOV2 = {**BARE, "mlp_dim": 48, "layer_scale": 0.1, "prefix_positions": False}
MAP = {**BARE, "pooling": "map", "prefix_positions": False}
HEADS = {"out_dim": 6, "hidden_dim": 9, "bottleneck_dim": 5, "num_local": 1, "local_size": 8}
VIT, SEGMENTER, PAIR = keras_vit.VisionTransformer, keras_vit.ImageSegmenter, keras_vit.ImageTextModel
KINDS = {
    "classifier": (VIT, ONE),
    "features": (VIT, BARE),
    "tokens": (VIT, {**BARE, "pooling": None}),
    "hybrid": (VIT, {**ONE, **HYBRID, "resnet": (1,)}),
    "patches": (VIT, {**ONE, **NO_TRANSFORMER}),
    "any size": (VIT, {**ONE, **ANY_SIZE}),
    "packed": (keras_vit.PackedVisionTransformer, {**ONE, **PACKED}),
    "palette": (keras_vit.PixelTransformer, {**ONE, **PIXELS}),
    "iGPT": (keras_vit.ImageGPT, {"encoder": {**BARE, **PIXELS}}),
    "masked patches": (keras_vit.MaskedPatchPredictor, {"encoder": BARE}),
    "MAE": (keras_vit.MaskedAutoencoder, {"encoder": BARE, **DECODER}),
    "DINO": (keras_vit.DINO, {"encoder": BARE, **HEADS}),
    "segmenter": (SEGMENTER, {"encoder": BARE, "num_classes": 11}),
    "any-size segmenter": (SEGMENTER, {"encoder": {**BARE, **ANY_SIZE}, "num_classes": 11}),
    "EoMT": (SEGMENTER, {"encoder": DINOV2, "num_classes": 11, **QUERIES}),
    "two towers": (PAIR, {"image": MAP, **TOWERS}),
    "packed towers": (PAIR, {"image": {**BARE, **PACKED, "activation": "gelu_tanh"}, **TOWERS}),
    "text": (keras_vit.TextTransformer, TEXT),
}
SEGMENTERS = {"segmenter", "any-size segmenter", "EoMT"}
PAIRS = {"two towers", "packed towers"}
PRETRAINERS = {"iGPT", "masked patches", "MAE", "DINO"}
WITH_HEAD = {"classifier", "hybrid", "patches", "any size", "packed", "palette"}
VITS = WITH_HEAD | {"features", "tokens"}
WITH_IMAGES = {*KINDS} - {"text"}
UNPACKED = WITH_IMAGES - {"packed", "packed towers"}
PLAIN = {"classifier", "features", "tokens", "any size"}  # of the files of every project
FILES = {"huggingface": "folder", "open_clip": "folder", "timm": "model.safetensors"}


@functools.cache
def scans():
    return load_dataset("digits").split("test").take(range(6))


@functools.cache
def few():
    """Few images of each split of the digits."""
    digits = load_dataset("digits")
    splits = {name: samples.take(range(60)) for name, samples in digits.splits.items()}
    return dataclasses.replace(digits, splits=splits)


@functools.cache
def scenes():
    return load_dataset("digits_scenes", task="segmentation").split("test").take([0, 1])


def evaluated_maps(model, folder):
    """Scores of class maps; the data set is made only for a model that has them."""
    samples = scenes() if getattr(model, "task", None) == "segmentation" else scans()
    return evaluation.evaluate(model, samples, task="segmentation")


def inputs_of(model):
    return backbone(model).preprocessing([*IMAGES])


def saved(model, folder, **options):
    """The model of a `.keras` file."""
    model.save(folder / "model.keras")
    return keras_vit.from_pretrained(folder / "model.keras", **options)


def reloaded(model, folder):
    model.save(folder / "model.keras")
    assert_same_arrays(plain_arrays(keras.models.load_model(folder / "model.keras")), plain_arrays(model))


def pushed(model, folder):
    write_repository(model, folder / "repository", "me/model")
    card = (folder / "repository/README.md").read_text()
    assert 'from_pretrained("hf://me/model"' in card and "{" not in card and "None" not in card
    arguments = re.search(r'hf://me/model"(.*)\)', card)[1]
    options = dict(re.findall(r'(kind)="(\w+)"', arguments))
    again = keras_vit.from_pretrained(folder / "repository", **options, **sized(model))
    assert type(again) is type(model)
    names = json.loads((folder / "repository/config.json").read_text()).get("architectures")
    assert names is None or isinstance(model, VIT) or f"{names[0]}.from_pretrained" in card


def sized(model):
    """What the model's files do not hold."""
    image_size = backbone(model).image_size
    packs = backbone(model).preprocessing.packs
    return {"image_size": image_size} if image_size == (None, None) and not packs else {}


def stored(layout):
    return lambda model, folder: keras_vit.save_weights(
        model, folder / FILES.get(layout, "model.npz"), layout
    )


def changed(adapt):
    """Change the model itself, and restore it from a copy of its configuration."""
    return lambda model, folder: adapt(type(model).from_config(model.get_config()))


# What is done → (the function of a model and a folder, the kinds that it works with). Of methods, the classes
# that lack them raise Python's own error.
VERBS = {
    "classify": (lambda model, _: model.classify(IMAGES), WITH_HEAD),
    "segment": (lambda model, _: model.segment([*IMAGES]), SEGMENTERS),
    "panoptic": (lambda model, _: model.panoptic([*IMAGES]), {"EoMT"}),
    "encode_images": (lambda model, _: model.encode_images(IMAGES), PAIRS),
    "sample": (lambda model, _: model.sample(1), {"iGPT"}),
    "complete": (lambda model, _: model.complete(IMAGES, 1), {"iGPT"}),
    "to_vision_transformer": (lambda model, _: model.to_vision_transformer(num_classes=2), PRETRAINERS),
    "finished": (lambda model, _: model.finished(), WITH_IMAGES),
    "feature_extractor": (
        lambda model, _: model.feature_extractor("tokens", grid=True),
        VITS - {"packed"} | SEGMENTERS,
    ),
    "evaluate": (lambda model, _: evaluation.evaluate(model, scans()), WITH_HEAD - {"packed"}),
    "evaluate maps": (evaluated_maps, SEGMENTERS),
    "representations": (lambda model, _: evaluation.representations(model, scans()), UNPACKED),
    "probe_blocks": (
        lambda model, _: evaluation.probe_blocks(model, few(), shots=1),
        UNPACKED - {"patches"},
    ),
    "encoder_of": (lambda model, _: encoder_of(model)[0](inputs_of(model)), WITH_IMAGES),
    "dense_features": (lambda model, _: keras_vit.dense_features(model, [*IMAGES]), UNPACKED),
    "attention_maps": (
        lambda model, _: inspection.attention_maps(model, inputs_of(model)),
        VITS - {"packed", "patches"},
    ),
    "attention_distance": (
        lambda model, _: inspection.attention_distance(model, inputs_of(model)),
        VITS - {"packed", "patches"},
    ),
    "filter_components": (lambda model, _: inspection.filter_components(model), VITS - {"palette"}),
    "position_similarity": (lambda model, _: inspection.position_similarity(model), VITS - {"patches"}),
    "patch_similarity": (
        lambda model, _: inspection.patch_similarity(model, inputs_of(model)),
        VITS - {"packed"},
    ),
    "compile_model": (changed(lambda model: compile_model(model, total_steps=2)), {*KINDS}),
    "enable_lora": (changed(lambda model: model.enable_lora(2)), {*KINDS} - {"patches"}),
    "quantize": (changed(lambda model: model.quantize("int8")), {*KINDS}),
    "copy": (lambda model, _: type(model).from_config(model.get_config()), {*KINDS}),
    ".keras": (reloaded, {*KINDS}),
    "from_pretrained": (saved, WITH_IMAGES),
    "both towers": (lambda model, folder: saved(model, folder, kind="image_text"), PAIRS),
    "pretrainer": (lambda model, folder: saved(model, folder, kind="pretrainer"), PRETRAINERS),
    "new head": (lambda model, folder: saved(model, folder, num_classes=3), WITH_IMAGES),
    "new size": (lambda model, folder: saved(model, folder, image_size=32), WITH_IMAGES),
    "save vit_jax": (stored("vit_jax"), PLAIN | {"hybrid"}),
    "save big_vision": (stored("big_vision"), PLAIN | {"two towers"}),
    "save timm": (stored("timm"), PLAIN | {"hybrid"}),
    "save huggingface": (
        stored("huggingface"),
        PLAIN - {"tokens"} | PAIRS | {"MAE", "iGPT", "EoMT"},
    ),
    "save open_clip": (stored("open_clip"), set()),
    "push": (pushed, PLAIN | PAIRS | {"MAE", "iGPT", "EoMT"}),
    "export_saved_model": (
        lambda model, folder: export.export_saved_model(model, folder / "1", warmup=()),
        VITS - {"packed"} | SEGMENTERS,
    ),
    "export_folder": (
        lambda model, folder: export.export_folder(model, folder / "export", ("saved_model",)),
        VITS - {"packed"} | SEGMENTERS | {"two towers"},
    ),
}
# Whose time is that of tracing, and which other tests cover for the models that they are for.
SLOW = {
    *("evaluate", "evaluate maps", "representations", "probe_blocks", "encoder_of", "complete", "sample"),
    *("export_saved_model", "export_folder", "new head", "new size", "finished", "segment", "panoptic"),
    *("classify", "encode_images", "attention_distance", "patch_similarity", "both towers", "pretrainer"),
    *(".keras", "from_pretrained", "dense_features", "enable_lora", "quantize", "copy", "attention_maps"),
}
READING = {"both towers", "pretrainer"}  # is refused after a file was written and read
_MADE = {}


def model_of(kind):
    if kind not in _MADE:
        cls, arguments = KINDS[kind]
        _MADE[kind] = randomize(cls(**arguments))
    return _MADE[kind]


def pairs(works):
    """The pairs that work, or those that are refused."""
    slow = SLOW if works else READING
    return [
        pytest.param(kind, verb, id=f"{kind}-{verb}", marks=[pytest.mark.slow] * (verb in slow))
        for verb, (_, kinds) in VERBS.items()
        for kind in KINDS
        if (kind in kinds) == works
    ]


def test_every_model_and_layout_is_in_the_table():
    public = {
        cls for cls in vars(keras_vit).values() if inspect.isclass(cls) and issubclass(cls, keras.Model)
    }
    assert public == {cls for cls, _ in KINDS.values()}
    assert {f"save {layout}" for layout in LAYOUTS} <= {*VERBS}


@pytest.mark.parametrize("kind, verb", pairs(works=True))
def test_it_works(kind, verb, tmp_path):
    VERBS[verb][0](model_of(kind), tmp_path)


@pytest.mark.parametrize("kind, verb", pairs(works=False))
def test_it_is_refused_in_one_line(kind, verb, tmp_path):
    model = model_of(kind)
    with pytest.raises((ValueError, AttributeError)) as caught:
        VERBS[verb][0](model, tmp_path)
    message = str(caught.value)
    if caught.type is AttributeError:
        assert message == f"{type(model).__name__!r} object has no attribute {verb!r}"
    assert caught.type in (ValueError, AttributeError) and "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] in ([], ["model.keras"])


@pytest.mark.parametrize("kind", sorted(WITH_IMAGES))
def test_pixels_are_no_input(kind):
    """Keras would compute with them as if they were normalized."""
    model = model_of(kind)
    pixels = keras.tree.map_structure(
        lambda x: np.zeros((1, *(side or 16 for side in x.shape[1:])), "uint8"), model.input
    )
    for call in (model, model.predict_on_batch):
        with pytest.raises(
            ValueError, match="^expected float input, as from model.preprocessing; got uint8$"
        ):
            call(pixels)
