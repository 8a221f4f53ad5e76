import json
import math
import re

import numpy as np
import pytest
from made.checkpoints import base
from made.tables import by_table
from reference.goldens import GOLDENS
from reference.small import small

from keras_vit import Preprocessing, from_pretrained, save_weights
from keras_vit.layers.rotary import rotary_options
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.huggingface_types import squares_only
from keras_vit.weights.metadata import checked_options, read_metadata

SQUARE = {"height": 16, "width": 16}
NAMES = ("tabby", "tiger", "lynx", "lion", "ocelot")
SQUASH = Preprocessing(16, interpolation="bicubic", antialias=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
CROP = Preprocessing(16, resize="crop", crop_fraction=0.5, antialias=True)


def written(options):
    """config.json and preprocessor_config.json of a small model."""
    return LAYOUTS["huggingface"].write_config(small(**options).get_config())


# Written -------------------------------------------------------------------------------------------


def test_the_golden_configuration_is_written_as_transformers_wrote_it(golden):
    original = json.loads((golden / "hf_vit" / "config.json").read_text())
    model = from_pretrained(golden / GOLDENS["hf_vit"][0])
    config = LAYOUTS["huggingface"].write_config(model.get_config())[0]
    unwritten = {"dtype", "encoder_stride", "initializer_range", "transformers_version"}
    expected = {name: value for name, value in original.items() if name not in unwritten}
    assert config == {**expected, "keras_vit": {"antialias": False}}


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            {"num_registers": 1, "num_classes": None, "dropout_rate": 0.1},
            {"architectures": ["DeiTModel"], "id2label": {}, "hidden_dropout_prob": 0.1},
        ),
        (
            {"image_size": (None, None), "position_grid": (2, 3), "qkv_bias": False, "num_classes": None},
            {"image_size": [16, 24], "qkv_bias": False, "architectures": ["ViTModel"]},
        ),
        ({"image_size": (None, None), "position_grid": (2, 3)}, {"size": {"height": 16, "width": 24}}),
    ],
)
def test_options_are_written_in_their_words(options, expected):
    config, images = written(options)
    found = images if "size" in expected else config
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "options",
    [
        {"preprocessing": SQUASH, "class_names": NAMES},
        {"preprocessing": CROP, "distillation": True, "activation": "quick_gelu", "qkv_bias": False},
        {"num_classes": None, "representation_size": 12, "image_size": (16, 24), "in_channels": 1},
    ],
    ids=str,
)
def test_a_model_is_read_from_their_files_alone(options, tmp_path):
    half = (0.5,) * options.get("in_channels", 3)
    default = Preprocessing(options.get("image_size", 16), antialias=True, mean=half, std=half)
    model = small(**{"preprocessing": default, **options})
    save_weights(model, tmp_path / "model", "huggingface").with_suffix(".json").unlink()
    again = from_pretrained(tmp_path / "model")
    expected = {"name": again.name, "position_interpolation": "bicubic"}  # that of transformers
    expected["pretraining"] = "supervised" if model.num_classes else "unknown"
    assert again.get_config() == model.get_config() | expected


@by_table(
    "task, problem",
    [
        ("single_label", "single_label_classification"),
        ("multi_label", "multi_label_classification"),
        ("regression", "regression"),
        (None, None),
    ],
)
def test_the_task_of_a_classifier_is_its_problem_type(task, problem, tmp_path):
    config, _ = written({"task": task})
    assert config.get("problem_type") == problem
    assert read(tmp_path, config).get("task") == task
    assert "problem_type" not in written({"task": task, "num_classes": None})[0]


@by_table(
    "resize, size, is_expressed",
    [
        *(("squash", (16, 24), True), ("crop", 16, True), ("crop", (16, 24), False)),
        *(("squash_crop", 16, False), ("pad", 16, False)),
    ],
)
def test_only_some_preprocessing_is_expressed(resize, size, is_expressed):
    model = small(image_size=size, preprocessing=Preprocessing(size, resize, 0.5))
    reasons = LAYOUTS["huggingface"].unsupported_in_config({**model.get_config(), "num_classes": None})
    assert (reasons == []) == is_expressed


# Read ----------------------------------------------------------------------------------------------

VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 16}
# The defaults of transformers 5.23's image processors, with 16 for their 224 pixels; "ViTFast" has the null
# values that fast processors of 4.5x write.
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
STEPS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, **HALF}
EDGE = {"shortest_edge": 16}
CENTER = {"do_center_crop": True, "resample": 3, "crop_size": SQUARE}
NULLS = dict.fromkeys(("do_center_crop", "crop_size", "do_convert_rgb"))
SAVED = {
    "ViT": {**STEPS, "resample": 2, "size": SQUARE},
    "DeiT": {**STEPS, **CENTER, "size": {"height": 18, "width": 18}},
    "Siglip": {**STEPS, "resample": 3, "size": SQUARE, "do_convert_rgb": True},
    "CLIP": {**STEPS, **CENTER, "size": EDGE, "do_convert_rgb": True},
    "ViTFast": {**STEPS, "resample": 2, "size": {**SQUARE, "shortest_edge": None}, **NULLS},
}
# Older repositories, in which a size is one number.
GOOGLE = {"do_normalize": True, "do_resize": True, **HALF, "size": 16}
FACEBOOK = {"feature_extractor_type": "DeiTFeatureExtractor", **GOOGLE, **CENTER, "crop_size": 16, "size": 18}


def read(folder, config=VIT, images=None):
    (folder / "config.json").write_text(json.dumps(config))
    if images is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return read_metadata(folder / "model.safetensors", LAYOUTS["huggingface"])[0]


def refused(folder, message, config=VIT, images=None):
    with pytest.raises(ValueError, match=message) as caught:
        read(folder, config, images)
    assert type(caught.value) is ValueError and str(caught.value).isprintable()


@by_table(
    "images, expected",
    [
        (SAVED["ViT"], ("squash", 1, "bilinear")),
        (SAVED["DeiT"], ("crop", 16 / 18, "bicubic")),
        (SAVED["Siglip"], ("squash", 1, "bicubic")),
        (SAVED["CLIP"], ("crop", 1, "bicubic")),
        (SAVED["ViTFast"], ("squash", 1, "bilinear")),
        (GOOGLE, ("squash", 1, "bilinear")),
        (FACEBOOK, ("crop", 16 / 18, "bicubic")),
        ({**SAVED["ViT"], "size": [16, 16]}, ("squash", 1, "bilinear")),
        ({**SAVED["ViT"], **CENTER, "size": 32}, ("crop", 0.5, "bicubic")),
    ],
    ids=[*SAVED, "Google's", "Facebook's", "list", "int"],
)
def test_image_processors_are_read_as_they_are_saved(images, expected, tmp_path):
    found = Preprocessing(16, **read(tmp_path, images=images)["preprocessing"])
    assert (found.resize, found.crop_fraction, found.interpolation) == expected
    assert (found.mean, found.std, found.antialias) == ((0.5,) * 3, (0.5,) * 3, True)


def test_an_image_processor_beside_a_tokenizer_is_read_first(tmp_path):
    """transformers 5 saves it inside of processor_config.json."""
    processor = {**SAVED["CLIP"], "image_mean": [0.1, 0.2, 0.3]}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": processor}))
    for images in (None, SAVED["CLIP"]):
        assert read(tmp_path, images=images)["preprocessing"]["mean"] == pytest.approx((0.1, 0.2, 0.3))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"resample": 1}}))
    refused(tmp_path, "^processor_config.json: resample must be")
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert read(tmp_path)["preprocessing"]["mean"] == (0.5,) * 3


@pytest.mark.parametrize("rescale", [{}, {"do_rescale": False}, {"rescale_factor": 1 / 127.5}])
@pytest.mark.parametrize("normalize", [{}, {"do_normalize": False}, {"image_mean": 0.3, "image_std": 2}])
def test_pixels_are_rescaled_and_normalized_as_they_do(rescale, normalize, tmp_path):
    images = {**SAVED["ViT"], **rescale, **normalize}
    found = Preprocessing(16, **read(tmp_path, images=images)["preprocessing"])
    pixels = np.arange(256, dtype="float32")[:, np.newaxis].repeat(3, axis=-1)
    expected = pixels * (images["rescale_factor"] if images["do_rescale"] else 1)
    if images["do_normalize"]:
        expected = (expected - images["image_mean"]) / images["image_std"]
    np.testing.assert_allclose(found.normalize(pixels), expected, rtol=1e-5, atol=1e-6)


@by_table(
    "changes",
    [
        *({"resample": code} for code in (1, None, "bicubic")),
        *({name: "yes"} for name in ("do_resize", "do_pad", "do_center_crop")),
        {"do_resize": False},
        *({"rescale_factor": factor} for factor in (0, 1e-320, math.nan, "1/255")),
        *({"size": size} for size in (17, [16, 17], {"shortest_edge": 16}, {}, None, 16.0, {"height": 16})),
        *({**CENTER, "crop_size": size} for size in (15, [16, 17], None, 0)),
        *({**CENTER, "size": size} for size in (15, [18, 19], {**EDGE, "longest_edge": 20})),
        {"crop_pct": 0.9},
    ],
    ids=str,
)
def test_unsupported_preprocessing_is_refused_by_name_and_value(changes, tmp_path):
    name, value = [*changes.items()][-1]
    message = rf"preprocessor_config.json: {name} must be .*; got {re.escape(repr(value))}|in the format of"
    refused(tmp_path, message, images={**SAVED["ViT"], **changes})


@pytest.mark.parametrize("numbers", [("1", "2"), ("a", "b"), ("00", "1")])
def test_labels_must_be_numbered_as_the_classes(numbers, tmp_path):
    message = f"config.json says id2label of {', '.join(numbers)}; expected the class numbers from 0 to "
    refused(tmp_path, f"{message}{len(numbers) - 1}", {**VIT, "id2label": dict.fromkeys(numbers, "cat")})


@by_table(
    "config, expected",
    [
        ({"model_type": "vit_mae", "layer_norm_eps": 1e-6}, {"norm_epsilon": 1e-6, "num_heads": 12}),
        (
            {"model_type": "dinov2", "hidden_size": 1536, "use_swiglu_ffn": True},
            {"activation": "silu", "mlp_dim": 4096, "gated_mlp": True, "norm_epsilon": 1e-6},
        ),
        ({"model_type": "dinov2", "mlp_ratio": 3}, {"activation": "gelu_erf", "mlp_dim": 2304}),
        ({"model_type": "dinov2_with_registers"}, {"num_registers": 4}),
        (
            {"model_type": "dinov3_vit", "rope_theta": 50, "use_gated_mlp": True, "hidden_act": "silu"},
            {
                "rotary": rotary_options({"kind": "dinov3", "base": 50}),
                "gated_mlp": True,
                "activation": "silu",
            },
        ),
        ({"model_type": "dinov3_vit"}, {"image_size": 224, "num_heads": 6, "num_registers": 0}),
        (
            {"model_type": "siglip", "vision_config": {"image_size": 384, "patch_size": 14}},
            {"image_size": 384, "patch_size": 14, "num_heads": 12, "activation": "gelu_tanh"},
        ),
        (
            # Of the two, transformers uses the first, with defaults of its own.
            {
                **{"model_type": "clip", "vision_config_dict": {"num_attention_heads": 16}},
                "vision_config": {"num_attention_heads": 8, "hidden_act": "gelu"},
            },
            {"num_heads": 16, "activation": "quick_gelu"},
        ),
        ({"model_type": "clip", "vision_config": None}, {"num_heads": 12, "norm_epsilon": 1e-5}),
        ({"model_type": "siglip2_vision_model"}, {"image_size": 256, "activation": "gelu_tanh"}),
        ({"model_type": "beit"}, {"position_interpolation": "bilinear_half_pixel"}),
        (
            {"model_type": "beit", "use_absolute_position_embeddings": True},
            {"position_interpolation": "bicubic"},
        ),
        (
            {"model_type": "siglip2", "vision_config": {"num_patches": 1024, "patch_size": 14}},
            {"image_size": 448, "norm_epsilon": 1e-6},
        ),
    ],
    ids=lambda value: value.get("model_type"),
)
def test_each_model_type_has_its_words_and_defaults(config, expected, tmp_path):
    found = read(tmp_path, config)
    expected = checked_options(expected, "expected")
    assert {name: found[name] for name in expected} == expected


@by_table(
    "config, message",
    [
        ({"model_type": "blip"}, "describes a 'blip' model; expected transformers' 'vit' or 'deit' or"),
        ({"model_type": "siglip2_vision_model", "num_patches": 0}, "num_patches must be .*; got 0"),
        (
            {"model_type": "siglip2", "vision_config": {"model_type": "siglip_vision_model"}},
            "'siglip_vision_model' image tower; expected 'siglip2_vision_model'",
        ),
        ({"model_type": "siglip", "vision_config": {"model_type": "swin"}}, "'swin' image tower; expected"),
        ({"model_type": "clip", "vision_config": [1]}, "in the format of"),
        ({"model_type": ["vit"]}, "in the format of"),
        ({"model_type": "dinov2", "mlp_ratio": "4"}, "mlp_ratio must be a number .*; got '4'"),
        ({"model_type": "dinov3_vit", "rope_theta": 0}, "rotary: base must be"),
        ({"model_type": "vit", "pooler_act": "gelu"}, "pooler_act must be 'tanh'; got 'gelu'"),
        *(
            ({"model_type": "imagegpt", name: value}, f"{name} must be {not value}; got {value}")
            for name, value in {
                "scale_attn_weights": False,
                "scale_attn_by_inverse_layer_idx": True,
                "add_cross_attention": True,
            }.items()
        ),
    ],
    ids=str,
)
def test_another_tower_or_damage_is_refused(config, message, tmp_path):
    refused(tmp_path, message, config)


def test_the_crop_of_dinov2_is_read_as_a_fraction(tmp_path):
    """Its files describe models of 518 pixels, and processors that crop 224 of 256."""
    images = {**SAVED["CLIP"], "image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 20}}
    config = {"model_type": "dinov2", "image_size": 32}
    assert read(tmp_path, config, images)["preprocessing"]["crop_fraction"] == 16 / 20
    refused(tmp_path, "crop_size must be the model's 32×32", {**VIT, "image_size": 32}, images)
    squash = {**SAVED["ViT"], "image_processor_type": "DINOv3ViTImageProcessor"}
    assert read(tmp_path, {"model_type": "dinov3_vit", "image_size": 32}, squash)["preprocessing"]["std"]


def test_a_processor_of_varying_sizes_belongs_to_models_of_any_size(tmp_path):
    images = {"image_processor_type": "Siglip2ImageProcessorFast", **STEPS, "resample": 2, "size": None}
    refused(tmp_path, r"a Siglip2ImageProcessorFast makes images of varying sizes", VIT, images)
    found = read(tmp_path, {"model_type": "siglip2"}, images)["preprocessing"]
    assert found == {**found, "interpolation": "bilinear", "antialias": True} and "resize" not in found
    patches = {**images, "patch_size": 14, "max_num_patches": 256}
    refused(tmp_path, "patch_size must be the model's 16; got 14", {"model_type": "siglip2"}, patches)


CLIP_NORM = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IMAGENET_NORM = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF_NORM = ((0.5,) * 3,) * 2


@by_table(
    "kind, expected",
    [
        ("dinov2", ("crop", 224 / 256, "bicubic", *IMAGENET_NORM)),
        ("dinov2_with_registers", ("crop", 224 / 256, "bicubic", *IMAGENET_NORM)),
        ("vit", None),
        ("deit", None),
    ],
)
def test_without_a_file_images_are_prepared_as_in_the_authors_repositories(kind, expected, tmp_path):
    found = read(tmp_path, {"model_type": kind, "image_size": 384, "patch_size": 16})
    if expected is None:
        assert "preprocessing" not in found
        return
    found = Preprocessing(384, **found["preprocessing"])
    assert found.antialias
    numbers = (found.resize, found.crop_fraction, found.interpolation, found.mean, found.std)
    assert numbers == expected


@by_table(
    "name, norm, resample",
    [
        ("Siglip", HALF_NORM, 3),
        ("CLIP", CLIP_NORM, 3),
        ("Bit", CLIP_NORM, 3),
        ("DINOv3ViT", IMAGENET_NORM, 2),
    ],
)
def test_processors_have_the_defaults_of_their_class(name, norm, resample, tmp_path):
    images = {"image_processor_type": f"{name}ImageProcessor"}
    found = read(tmp_path, {"model_type": "vit", "image_size": 224}, images)["preprocessing"]
    np.testing.assert_allclose((found["mean"], found["std"]), norm, rtol=1e-15)
    assert found["interpolation"] == {2: "bilinear", 3: "bicubic"}[resample]
    assert found.get("resize", "squash") == ("crop" if name in ("CLIP", "Bit") else "squash")


def test_options_are_read_from_their_words(tmp_path):
    config = {
        **{"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "num_attention_heads": 4},
        "id2label": {str(i): f"class {i}" for i in reversed(range(12))},
    }
    found = read(tmp_path, {**VIT, **config})
    assert (found["activation"], found["norm_epsilon"], found["num_heads"]) == ("gelu_tanh", 1e-3, 4)
    assert found["class_names"] == tuple(f"class {i}" for i in range(12)) and found["num_classes"] == 12
    defaults = {"activation": "gelu_erf", "num_heads": 12, "norm_epsilon": 1e-12}
    defaults["position_interpolation"] = "bicubic"
    assert read(tmp_path, {"model_type": "vit"}) == defaults
    labels = {str(i): f"LABEL_{i}" for i in range(3)}  # transformers' names of classes without names
    assert "class_names" not in read(tmp_path, {**VIT, "id2label": labels})


@by_table(
    "field, value, message",
    [
        ("hidden_size", 32, "says hidden_size=32"),
        ("num_channels", 1, "says in_channels=1"),
        ("patch_size", 16, "says patch_size|does not fit the checkpoint's"),
        ("image_size", [32, 64], "does not fit the checkpoint's"),
        ("hidden_act", "relu", "the activation must be one of .*; got 'relu'"),
        ("model_type", "bert", "describes a 'bert' model; expected transformers' 'vit' or 'deit'"),
        ("id2label", {"0": "a", "1": "b"}, "says num_classes=2"),
    ],
)
def test_a_configuration_must_agree_with_the_arrays(field, value, message, tmp_path):
    config = {**json.loads(base("hf_vit").metadata["config.json"]), field: value}
    path = base("hf_vit").write(tmp_path, metadata={"config.json": json.dumps(config)})
    with pytest.raises(ValueError, match=message) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value) and tmp_path.name in str(caught.value)


@by_table(
    "config, images",
    [
        *(({"id2label": value}, None) for value in ([1], {"zero": "a"})),
        *(({"architectures": 3}, None), ({"hidden_act": ["gelu"]}, None)),
        *(({"image_size": value}, None) for value in (None, {}, [32], "\x1b[31m\n")),
        *(({"patch_size": "8"}, None), ({"num_attention_heads": "3"}, None)),
        *(({}, {"image_mean": 0.5}), ({}, {**STEPS, "image_std": [0.5]})),
    ],
    ids=str,
)
def test_a_damaged_configuration_is_refused(config, images, tmp_path):
    refused(tmp_path, r"config\.json|is to have|preprocessing", {**VIT, **config}, images)


@by_table(
    "image_size, position_grid, reasons",
    [
        ((16, 16), None, {}),
        ((16, 24), None, {"a grid of 2×3 (supported: squares)"}),
        ((None, None), (2, 3), {"a grid of 2×3 (supported: squares)"}),
        ((None, None), (3, 3), {}),
        ((None, None), None, {}),
    ],
)
def test_some_types_have_square_grids(image_size, position_grid, reasons):
    config = {"image_size": image_size, "patch_size": (8, 8), "position_grid": position_grid}
    assert {reason for reason, applies in squares_only(config).items() if applies} == {*reasons}
