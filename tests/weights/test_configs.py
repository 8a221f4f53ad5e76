import json
import math
import re

import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import GOLDENS
from reference.small import HYBRID, SMALL, small

from keras_vit import Preprocessing, VisionTransformer, from_pretrained, save_weights
from keras_vit.models.config import OPTIONS
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import read_metadata, sidecar_text

NAMES = ("tabby", "tiger", "lynx", "lion", "ocelot")
SQUASH = Preprocessing(16, interpolation="bicubic", antialias=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
CROP = Preprocessing(16, resize="crop", crop_fraction=0.5, antialias=True)


def hub(model):
    """config.json and preprocessor_config.json of a model."""
    return tuple(json.loads(text) for text in LAYOUTS["huggingface"].write_config(model.get_config()))


# NAME.json -----------------------------------------------------------------------------------------


def test_it_holds_every_argument_of_the_model():
    model = small(class_names=NAMES, name="mine", dtype="mixed_bfloat16")
    model.get_layer("head").trainable = False
    text = sidecar_text(model.get_config(), "timm")
    assert text.endswith("}\n")
    found = json.loads(text)
    assert [*found] == ["format", "layout", "arguments"]
    assert (found["format"], found["layout"]) == ("keras_vit checkpoint 1", "timm")
    assert {*found["arguments"]} == {*OPTIONS}
    assert found["arguments"] == json.loads(
        json.dumps({name: value for name, value in model.get_config().items() if name in OPTIONS})
    )
    again = VisionTransformer(**found["arguments"])
    assert again.get_config() == small(class_names=NAMES).get_config() | {"name": again.name}


TOLD = [  # what the arrays of a vit_jax file do not tell, or not surely
    {"activation": "quick_gelu"},
    {"norm_epsilon": 3e-4},
    {"class_names": NAMES},
    {"preprocessing": SQUASH},
    {"preprocessing": CROP},
    {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "stochastic_depth_rate": 0.3},
    {"image_size": (8, 32)},
    {"pooling": None, "class_token": True},
    {"pooling": None, "class_token": False},
    {**HYBRID, "resnet": (1,), "resnet_form": "timm"},
]


@pytest.mark.parametrize("options", TOLD, ids=str)
def test_what_the_arrays_do_not_tell_is_read_back(options, tmp_path):
    model = small(**options)
    path = save_weights(model, tmp_path / "model.npz", "vit_jax")
    again = from_pretrained(path)
    assert again.get_config() == model.get_config() | {"name": again.name}
    path.with_suffix(".json").unlink()
    if options != {"image_size": (8, 32)}:
        assert from_pretrained(path).get_config() != model.get_config() | {"name": again.name}
    else:
        from_pretrained(path)  # 1 × 4 cells may be 2 × 2


@pytest.mark.parametrize("value", [1e-5, 0.1, 1.0])
def test_the_start_of_layer_scale_is_read_back(value, tmp_path):
    model = small(layer_scale=value)
    path = save_weights(model, tmp_path / "model.safetensors", "timm")
    assert from_pretrained(path).layer_scale == value


def test_the_arrays_win_over_what_they_tell(tmp_path):
    """A sidecar that contradicts them is refused."""
    path = save_weights(small(), tmp_path / "model.npz", "vit_jax")
    sidecar = path.with_suffix(".json")
    told = json.loads(sidecar.read_text())
    for name, wrong in (("mlp_dim", 21), ("num_heads", 4), ("num_classes", 4), ("patch_size", [4, 4])):
        sidecar.write_text(json.dumps({**told, "arguments": {**told["arguments"], name: wrong}}))
        with pytest.raises(ValueError, match=rf"model.json says {name}=.*, the arrays hold") as caught:
            from_pretrained(path)
        assert "\n" not in str(caught.value)


# config.json and preprocessor_config.json ----------------------------------------------------------


def test_the_golden_configuration_is_written_as_transformers_wrote_it(golden):
    original = json.loads((golden / "hf_vit" / "config.json").read_text())
    config, _ = hub(from_pretrained(golden / GOLDENS["hf_vit"][0]))
    unwritten = {"dtype", "encoder_stride", "initializer_range", "transformers_version"}
    wanted = {name: value for name, value in original.items() if name not in unwritten}
    assert config == {**wanted, "keras_vit": {"antialias": False}}


@pytest.mark.parametrize(
    "options, kind, architecture",
    [
        ({}, "vit", "ViTForImageClassification"),
        ({"num_classes": None}, "vit", "ViTModel"),
        ({"num_classes": None, "representation_size": 12}, "vit", "ViTModel"),
        ({"distillation": True}, "deit", "DeiTForImageClassificationWithTeacher"),
        ({"num_registers": 1}, "deit", "DeiTForImageClassification"),
        ({"num_registers": 1, "num_classes": None}, "deit", "DeiTModel"),
    ],
)
def test_the_architecture_is_named(options, kind, architecture):
    config, images = hub(small(**options))
    assert (config["model_type"], config["architectures"]) == (kind, [architecture])
    assert images["image_processor_type"].startswith({"vit": "ViT", "deit": "DeiT"}[kind])


@pytest.mark.parametrize(
    "options, name, value",
    [
        ({}, "hidden_size", 12),
        ({}, "num_hidden_layers", 2),
        ({}, "num_attention_heads", 3),
        ({}, "intermediate_size", 20),
        ({}, "patch_size", 8),
        ({}, "image_size", 16),
        ({"image_size": (16, 24)}, "image_size", [16, 24]),
        ({"image_size": (None, None), "position_grid": (3, 3)}, "image_size", 24),
        ({"image_size": (None, None), "position_grid": (2, 3)}, "image_size", [16, 24]),
        ({"image_size": 16, "position_grid": (3, 3)}, "image_size", 24),
        ({"in_channels": 1}, "num_channels", 1),
        ({}, "qkv_bias", True),
        ({"qkv_bias": False}, "qkv_bias", False),
        ({"norm_epsilon": 1e-12}, "layer_norm_eps", 1e-12),
        ({"activation": "gelu_erf"}, "hidden_act", "gelu"),
        ({"activation": "gelu_tanh"}, "hidden_act", "gelu_pytorch_tanh"),
        ({"activation": "quick_gelu"}, "hidden_act", "quick_gelu"),
        ({"dropout_rate": 0.1}, "hidden_dropout_prob", 0.1),
        ({"attention_dropout_rate": 0.2}, "attention_probs_dropout_prob", 0.2),
        ({}, "pooler_output_size", 12),
        ({}, "pooler_act", "tanh"),
        ({}, "id2label", {str(i): f"LABEL_{i}" for i in range(5)}),
        ({"class_names": NAMES}, "id2label", {str(i): name for i, name in enumerate(NAMES)}),
        ({"class_names": NAMES}, "label2id", {name: i for i, name in enumerate(NAMES)}),
        ({"num_classes": None}, "id2label", {}),
    ],
)
def test_an_option_is_written_under_their_name(options, name, value):
    config, _ = hub(small(**options))
    assert config[name] == value


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            {"preprocessing": SQUASH},
            {
                "do_resize": True,
                "size": {"height": 16, "width": 16},
                "resample": 3,
                "do_center_crop": False,
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": True,
                "image_mean": [0.4, 0.5, 0.6],
                "image_std": [0.2, 0.3, 0.4],
            },
        ),
        (
            {"preprocessing": CROP},
            {
                "size": {"shortest_edge": 32},
                "do_center_crop": True,
                "crop_size": {"height": 16, "width": 16},
                "resample": 2,
            },
        ),
        ({"preprocessing": Preprocessing(16, interpolation="nearest")}, {"resample": 0}),
        ({"image_size": (16, 24)}, {"size": {"height": 16, "width": 24}, "resample": 2}),
        ({"image_size": (None, None), "position_grid": (2, 3)}, {"size": {"height": 16, "width": 24}}),
        ({"in_channels": 1}, {"image_mean": [0.5], "image_std": [0.5]}),
    ],
)
def test_how_images_are_prepared_is_written_as_theirs(options, expected):
    _, images = hub(small(**options))
    assert {name: images[name] for name in expected} == expected
    assert ("crop_size" in images) == images["do_center_crop"]


@pytest.mark.parametrize(
    "options",
    [
        {"preprocessing": SQUASH},
        {"preprocessing": CROP},
        {"class_names": NAMES},
        {"distillation": True, "activation": "quick_gelu", "qkv_bias": False},
        {"num_registers": 1, "norm_epsilon": 1e-3},
        {"num_classes": None, "representation_size": 12},
        {"image_size": (16, 24)},
        {"in_channels": 1},
    ],
    ids=str,
)
def test_their_files_alone_tell_the_model(options, tmp_path):
    """The folder as another project would have made it, without our own NAME.json."""
    size = options.get("image_size", 16)
    channels = options.get("in_channels", 3)
    half = (0.5,) * channels
    model = small(**{"preprocessing": Preprocessing(size, antialias=True, mean=half, std=half), **options})
    path = save_weights(model, tmp_path / "model", "huggingface")
    path.with_suffix(".json").unlink()
    again = from_pretrained(tmp_path / "model")
    assert again.get_config() == model.get_config() | {"name": again.name}
    for name, array in arrays(again).items():
        np.testing.assert_array_equal(array, arrays(model)[name])


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e-320, 10**400], ids=["nan", "inf", "tiny", "huge"])
@pytest.mark.parametrize("name", ["norm_epsilon", "layer_scale", "dropout_rate", "mean", "crop_fraction"])
def test_a_number_that_float32_does_not_hold_is_refused_in_one_line(name, value, tmp_path):
    path = save_weights(small(), tmp_path / "model.npz", "vit_jax")
    sidecar = json.loads(path.with_suffix(".json").read_text())
    if name in ("mean", "crop_fraction"):
        sidecar["arguments"]["preprocessing"][name] = [value] * 3 if name == "mean" else value
        sidecar["arguments"]["preprocessing"]["resize"] = "crop"
    else:
        sidecar["arguments"][name] = value
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    with pytest.raises(
        ValueError, match=f"model.json says {name}=|model.json says preprocessing=|at most"
    ) as error:
        from_pretrained(path)
    assert type(error.value) is ValueError and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "size, message",
    [
        ({"shortest_edge": 10**9}, "at most 89478485 pixels"),
        ({"shortest_edge": 10**400}, "config.json says preprocessing="),
    ],
)
def test_a_size_that_no_image_has_is_refused(size, message, tmp_path):
    path = save_weights(small(), tmp_path / "model", "huggingface")
    path.with_suffix(".json").unlink()
    preprocessor = path.with_name("preprocessor_config.json")
    found = json.loads(preprocessor.read_text()) | {"do_center_crop": True, "crop_size": 16, "size": size}
    preprocessor.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path / "model")


VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 16}
TIMM = {"architecture": "vit_base_patch16_224", "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
# The defaults of each image processor of transformers 5.23, with 16 for their 224 pixels; "ViTFast" has the
# null values that fast processors of 4.5x write.
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
STEPS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, **HALF}
SQUARE, EDGE = {"height": 16, "width": 16}, {"shortest_edge": 16}
CENTER = {"do_center_crop": True, "resample": 3, "crop_size": SQUARE}
SAVED = {
    "ViT": {**STEPS, "resample": 2, "size": SQUARE},
    "DeiT": {**STEPS, **CENTER, "size": {"height": 18, "width": 18}},
    "Beit": {**STEPS, **CENTER, "do_center_crop": False, "do_reduce_labels": False, "size": SQUARE},
    "Siglip": {**STEPS, "resample": 3, "size": SQUARE, "do_convert_rgb": True},
    "CLIP": {**STEPS, **CENTER, "size": EDGE, "do_convert_rgb": True},
    "Bit": {**STEPS, **CENTER, "size": EDGE, "do_convert_rgb": True},
    "ViTFast": {
        **{**STEPS, "resample": 2, "size": {**SQUARE, "shortest_edge": None}, "default_to_square": True},
        **{
            "do_center_crop": None,
            "crop_size": None,
            "do_convert_rgb": None,
            "data_format": "channels_first",
        },
    },
}
# The forms of older repositories, in which a size is one number.
GOOGLE = {"do_normalize": True, "do_resize": True, **HALF, "size": 16}
FACEBOOK = {"feature_extractor_type": "DeiTFeatureExtractor", **GOOGLE, **CENTER, "crop_size": 16, "size": 18}


def told(folder, config=VIT, images=None):
    """What config.json and preprocessor_config.json tell."""
    (folder / "config.json").write_text(json.dumps(config))
    if images is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return read_metadata(
        folder / "model.safetensors", LAYOUTS["huggingface" if "model_type" in config else "timm"]
    )[0]


@pytest.mark.parametrize(
    "images, expected",
    [
        (SAVED["ViT"], ("squash", 1, "bilinear")),
        (SAVED["DeiT"], ("crop", 16 / 18, "bicubic")),
        (SAVED["Beit"], ("squash", 1, "bicubic")),
        (SAVED["Siglip"], ("squash", 1, "bicubic")),
        (SAVED["CLIP"], ("crop", 1, "bicubic")),
        (SAVED["Bit"], ("crop", 1, "bicubic")),
        (SAVED["ViTFast"], ("squash", 1, "bilinear")),
        (GOOGLE, ("squash", 1, "bilinear")),
        (FACEBOOK, ("crop", 16 / 18, "bicubic")),
        ({**SAVED["ViT"], "resample": 0}, ("squash", 1, "nearest")),
        ({**SAVED["ViT"], "size": [16, 16]}, ("squash", 1, "bilinear")),
        ({**SAVED["ViT"], **CENTER, "size": 32}, ("crop", 0.5, "bicubic")),
    ],
    ids=[*SAVED, "Google's", "Facebook's", "nearest", "list", "int"],
)
def test_image_processors_are_read_as_they_are_saved(images, expected, tmp_path):
    found = Preprocessing(16, **told(tmp_path, images=images)["preprocessing"])
    assert (found.resize, found.crop_fraction, found.interpolation) == expected
    assert (found.mean, found.std, found.antialias) == ((0.5,) * 3, (0.5,) * 3, True)


@pytest.mark.parametrize("rescale", [{}, {"do_rescale": False}, {"rescale_factor": 1 / 127.5}])
@pytest.mark.parametrize("normalise", [{}, {"do_normalize": False}, {"image_mean": 0.3, "image_std": 2}])
def test_numbers_are_rescaled_and_normalised_as_they_do(rescale, normalise, tmp_path):
    images = {**SAVED["ViT"], **rescale, **normalise}
    found = Preprocessing(16, **told(tmp_path, images=images)["preprocessing"])
    pixels = np.arange(256, dtype="float32")[:, np.newaxis].repeat(3, axis=-1)
    expected = pixels * (images["rescale_factor"] if images["do_rescale"] else 1)
    if images["do_normalize"]:
        expected = (expected - images["image_mean"]) / images["image_std"]
    np.testing.assert_allclose(found.normalise(pixels), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        *({"resample": code} for code in (1, 4, 5, 77, -1, None, "bicubic", True)),
        *({name: value} for name in ("do_resize", "do_pad", "do_flip_channel_order") for value in (1, "yes")),
        *({"do_resize": value} for value in (False, None)),
        *({"rescale_factor": factor} for factor in (0, -1, 1e-320, math.nan, "1/255", None, True)),
        *({"size": size} for size in (17, [16, 17], {"height": 17, "width": 17}, {"shortest_edge": 16})),
        *({"size": size} for size in ({}, [], None, "16", 16.0, True, {"longest_edge": 16}, {"height": 16})),
        *({**CENTER, "crop_size": size} for size in (15, [16, 17], {"shortest_edge": 16}, None, 0, "16")),
        *({**CENTER, "size": size} for size in (15, [18, 19], {**EDGE, "longest_edge": 20}, None, 0)),
        {"crop_pct": 0.9},
        {"do_center_crop": "no"},
    ],
    ids=str,
)
def test_what_no_preprocessing_does_is_refused_by_name_and_value(changes, tmp_path):
    name, value = [*changes.items()][-1]
    message = f"preprocessor_config.json says {name}={value!r}; expected "
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        told(tmp_path, images={**SAVED["ViT"], **changes})
    assert "\n" not in str(error.value)


def test_an_image_size_that_is_none_is_refused_before_the_images_are(tmp_path):
    with pytest.raises(ValueError, match="config.json says image_size=.*; expected two integers") as error:
        told(tmp_path, {**VIT, "image_size": "\x1b[31m\n"}, images=SAVED["ViT"])
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "numbers",
    [("1", "2", "3", "4"), ("0", "2"), ("a", "b"), ("00", "1"), ("0", "1.0"), ("-1", "0")],
    ids=",".join,
)
def test_labels_must_be_numbered_as_the_classes(numbers, tmp_path):
    message = f"config.json says id2label of {', '.join(numbers)}; expected the class numbers from 0 to "
    with pytest.raises(ValueError, match=f"{re.escape(message)}{len(numbers) - 1}"):
        told(tmp_path, {**VIT, "id2label": dict.fromkeys(numbers, "cat")})


def test_labels_may_stand_in_any_order(tmp_path):
    id2label = {str(i): f"class {i}" for i in reversed(range(12))}
    found = told(tmp_path, {**VIT, "id2label": id2label})
    assert found["class_names"] == tuple(f"class {i}" for i in range(12))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, ("crop", 0.875, "bicubic")),  # timm's defaults
        ({"crop_pct": None, "crop_mode": None, "interpolation": ""}, ("crop", 0.875, "bicubic")),
        ({"crop_pct": 1, "interpolation": "bilinear"}, ("crop", 1, "bilinear")),
        ({"crop_pct": 0.9, "crop_mode": "center"}, ("crop", 0.9, "bicubic")),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, ("squash", 1, "bicubic")),
    ],
)
def test_timms_way_of_cropping_is_read(changes, expected, tmp_path):
    found = told(tmp_path, {**TIMM, **changes})["preprocessing"]
    assert (found["resize"], found["crop_fraction"], found["interpolation"]) == expected


@pytest.mark.parametrize(
    "name, value",
    [
        *(("crop_pct", value) for value in (1.1, -0.5, "0.9", math.nan, math.inf, True)),
        *(("crop_mode", value) for value in ("border", 1)),
        *(("interpolation", value) for value in ("lanczos", "random", 3)),
    ],
)
def test_what_timm_does_to_images_and_we_do_not_is_refused(name, value, tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"config.json says {name}={value!r}; expected ")):
        told(tmp_path, {**TIMM, name: value})


def test_a_long_configuration_is_refused_by_its_size(tmp_path):
    path = save_weights(small(), tmp_path / "model.npz", "vit_jax")
    path.with_suffix(".json").write_text(" " * (1 << 24) + "{}")
    with pytest.raises(ValueError, match="it has more than 16777216 bytes"):
        from_pretrained(path)


def test_the_small_model_has_what_is_written_of_it():
    """The numbers above are those of SMALL."""
    assert (SMALL["hidden_size"], SMALL["mlp_dim"], SMALL["num_heads"], SMALL["num_layers"]) == (12, 20, 3, 2)
