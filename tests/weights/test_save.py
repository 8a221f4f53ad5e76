import json
import os
import pathlib
import re
from itertools import product

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made.sampling import some
from reference.comparing import arrays, numpy
from reference.goldens import GOLDENS, stored
from reference.small import HYBRID, NO_TRANSFORMER, images_for, one_block, small

from keras_vit import from_pretrained, save_weights
from keras_vit.models.config import DEFAULTS
from keras_vit.weights.archive import digest_in, read_arrays, write_arrays
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.save import _with_prefix_positions, cannot_express

# Keys in published files, and their Linen names, which are written.
RENAMED = (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0"))
FLOATS = {"float16": "float16", "bfloat16": ml_dtypes.bfloat16, "float64": "float64"}
NOT_SAVED = ("name", "trainable", "dtype", "frozen")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def target(folder, layout, name="saved"):
    """Where a layout's checkpoint is saved, and loaded from."""
    return folder / f"{name}{'' if LAYOUTS[layout].in_folder else LAYOUTS[layout].suffix}"


def config_of(model):
    return {name: value for name, value in model.get_config().items() if name not in NOT_SAVED}


def assert_same_weights(one, other):
    one, other = arrays(one), arrays(other)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], strict=True)


def assert_same_outputs(one, other):
    """Within 1e-6 of the largest output."""
    images = images_for(other, size=None if other.image_size[0] else (32, 64))
    jax = keras.backend.backend() == "jax"  # which would compile each operation on its own
    computed, expected = (m.predict_on_batch(images) if jax else numpy(m(images)) for m in (one, other))
    np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def written_names(file):
    """A golden file's arrays with the keys and shapes that are written."""
    written = {}
    for key, array in file.items():
        array = array.reshape(-1) if re.search(r"\bgn(\d|_root|_proj)/", key) else array
        for old, new in RENAMED:
            key = key.replace(old, new)
        written[key] = array
    return written


@pytest.fixture(scope="module")
def model():
    return small()


# Load → save → load --------------------------------------------------------------------------------

TYPES = [*product(GOLDENS, ["float32"]), *some(product(GOLDENS, FLOATS), 8)]


@pytest.mark.parametrize("name, dtype", TYPES)
def test_a_checkpoint_is_saved_as_it_was(name, dtype, golden, tmp_path):
    """Also in another type: a model computes in float32, which can represent every float16 and bfloat16."""
    file, (source, layout, given) = stored(golden, name), GOLDENS[name]
    if dtype == "float32":
        model = from_pretrained(golden / source, **given)
    else:
        file = {key: array.astype(FLOATS[dtype]) for key, array in file.items()}
        source = tmp_path / f"source{LAYOUTS[layout].suffix}"
        write_arrays(file, source, dtype)
        given = {"num_heads": 3, "norm_epsilon": 1e-12} if layout == "huggingface" else given
        model = from_pretrained(source, **given)
    path = save_weights(model, target(tmp_path, layout), layout, dtype=dtype)
    written, expected = read_arrays(path), written_names(file)
    assert written.keys() == expected.keys()
    for key, array in written.items():
        assert (array.dtype, array.shape) == (expected[key].dtype, expected[key].shape)
        assert array.tobytes() == np.ascontiguousarray(expected[key]).tobytes(), key
    again = from_pretrained(target(tmp_path, layout))
    assert config_of(again) == config_of(model)
    assert_same_weights(again, model)


@pytest.mark.tensorflow_only("JAX has no float64 unless the whole program does")
def test_a_float64_file_is_rounded_once_unless_the_model_has_float64(model, tmp_path):
    path = save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="float64")
    fine = {key: array + 1e-12 for key, array in read_arrays(path).items()}
    write_arrays(fine, path, "float64", digest_in(path))
    for dtype in ("float32", "float64"):
        again = save_weights(
            from_pretrained(path, dtype=dtype), tmp_path / f"{dtype}.npz", "vit_jax", dtype="float64"
        )
        for key, array in read_arrays(again).items():
            np.testing.assert_array_equal(array, fine[key].astype(dtype).astype("float64"), strict=True)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_a_model_of_lower_precision_is_saved(dtype, tmp_path):
    model = small(dtype=dtype)
    path = save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="bfloat16")
    for name, array in arrays(from_pretrained(path, dtype=dtype)).items():
        expected = arrays(model)[name].astype(FLOATS["bfloat16"])
        np.testing.assert_array_equal(array.astype("float32"), expected.astype("float32"))


def test_blocks_may_be_stacked(golden, tmp_path):
    model = from_pretrained(golden / "bigvision_map.npz")
    path = save_weights(model, tmp_path / "scan.npz", "big_vision", scan=True)
    written = read_arrays(path)
    assert not [key for key in written if "encoderblock_" in key]
    assert written["params/Transformer/encoderblock/LayerNorm_0/scale"].shape == (2, 24)
    again = from_pretrained(path)
    assert config_of(again) == config_of(model)
    assert_same_weights(again, model)


# From one layout to another ------------------------------------------------------------------------


def test_conversions_between_layouts_chain(golden, tmp_path):
    original = model = from_pretrained(golden / "timm_token.safetensors", num_heads=3)
    for step, layout in enumerate(("huggingface", "big_vision", "vit_jax", "timm")):
        save_weights(model, target(tmp_path, layout, f"step{step}"), layout)
        model = from_pretrained(target(tmp_path, layout, f"step{step}"))
        assert config_of(model) == {**config_of(original), "prefix_positions": layout != "big_vision"}
    assert_same_outputs(model, original)


def test_the_position_of_the_class_token_is_added_to_the_token(model, tmp_path):
    """big_vision has no row for it; the model uses only the sum."""
    table, token = (arrays(model)[n] for n in ("position_embedding/table", "class_token/token"))
    written = read_arrays(save_weights(model, tmp_path / "added.npz", "big_vision"))
    np.testing.assert_array_equal(written["params/pos_embedding"], table[:, 1:])
    np.testing.assert_array_equal(written["params/cls"], token + table[:, :1])
    back = save_weights(from_pretrained(tmp_path / "added.npz"), tmp_path / "back.npz", "vit_jax")
    again = read_arrays(back)["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(again[:, 1:], table[:, 1:])
    assert not again[:, 0].any()


def test_each_prefix_token_has_its_rows():
    model = small(distillation=True, num_registers=2)
    before = arrays(model)
    after, config = _with_prefix_positions(before, model.get_config(), False)
    table, moved = before["position_embedding/table"], {}
    for name, rows in (("class_token", [0]), ("distillation_token", [1]), ("register_tokens", [2, 3])):
        moved[f"{name}/token"] = before[f"{name}/token"] + table[:, rows]
    assert config == {**model.get_config(), "prefix_positions": False}
    assert after.keys() == before.keys()
    for name, array in {**before, **moved, "position_embedding/table": table[:, 4:]}.items():
        np.testing.assert_array_equal(after[name], array)
    back, _ = _with_prefix_positions(after, config, True)
    assert not back["position_embedding/table"][:, :4].any()
    np.testing.assert_array_equal(back["position_embedding/table"][:, 4:], table[:, 4:])


# Every layout × every kind of model ----------------------------------------------------------------

CROP = {"resize": "crop", "crop_fraction": 0.875, "interpolation": "bicubic", "antialias": True}


@st.composite
def variations(draw):
    """(layout, options of a small model); half of them have only values that the layout supports."""
    layout, only_supported = draw(st.sampled_from([*LAYOUTS])), draw(st.booleans())

    def pick(name, *values):
        supported = LAYOUTS[layout].supported.get(name, (DEFAULTS.get(name),))
        return draw(st.sampled_from([v for v in values if v in supported or not only_supported]))

    c = {
        "num_layers": pick("num_layers", 1, 1, 1, 2, None),
        "num_classes": pick("num_classes", 5, 5, None),
        "representation_size": pick("representation_size", None, None, None, 12, 7),
        "resnet": pick("resnet", None, None, None, (), (1,)),
        "resnet_form": pick("resnet_form", "vit_jax", "timm"),
        "in_channels": pick("in_channels", 3, 3, 1, 4),
        "activation": pick("activation", "gelu_tanh", "gelu_erf", "quick_gelu"),
        "norm_epsilon": pick("norm_epsilon", 1e-6, 1e-5, 1e-12),
        "norm_after_pooling": pick("norm_after_pooling", False, False, True),
    }
    if c["num_layers"] is None:
        c |= {**NO_TRANSFORMER, "pooling": draw(st.sampled_from(["gap", None]))}
    else:
        c |= {
            "pooling": pick("pooling", "token", "token", "gap", "map", None),
            "qkv_bias": pick("qkv_bias", True, True, False),
            "num_registers": pick("num_registers", 0, 0, 1, 3),
            "distillation": pick("distillation", False, False, True),
            "layer_scale": pick("layer_scale", None, None, 1e-5, 0.1),
            "position_embedding": pick("position_embedding", "learned", "learned", "sincos2d", "none"),
            "prefix_positions": pick("prefix_positions", True, False),
            "pre_norm": pick("pre_norm", False, False, True),
        }
        c["class_token"] = c["pooling"] == "token" or pick("class_token", False, False, True)
    if c.get("distillation"):
        plain = {"representation_size": None, "norm_after_pooling": False}
        c |= {"pooling": "token", "class_token": True, **plain}
    sizes = (8, (16, 24)) if c["resnet"] is None else (32, (32, 64))
    c["image_size"] = size = pick("image_size", *sizes, (None, None))
    c |= {"patch_size": pick("patch_size", 4, (4, 8)), "resnet_width": 32}
    if size == (None, None):
        c["position_grid"] = pick("position_grid", (2, 3), (3, 3), None)
    if c["num_classes"] and draw(st.booleans()):
        c["class_names"] = ("tabby", "tiger", "lynx", "lion", "ocelot")
    if draw(st.booleans()):
        mean = (0.4, 0.5, 0.6, 0.7)[: c["in_channels"]]
        c["preprocessing"] = {
            **CROP,
            "image_size": None if size == (None, None) else size,
            "mean": mean,
            "std": mean,
        }
    return layout, c


def assert_refused_or_round_trip(model, folder, layout, **options):
    path, config = target(folder, layout), model.get_config()
    if reasons := cannot_express(layout, config):
        for reason in reasons:  # each names an option that is really not supported
            name = re.match(r"\w+", reason)[0]
            default = {"num_layers": 1, "patch_size": (4, 4)}.get(name, DEFAULTS.get(name))
            assert reason not in cannot_express(layout, {**config, name: default}), reason
        with pytest.raises(ValueError) as caught:
            save_weights(model, path, layout)
        message = str(caught.value)
        assert message.startswith(f"the layout {layout!r} cannot express this model: ")
        assert all(reason in message for reason in reasons) and "\n" not in message
        assert not [*folder.iterdir()]
        return
    save_weights(model, path, layout, **options)
    again = from_pretrained(path, **({} if model.image_size[0] else {"image_size": (None, None)}))
    expected, prefix_positions = config_of(model), LAYOUTS[layout].prefix_positions
    if prefix_positions is not None:
        expected["prefix_positions"] = again.prefix_positions
        if model.num_prefix_tokens and model.position_embedding == "learned":
            assert again.prefix_positions == prefix_positions
    assert config_of(again) == expected
    if again.prefix_positions == model.prefix_positions:
        assert_same_weights(again, model)
    else:
        assert_same_outputs(again, model)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=variations(), scan=st.booleans())
def test_a_layout_holds_a_model_or_says_what_it_cannot_express(tmp_path_factory, drawn, scan):
    layout, options = drawn
    scan = {"scan": scan} if layout == "big_vision" else {}
    assert_refused_or_round_trip(small(**options), tmp_path_factory.mktemp("any"), layout, **scan)


@pytest.mark.parametrize(
    "layout, options",
    [
        ("vit_jax", {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)}),
        ("vit_jax", {**HYBRID, "resnet": (1,), "resnet_form": "timm"}),
        ("vit_jax", {"pooling": None, "class_token": True}),
        ("vit_jax", {"image_size": (16, 40), "position_grid": (3, 3)}),
        ("timm", {"pooling": "gap", "class_token": True, "norm_after_pooling": True}),
        ("timm", {"distillation": True, "num_registers": 2}),
        ("timm", {"distillation": True, "num_classes": None}),
        ("timm", {"pooling": "map", "qkv_bias": False, "class_token": True}),
        ("timm", {"pooling": "map", "pre_norm": True}),
        ("huggingface", {"num_registers": 1, "num_classes": None}),
        ("huggingface", {"representation_size": 12, "num_classes": None}),
        ("huggingface", {"distillation": True, "qkv_bias": False, "in_channels": 1}),
        ("big_vision", {"position_embedding": "sincos2d", "prefix_positions": True}),
    ],
    ids=str,
)
def test_a_rare_model_is_held_or_refused(layout, options, tmp_path):
    assert_refused_or_round_trip(one_block(**options), tmp_path, layout)


FLAX = {  # refused by both layouts of flax
    "position_embedding": "none",
    "qkv_bias": False,
    "num_registers": 2,
    "distillation": True,
    "layer_scale": 0.1,
    "pre_norm": True,
    "norm_after_pooling": True,
}
REFUSED = [
    *(("vit_jax", {name: value}, f"{name}={value!r} (supported: ") for name, value in FLAX.items()),
    *(("big_vision", {name: value}, f"{name}={value!r} (supported: ") for name, value in FLAX.items()),
    (
        "vit_jax",
        {"pooling": "map", "class_token": False},
        "pooling='map' (supported: 'token' or 'gap' or None)",
    ),
    ("vit_jax", {"pooling": "gap", "class_token": True}, "class_token=True with pooling='gap'"),
    ("vit_jax", {"position_embedding": "sincos2d"}, "position_embedding='sincos2d' (supported: 'learned')"),
    ("vit_jax", NO_TRANSFORMER, "num_layers=None"),
    ("big_vision", {"pooling": "map", "class_token": True}, "class_token=True with pooling='map'"),
    ("big_vision", {"resnet": (1,)}, "resnet=(1,) (supported: None)"),
    ("big_vision", NO_TRANSFORMER, "num_layers=None"),
    ("timm", {"position_embedding": "none"}, "position_embedding='none' (supported: 'learned')"),
    ("timm", {"representation_size": 7}, "representation_size=7 (supported: None)"),
    ("timm", {**NO_TRANSFORMER, "resnet": ()}, "num_layers=None"),
    ("timm", {"pooling": "map", "class_token": True}, "pooling='map' with prefix tokens"),
    ("timm", {"pooling": "map", "qkv_bias": False}, "qkv_bias=False with pooling='map'"),
    ("timm", {"pooling": "map", "pre_norm": True}, "pre_norm=True with pooling='map'"),
    *(("huggingface", {"pooling": p}, f"pooling={p!r} (supported: 'token')") for p in ("gap", "map", None)),
    ("huggingface", {"position_embedding": "none"}, "position_embedding='none' (supported: 'learned')"),
    ("huggingface", {"resnet": ()}, "resnet=() (supported: None)"),
    ("huggingface", {"num_registers": 2}, "num_registers=2 (supported: 0 or 1)"),
    ("huggingface", {"num_registers": 1, "distillation": True}, "num_registers with distillation"),
    ("huggingface", {"layer_scale": 0.1}, "layer_scale=0.1 (supported: None)"),
    ("huggingface", {"pre_norm": True}, "pre_norm=True (supported: False)"),
    ("huggingface", {"norm_after_pooling": True}, "norm_after_pooling=True (supported: False)"),
    ("huggingface", {"patch_size": (8, 4)}, "patch_size=(8, 4) (supported: squares)"),
    ("huggingface", {"representation_size": 7, "num_classes": None}, "(supported: hidden_size)"),
    ("huggingface", {"representation_size": 12}, "representation_size with a head"),
    ("huggingface", {"distillation": True, "num_classes": None}, "distillation without a head"),
    ("huggingface", NO_TRANSFORMER, "num_layers=None"),
]


@pytest.mark.parametrize("layout, options, reason", REFUSED, ids=[f"{r[0]}: {r[2]}" for r in REFUSED])
def test_what_a_layout_cannot_express_is_named(layout, options, reason, model):
    config = {
        **model.get_config(),
        **({"class_token": False} if options.get("pooling") == "map" else {}),
        **options,
    }
    assert any(reason in found for found in cannot_express(layout, config))


def test_all_reasons_are_in_one_line(model, tmp_path):
    model = small(layer_scale=0.1, num_registers=4, pre_norm=True)
    reasons = "num_registers=4 .*; layer_scale=0.1 .*; pre_norm=True .*"
    with pytest.raises(ValueError, match=rf"'huggingface' cannot express this model: {reasons}"):
        save_weights(model, tmp_path / "model", "huggingface")


@every_layout
def test_an_option_that_a_layout_does_not_name_must_have_its_default(layout, model, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "rotary", False)
    config = model.get_config()
    assert cannot_express(layout, {**config, "rotary": False}) == []
    assert cannot_express(layout, {**config, "rotary": True}) == ["rotary=True (supported: False)"]
    assert cannot_express(layout, {**config, "unknown": True}) == ["unknown=True (supported: none)"]
    named = {**LAYOUTS[layout].supported, "rotary": (True, False)}
    monkeypatch.setattr(LAYOUTS[layout], "supported", named)
    assert cannot_express(layout, {**config, "rotary": True}) == []


# Paths and failures --------------------------------------------------------------------------------


def contents(folder):
    """The contents of every file, and None for every folder, by relative path."""
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refuses(message, model, path, *arguments, **options):
    """A ValueError of one line is raised, and nothing written."""
    folder = pathlib.Path(path).parent
    before = contents(folder)
    with pytest.raises(ValueError, match=message) as caught:
        save_weights(model, path, *arguments, **options)
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_another_model_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    refuses("expected a VisionTransformer; got a Sequential", model, tmp_path / "model.npz", "vit_jax")


@pytest.mark.parametrize(
    "name, layout, options, message",
    [
        ("model.npz", "torch", {}, f"layout must be one of {', '.join(map(repr, LAYOUTS))}; got 'torch'"),
        ("model.npz", "vit_jax", {"dtype": "int8"}, "dtype must be one of 'float16', .*; got 'int8'"),
        ("model.npz", "vit_jax", {"scan": True}, "'vit_jax' has the options none; got scan"),
        ("model.npz", "big_vision", {"stack": True}, "'big_vision' has the options scan; got stack"),
        ("model.NPZ", "vit_jax", {}, "expected a .npz file for the layout 'vit_jax'; got '.*model.NPZ'"),
        ("model", "big_vision", {}, "expected a .npz file for the layout 'big_vision'"),
        ("model.pth", "timm", {}, "expected a .safetensors file for the layout 'timm'"),
        ("model.npz", "huggingface", {}, "expected a folder for the layout 'huggingface'"),
        ("missing/model.npz", "vit_jax", {}, "there is no folder '.*missing' to write into"),
    ],
)
def test_a_wrong_argument_is_refused(name, layout, options, message, model, tmp_path):
    refuses(message, model, tmp_path / name, layout, **options)


def test_values_that_the_type_cannot_represent_are_refused_by_name(tmp_path):
    model = small()
    model.get_layer("head").bias.assign([0, 0, 1e5, 0, 0])
    refuses("head/bias.*float16", model, tmp_path / "model.npz", "vit_jax", dtype="float16")
    save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="bfloat16")


FILES = {
    **dict.fromkeys(("vit_jax", "big_vision"), ["saved.npz", "saved.json"]),
    "timm": ["saved.safetensors", "saved.json"],
    "huggingface": [
        f"saved/{name}"
        for name in ("model.safetensors", "model.json", "config.json", "preprocessor_config.json")
    ],
}


@every_layout
def test_existing_files_are_replaced_only_on_request(layout, model, tmp_path):
    other, path = small(activation="gelu_erf", num_classes=4), target(tmp_path, layout)
    save_weights(model, path, layout)
    written = contents(tmp_path)
    assert {file.as_posix() for file in written} - {"saved"} == {*FILES[layout]}
    save_weights(other, path, layout, overwrite=True)
    assert from_pretrained(path).activation == "gelu_erf"
    assert contents(tmp_path).keys() == written.keys()
    for name in FILES[layout]:  # each of them counts
        for file in FILES[layout]:
            (tmp_path / file).unlink(missing_ok=True)
        (tmp_path / name).touch()
        refuses(f"'.*{name}' exists; .* overwrite=True", other, path, layout)


def test_other_files_in_a_folder_are_kept(model, tmp_path):
    folder = tmp_path / "model"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "run.txt").write_text("mine")
    save_weights(model, folder, "huggingface")
    save_weights(model, folder, "huggingface", overwrite=True)
    assert (folder / "logs" / "run.txt").read_text() == "mine"
    assert {p.name for p in folder.iterdir()} == {"logs", *(p[6:] for p in FILES["huggingface"])}


def test_a_path_may_be_a_string_relative_to_home(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save_weights(model, "~/model.npz", "vit_jax") == tmp_path / "model.npz"
    assert save_weights(model, "~/folder", "huggingface") == tmp_path / "folder/model.safetensors"


def fails(*arguments, **options):
    raise OSError(28, "No space left on device")


def fails_midway(arrays, path, *arguments):
    pathlib.Path(path).write_bytes(b"half")
    fails()


BREAKS = {
    "arrays": [(np.lib.format, "write_array", fails), (safetensors.numpy, "save_file", fails_midway)],
    "renaming": [(os, "replace", fails)],
}


@pytest.mark.parametrize("layout", ["vit_jax", "huggingface"])
@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_the_files_as_they_were(layout, broken, existing, model, tmp_path, monkeypatch):
    path = target(tmp_path, layout)
    if existing:
        save_weights(small(activation="gelu_erf"), path, layout)
    before = contents(tmp_path)
    for holder, name, failing in BREAKS[broken]:
        monkeypatch.setattr(holder, name, failing)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        save_weights(model, path, layout, overwrite=existing)
    assert contents(tmp_path) == before


@every_layout
def test_an_interrupted_save_is_refused(layout, model, tmp_path, monkeypatch):
    path = save_weights(model, target(tmp_path, layout), layout)
    replace, other = os.replace, small(activation="gelu_erf")

    def interrupted(source, final):
        if pathlib.Path(final) == path:
            raise KeyboardInterrupt
        replace(source, final)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", interrupted)
        save_weights(other, target(tmp_path, layout), layout, overwrite=True)
    refusal = f"{path.stem}.json was saved with other weights than {path.name}, .*; save the model again, or"
    with pytest.raises(ValueError, match=refusal):
        from_pretrained(target(tmp_path, layout))
    save_weights(other, target(tmp_path, layout), layout, overwrite=True)
    assert from_pretrained(target(tmp_path, layout)).activation == "gelu_erf"


@every_layout
def test_metadata_are_saved_next_to_the_arrays(layout, tmp_path):
    model = small(class_names=[*"abcde"], activation="quick_gelu", norm_epsilon=1e-3, dropout_rate=0.1)
    path = save_weights(model, target(tmp_path, layout), layout)
    found = json.loads(path.with_suffix(".json").read_text())
    assert (found["format"], found["layout"]) == ("keras_vit checkpoint 1", layout)
    again = from_pretrained(target(tmp_path, layout))
    assert_same_outputs(again, model)
    assert (again.class_names, again.dropout_rate) == (tuple("abcde"), 0.1)
