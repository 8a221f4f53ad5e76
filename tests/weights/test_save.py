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
from reference.small import HYBRID, NO_TRANSFORMER, SMALL, images_for, one_block, small

from keras_vit import from_pretrained, save_weights
from keras_vit.models.config import DEFAULTS, ViTConfig
from keras_vit.weights.archive import digest_in, read_arrays, write_arrays
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.save import _with_prefix_positions, cannot_express

# Keys that today's names replace in the files that were published with those of before.
RENAMED = (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0"))
FLOATS = {"float16": "float16", "bfloat16": ml_dtypes.bfloat16, "float32": "float32", "float64": "float64"}
UNTOLD = ("name", "trainable", "dtype", "frozen")  # of a configuration: what is not the model's


def target(folder, layout, name="saved"):
    """Where a layout's checkpoint goes, and what to load it from."""
    return folder / f"{name}{'' if layout == 'huggingface' else LAYOUTS[layout].suffix}"


def assert_computes_the_same(one, other, atol=0):
    """Bit for bit, or within so much of the largest value.

    On JAX, which compiles each for seconds, not if configuration and weights are the same.
    """
    equal = told(one) == told(other) and all(map(np.array_equal, one.get_weights(), other.get_weights()))
    if keras.backend.backend() == "tensorflow" or not equal:
        images = images_for(other, size=None if other.image_size[0] else (32, 64))
        expected = logits(other, images)
        atol *= np.abs(expected).max()
        np.testing.assert_allclose(logits(one, images), expected, rtol=0, atol=atol)


def logits(model, images):
    """The output; compiled, since JAX would compile each operation of it."""
    return model.predict_on_batch(images) if keras.backend.backend() == "jax" else numpy(model(images))


def written_names(file):
    """The keys and shapes that a golden file's arrays are written with."""
    written = {}
    for key, array in file.items():
        array = array.reshape(-1) if re.search(r"\bgn(\d|_root|_proj)/", key) else array
        for old, new in RENAMED:
            key = key.replace(old, new)
        written[key] = array
    return written


def told(model):
    return {name: value for name, value in model.get_config().items() if name not in UNTOLD}


@pytest.fixture(scope="module")
def loaded(golden):
    """The golden checkpoints as models."""
    return {name: from_pretrained(golden / file, **given) for name, (file, _, given) in GOLDENS.items()}


@pytest.fixture(scope="module")
def model():
    return small()


def assert_same_weights(one, other):
    one, other = arrays(one), arrays(other)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], strict=True)


# Load → save → load --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*GOLDENS])
def test_a_checkpoint_is_written_as_it_was(loaded, golden, name, tmp_path):
    file, model = stored(golden, name), loaded[name]
    layout = GOLDENS[name][1]
    path = save_weights(model, target(tmp_path, layout), layout)
    written, expected = read_arrays(path), written_names(file)
    assert written.keys() == expected.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, expected[key], strict=True)
    again = from_pretrained(target(tmp_path, layout))
    assert told(again) == told(model)
    assert_same_weights(again, model)
    assert_computes_the_same(again, model)


@pytest.mark.parametrize("name, dtype", some(product(GOLDENS, ["float16", "bfloat16", "float64"]), 4))
def test_a_checkpoint_in_another_type_is_written_as_it_was(golden, name, dtype, tmp_path):
    """A model computes in float32, which holds every float16 and bfloat16."""
    _, layout, given = GOLDENS[name]
    cast = {key: array.astype(FLOATS[dtype]) for key, array in stored(golden, name).items()}
    source = tmp_path / f"source{LAYOUTS[layout].suffix}"
    if source.suffix == ".npz":
        np.savez(source, **{k: a.view("V2") if dtype == "bfloat16" else a for k, a in cast.items()})
    else:
        safetensors.numpy.save_file(cast, source)
    given = {"num_heads": 3, "norm_epsilon": 1e-12} if layout == "huggingface" else given
    model = from_pretrained(source, **given)
    path = save_weights(model, target(tmp_path, layout), layout, dtype=dtype)
    written, expected = read_arrays(path), written_names(cast)
    assert written.keys() == expected.keys()
    for key, array in written.items():
        assert array.dtype == expected[key].dtype
        assert array.shape == expected[key].shape
        assert array.tobytes() == expected[key].tobytes(), key
    again = from_pretrained(target(tmp_path, layout))
    assert told(again) == told(model)
    assert_same_weights(again, model)


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_more_digits_than_a_model_holds_are_rounded_once(layout, tmp_path):
    """A float64 file gives a float32 model, whose float64 file gives the same model."""
    model = small(prefix_positions=layout != "big_vision", activation="gelu_tanh")
    path = save_weights(model, target(tmp_path, layout), layout, dtype="float64")
    rng = np.random.default_rng(0)
    fine = {key: array + 1e-12 * rng.standard_normal(array.shape) for key, array in read_arrays(path).items()}
    assert {array.dtype.name for array in fine.values()} == {"float64"}
    write_arrays(fine, path, "float64", digest_in(path))
    source = target(tmp_path, layout)
    rounded = save_weights(
        from_pretrained(source), target(tmp_path, layout, "rounded"), layout, dtype="float64"
    )
    for key, array in read_arrays(rounded).items():
        np.testing.assert_array_equal(array, fine[key].astype("float32").astype("float64"), strict=True)
    assert_same_weights(from_pretrained(target(tmp_path, layout, "rounded")), from_pretrained(source))


@pytest.mark.tensorflow_only("JAX has no float64 unless the whole program does")
def test_a_float64_model_holds_a_float64_file(model, tmp_path):
    path = save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="float64")
    fine = {key: array + 1e-12 for key, array in read_arrays(path).items()}
    write_arrays(fine, path, "float64", digest_in(path))
    double = from_pretrained(path, dtype="float64")
    again = read_arrays(save_weights(double, tmp_path / "again.npz", "vit_jax", dtype="float64"))
    for key, array in again.items():
        np.testing.assert_array_equal(array, fine[key], strict=True)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_a_model_of_fewer_digits_is_written_too(dtype, tmp_path):
    model = small(dtype=dtype)
    for stored_as in ("float32", "bfloat16"):
        path = save_weights(model, tmp_path / f"{stored_as}.npz", "vit_jax", dtype=stored_as)
        again = from_pretrained(path, dtype=dtype)
        for name, array in arrays(again).items():
            expected = arrays(model)[name].astype("float32" if stored_as == "float32" else FLOATS["bfloat16"])
            np.testing.assert_array_equal(array.astype("float32"), expected.astype("float32"))


@pytest.mark.parametrize("name", ["bigvision_gap_sincos", "bigvision_map"])
def test_blocks_may_be_stacked(loaded, name, tmp_path):
    model = loaded[name]
    path = save_weights(model, tmp_path / "scan.npz", "big_vision", scan=True)
    written = read_arrays(path)
    assert not [key for key in written if "encoderblock_" in key]
    assert written["params/Transformer/encoderblock/LayerNorm_0/scale"].shape == (2, 24)
    again = from_pretrained(path)
    assert told(again) == told(model)
    assert_same_weights(again, model)


# From one layout to another ------------------------------------------------------------------------

CHAIN = ("vit_jax", "timm", "huggingface", "big_vision")
CONVERTED = {"token": "vit_jax", "timm_token": "timm", "hf_vit": "huggingface"}


@pytest.mark.parametrize("name", [*CONVERTED])
def test_conversions_between_layouts_chain(loaded, name, tmp_path):
    original = model = loaded[name]
    start = CHAIN.index(CONVERTED[name])
    for step in range(1, 1 + len(CHAIN)):
        layout = CHAIN[(start + step) % len(CHAIN)]
        save_weights(model, target(tmp_path, layout, f"step{step}"), layout)
        model = from_pretrained(target(tmp_path, layout, f"step{step}"))
        assert told(model) == {**told(original), "prefix_positions": model.prefix_positions}
        assert model.prefix_positions == (layout != "big_vision")
        assert_computes_the_same(model, original, 1e-6)
    assert layout == CONVERTED[name]


def test_positions_of_the_class_token_are_folded_into_it(model, tmp_path):
    """big_vision has no row for it: the sum of both is what the model reads."""
    table, token = (arrays(model)[n] for n in ("position_embedding/table", "class_token/token"))
    written = read_arrays(save_weights(model, tmp_path / "folded.npz", "big_vision"))
    np.testing.assert_array_equal(written["params/pos_embedding"], table[:, 1:])
    np.testing.assert_array_equal(written["params/cls"], token + table[:, :1])
    back = save_weights(from_pretrained(tmp_path / "folded.npz"), tmp_path / "back.npz", "vit_jax")
    unfolded = read_arrays(back)["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(unfolded[:, 1:], table[:, 1:])
    assert not unfolded[:, 0].any()


def test_rows_of_several_tokens_are_made_in_their_order(tmp_path):
    model = small(distillation=True, prefix_positions=False)
    written = read_arrays(save_weights(model, tmp_path / "deit", "huggingface"))
    table = written["deit.embeddings.position_embeddings"]
    assert table.shape == (1, 2 + 4, 12)
    assert not table[:, :2].any()
    np.testing.assert_array_equal(table[:, 2:], arrays(model)["position_embedding/table"])


def test_rows_of_several_tokens_are_folded_each_into_its_own():
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


def test_the_model_is_left_as_it_was(model, tmp_path):
    before, config = arrays(model), model.get_config()
    for layout in LAYOUTS:
        save_weights(model, target(tmp_path, layout, layout), layout)
    assert model.get_config() == config
    for name, array in arrays(model).items():
        np.testing.assert_array_equal(array, before[name])


# Every layout × every kind of model ----------------------------------------------------------------

MANY = settings().max_examples * (4 if "FULL" in os.environ else 2)
FREE = {"image_size": (None, None)}
CROP = {"resize": "crop", "crop_fraction": 0.875, "interpolation": "bicubic", "antialias": True}


@st.composite
def variations(draw):
    """(layout, constructor options of a small model that contradict nothing)."""

    def one_of(*values):
        return draw(st.sampled_from(values))

    c = {
        "num_layers": one_of(1, 1, 1, 2, None),
        "num_classes": one_of(5, 5, None),
        "representation_size": one_of(None, None, None, 12, 7),
        "resnet": one_of(None, None, None, (), (1,)),
        "resnet_form": one_of("vit_jax", "timm"),
        "in_channels": one_of(3, 3, 1, 4),
        "activation": one_of("gelu_tanh", "gelu_erf", "quick_gelu"),
        "norm_epsilon": one_of(1e-6, 1e-5, 1e-12),
        "dropout_rate": one_of(0.0, 0.25),
        "norm_after_pooling": one_of(False, False, True),
    }
    if c["num_layers"] is None:
        c |= {**NO_TRANSFORMER, "pooling": one_of("gap", None)}
    else:
        c |= {
            "pooling": one_of("token", "token", "gap", "map", None),
            "qkv_bias": one_of(True, True, False),
            "num_registers": one_of(0, 0, 1, 3),
            "distillation": one_of(False, False, True),
            "layer_scale": one_of(None, None, 1e-5, 0.1),
            "position_embedding": one_of("learned", "learned", "learned", "sincos2d", "none"),
            "prefix_positions": one_of(True, False),
            "pre_norm": one_of(False, False, True),
        }
        c["class_token"] = True if c["pooling"] == "token" else one_of(False, True)
    if c.get("distillation"):
        c |= {
            "pooling": "token",
            "class_token": True,
            "representation_size": None,
            "norm_after_pooling": False,
        }
    size = one_of(*((8, (16, 24)) if c["resnet"] is None else (32, (32, 64))), (None, None))
    c |= {"patch_size": one_of(4, (4, 8)), "image_size": size, "resnet_width": 32}
    if size == (None, None):
        c["position_grid"] = one_of((2, 3), (3, 3), None)
    if c["num_classes"] and one_of(False, True):
        c["class_names"] = ("tabby", "tiger", "lynx", "lion", "ocelot")
    if one_of(False, True):
        mean = (0.4, 0.5, 0.6, 0.7)[: c["in_channels"]]
        made_for = {"image_size": None if size == (None, None) else size, "mean": mean, "std": mean}
        c["preprocessing"] = {**(CROP if one_of(False, True) else {}), **made_for}
    return one_of(*LAYOUTS), c


ALLOWED = {  # what an option that stands in the way is changed to; every layout has a place for it
    "class_token": True,
    "pooling": "token",
    "position_embedding": "learned",
    "qkv_bias": True,
    "num_registers": 0,
    "distillation": False,
    "layer_scale": None,
    "pre_norm": False,
    "norm_after_pooling": False,
    "representation_size": None,
    "resnet": None,
    "patch_size": (4, 4),
    "num_layers": 1,
}


def resolved(options):
    """The configuration of a small model, without making it."""
    return vars(ViTConfig(**{**SMALL, **options}))


def changed(options, reason):
    """The options with the one that a reason for refusal names changed to what every layout has."""
    name = re.match(r"(\w+)(?:=| with)", reason)[1]
    value = ALLOWED[name]
    if name == "class_token":
        value = options["pooling"] == "token"
    more = {"num_layers": {"mlp_dim": 20, "num_heads": 3}, "pooling": {"class_token": True}}.get(name, {})
    return {**options, name: value, **more}


def without_refusals(layout, options):
    """The options with every one changed that the layout has no place for."""
    for _ in range(len(ALLOWED)):
        config = {**options, **{name: resolved(options)[name] for name in ("class_token", "patch_size")}}
        reasons = cannot_express(layout, resolved(config))
        if not reasons:
            return config
        # The Transformer first: without one there is no pooling by token.
        options = changed(config, min(reasons, key=lambda reason: not reason.startswith("num_layers")))
    raise AssertionError(f"{layout} refuses {options}: {reasons}")


def refused(layout, config):
    """Why a layout has no place for a model; what a reason names must really stand in the way."""
    reasons = cannot_express(layout, config)
    for reason in reasons:
        assert reason not in cannot_express(layout, changed(config, reason)), f"{reason}: not so"
    return reasons


def assert_refused(model, path, layout, reasons):
    with pytest.raises(ValueError) as caught:
        save_weights(model, path, layout)
    message = str(caught.value)
    assert message.startswith(f"the layout {layout!r} cannot express this model: ")
    assert all(reason in message for reason in reasons)
    assert "\n" not in message
    assert not path.exists()


def assert_round_trip(model, folder, layout, **options):
    """Saved and loaded it computes the same and has the same configuration."""
    path = target(folder, layout)
    save_weights(model, path, layout, **options)
    config, free = told(model), model.image_size == (None, None)
    again = from_pretrained(path, **(FREE if free else {}))
    expected = dict(config)
    if LAYOUTS[layout].prefix_positions is not None:  # the layout has one way only
        expected["prefix_positions"] = again.prefix_positions
        if model.num_prefix_tokens and model.position_embedding == "learned":
            assert again.prefix_positions == LAYOUTS[layout].prefix_positions
    assert told(again) == expected
    if again.prefix_positions == model.prefix_positions:
        assert_same_weights(again, model)
    folded = again.prefix_positions != model.prefix_positions
    assert_computes_the_same(again, model, 1e-6 if folded else 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=MANY)
@given(made=variations(), scan=st.booleans(), without=st.booleans())
def test_a_layout_holds_a_model_or_says_what_it_has_no_place_for(tmp_path_factory, made, scan, without):
    layout, options = made
    folder = tmp_path_factory.mktemp("any")
    model = small(**(without_refusals(layout, options) if without else options))
    if reasons := refused(layout, model.get_config()):
        assert_refused(model, target(folder, layout), layout, reasons)
    else:
        assert_round_trip(model, folder, layout, **({"scan": scan} if layout == "big_vision" else {}))


REFUSED = [
    ("vit_jax", {"pooling": "map"}, "pooling='map' (supported: 'token' or 'gap' or None)"),
    ("vit_jax", {"pooling": "gap", "class_token": True}, "class_token=True with pooling='gap'"),
    ("vit_jax", {"position_embedding": "none"}, "position_embedding='none' (supported: 'learned')"),
    ("vit_jax", {"position_embedding": "sincos2d"}, "position_embedding='sincos2d' (supported: 'learned')"),
    ("vit_jax", {"qkv_bias": False}, "qkv_bias=False (supported: True)"),
    ("vit_jax", {"num_registers": 2}, "num_registers=2 (supported: 0)"),
    ("vit_jax", {"distillation": True}, "distillation=True (supported: False)"),
    ("vit_jax", {"layer_scale": 0.1}, "layer_scale=0.1 (supported: None)"),
    ("vit_jax", {"pre_norm": True}, "pre_norm=True (supported: False)"),
    ("vit_jax", {"norm_after_pooling": True}, "norm_after_pooling=True (supported: False)"),
    ("vit_jax", NO_TRANSFORMER, "num_layers=None"),
    ("big_vision", {"pooling": "map", "class_token": True}, "class_token=True with pooling='map'"),
    (
        "big_vision",
        {"position_embedding": "none"},
        "position_embedding='none' (supported: 'learned' or 'sincos2d')",
    ),
    ("big_vision", {"qkv_bias": False}, "qkv_bias=False (supported: True)"),
    ("big_vision", {"num_registers": 1}, "num_registers=1 (supported: 0)"),
    ("big_vision", {"distillation": True}, "distillation=True (supported: False)"),
    ("big_vision", {"layer_scale": 1e-5}, "layer_scale=1e-05 (supported: None)"),
    ("big_vision", {"pre_norm": True}, "pre_norm=True (supported: False)"),
    ("big_vision", {"norm_after_pooling": True}, "norm_after_pooling=True (supported: False)"),
    ("big_vision", {**HYBRID, "resnet": (1,)}, "resnet=(1,) (supported: None)"),
    ("big_vision", NO_TRANSFORMER, "num_layers=None"),
    ("timm", {"position_embedding": "none"}, "position_embedding='none' (supported: 'learned')"),
    ("timm", {"position_embedding": "sincos2d"}, "position_embedding='sincos2d' (supported: 'learned')"),
    ("timm", {"representation_size": 7}, "representation_size=7 (supported: None)"),
    ("timm", {**HYBRID, **NO_TRANSFORMER, "resnet": ()}, "num_layers=None"),
    ("huggingface", {"pooling": "gap"}, "pooling='gap' (supported: 'token')"),
    ("huggingface", {"pooling": "map"}, "pooling='map' (supported: 'token')"),
    ("huggingface", {"pooling": None, "class_token": True}, "pooling=None (supported: 'token')"),
    ("huggingface", {"position_embedding": "none"}, "position_embedding='none' (supported: 'learned')"),
    (
        "huggingface",
        {"position_embedding": "sincos2d"},
        "position_embedding='sincos2d' (supported: 'learned')",
    ),
    ("huggingface", {**HYBRID, "resnet": ()}, "resnet=() (supported: None)"),
    ("huggingface", {"num_registers": 2}, "num_registers=2 (supported: 0 or 1)"),
    ("huggingface", {"num_registers": 1, "distillation": True}, "num_registers with distillation"),
    ("huggingface", {"layer_scale": 0.1}, "layer_scale=0.1 (supported: None)"),
    ("huggingface", {"pre_norm": True}, "pre_norm=True (supported: False)"),
    ("huggingface", {"norm_after_pooling": True}, "norm_after_pooling=True (supported: False)"),
    ("huggingface", {"patch_size": (8, 4)}, "patch_size=(8, 4) (supported: squares)"),
    (
        "huggingface",
        {"representation_size": 7, "num_classes": None},
        "representation_size=7 (supported: hidden_size)",
    ),
    ("huggingface", {"representation_size": 12}, "representation_size with a head"),
    ("huggingface", {"distillation": True, "num_classes": None}, "distillation without a head"),
    ("huggingface", NO_TRANSFORMER, "num_layers=None"),
]


@pytest.mark.parametrize("layout, options, reason", REFUSED, ids=[f"{r[0]}: {r[2]}" for r in REFUSED])
def test_what_a_layout_has_no_place_for_is_refused_by_name(layout, options, reason, tmp_path):
    model = one_block(**options)
    assert reason in refused(layout, model.get_config())
    assert_refused(model, target(tmp_path, layout), layout, [reason])
    if "pooling" not in options and len(options) == 1:
        assert cannot_express(layout, model.get_config()) == [reason]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_option_that_a_layout_does_not_name_must_have_its_default(layout, model, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "rotary", False)
    config = model.get_config()
    assert cannot_express(layout, {**config, "rotary": False}) == []
    assert cannot_express(layout, {**config, "rotary": True}) == ["rotary=True (supported: False)"]
    assert cannot_express(layout, {**config, "unknown": True}) == ["unknown=True (supported: none)"]
    supported = {**LAYOUTS[layout].supported, "rotary": (True, False)}
    monkeypatch.setattr(type(LAYOUTS[layout]), "supported", supported)
    assert cannot_express(layout, {**config, "rotary": True}) == []


def test_several_reasons_stand_in_one_line(tmp_path):
    model = small(layer_scale=0.1, num_registers=4, pre_norm=True)
    wanted = [
        "num_registers=4 (supported: 0 or 1)",
        "layer_scale=0.1 (supported: None)",
        "pre_norm=True (supported: False)",
    ]
    assert cannot_express("huggingface", model.get_config()) == wanted
    assert_refused(model, tmp_path / "model", "huggingface", wanted)


@pytest.mark.parametrize(
    "layout, options",
    [
        ("vit_jax", NO_TRANSFORMER),
        ("vit_jax", {**NO_TRANSFORMER, "pooling": None}),
        ("vit_jax", {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)}),
        ("vit_jax", {**HYBRID, **NO_TRANSFORMER, "resnet": (1,), "pooling": None}),
        ("vit_jax", {**HYBRID, "resnet": (1,), "resnet_form": "timm"}),
        ("vit_jax", {"pooling": None, "class_token": True}),
        ("vit_jax", {"image_size": (16, 40), "position_grid": (3, 3)}),
        ("timm", {"layer_scale": 0.1}),
        ("timm", {"pooling": None, "class_token": True}),
        ("timm", {"pooling": "gap", "class_token": True, "norm_after_pooling": True}),
        ("timm", {"distillation": True, "num_registers": 2}),
        ("timm", {"distillation": True, "num_classes": None}),
        ("timm", {"pooling": "map", "qkv_bias": False, "class_token": True}),
        ("timm", {"pooling": "map", "pre_norm": True}),
        ("huggingface", {"distillation": True, "num_classes": None}),
        ("huggingface", {"num_registers": 1, "num_classes": None}),
        ("huggingface", {"representation_size": 12, "num_classes": None}),
        ("huggingface", {"distillation": True, "qkv_bias": False, "in_channels": 1}),
        ("big_vision", {"pooling": None, "class_token": True}),
        ("big_vision", {"position_embedding": "sincos2d", "prefix_positions": True}),
    ],
    ids=str,
)
def test_a_rare_model_is_held_or_refused(layout, options, tmp_path):
    model = one_block(**options)
    if reasons := refused(layout, model.get_config()):
        assert_refused(model, target(tmp_path, layout), layout, reasons)
    else:
        assert_round_trip(model, tmp_path, layout)


# What cannot be written ----------------------------------------------------------------------------


def contents(folder):
    """Every file under a folder with what is in it, and every folder."""
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refuses(message, model, path, *arguments, **options):
    """It raises a ValueError of one line, and writes nothing."""
    folder = pathlib.Path(path).parent
    before = contents(folder)
    with pytest.raises(ValueError, match=message) as caught:
        save_weights(model, path, *arguments, **options)
    assert "\n" not in str(caught.value)
    assert contents(folder) == before


def test_an_unknown_layout_is_refused(model, tmp_path):
    known = ", ".join(map(repr, LAYOUTS))
    refuses(f"layout must be one of {known}; got 'torch'", model, tmp_path / "model.npz", "torch")


@pytest.mark.parametrize(
    "layout, name",
    [
        *(("vit_jax", n) for n in ("model.safetensors", "model", "model.h5", "model.npz.json", "model.NPY")),
        *(("big_vision", n) for n in ("model.safetensors", "model")),
        *(("timm", n) for n in ("model.npz", "model", "model.pth", "model.bin")),
        *(("huggingface", n) for n in ("model.safetensors", "model.npz", "pytorch_model.bin")),
    ],
)
def test_a_wrong_ending_is_refused(model, layout, name, tmp_path):
    expected = "folder" if layout == "huggingface" else f"{LAYOUTS[layout].suffix} file"
    refuses(
        f"expected a {expected} for the layout '{layout}'; got '.*{name}'", model, tmp_path / name, layout
    )


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_a_missing_folder_is_refused(model, layout, tmp_path):
    missing = tmp_path / "missing"
    refuses(f"there is no folder '{missing}' to write into", model, target(missing, layout), layout)
    (tmp_path / "file").write_text("not a folder")
    refuses("there is no folder '.*file' to write into", model, target(tmp_path / "file", layout), layout)


@pytest.mark.parametrize("layout", [*LAYOUTS])
@pytest.mark.parametrize("dtype", ["int8", None])
def test_an_unknown_type_is_refused(model, layout, dtype, tmp_path):
    message = f"dtype must be one of 'float16', 'bfloat16', 'float32', 'float64'; got {dtype!r}"
    refuses(message, model, target(tmp_path, layout), layout, dtype=dtype)


@pytest.mark.parametrize(
    "layout, options",
    [
        ("vit_jax", {"scan": True}),
        ("timm", {"scan": True}),
        ("huggingface", {"scan": True}),
        ("big_vision", {"stack": True}),
    ],
)
def test_an_option_that_a_layout_does_not_have_is_refused(model, layout, options, tmp_path):
    refuses([*options][0], model, target(tmp_path, layout), layout, **options)


def test_numbers_that_the_type_cannot_hold_are_refused_by_name(tmp_path):
    model = small()
    model.get_layer("head").bias.assign([0, 0, 1e5, 0, 0])
    refuses("head/bias.*float16", model, tmp_path / "model.npz", "vit_jax", dtype="float16")
    save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="bfloat16")


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_what_is_there_is_replaced_only_when_asked(layout, tmp_path):
    one, other, path = small(), small(activation="gelu_erf", num_classes=4), target(tmp_path, layout)
    save_weights(one, path, layout)
    written = contents(tmp_path)
    refuses(r"'.*saved.*' exists; .* overwrite=True", other, path, layout)
    save_weights(other, path, layout, overwrite=True)
    assert contents(tmp_path).keys() == written.keys()
    again = from_pretrained(path)
    assert (again.activation, again.num_classes) == ("gelu_erf", 4)
    save_weights(one, path, layout, overwrite=True)
    assert contents(tmp_path) == written


FILES = {
    "vit_jax": ["saved.npz", "saved.json"],
    "big_vision": ["saved.npz", "saved.json"],
    "timm": ["saved.safetensors", "saved.json"],
    "huggingface": [
        f"saved/{name}"
        for name in ("model.safetensors", "model.json", "config.json", "preprocessor_config.json")
    ],
}


@pytest.mark.parametrize(
    "layout, name", [(layout, name) for layout, names in FILES.items() for name in names]
)
def test_each_file_that_is_there_counts(model, layout, name, tmp_path):
    save_weights(model, target(tmp_path, layout), layout)
    assert {path.as_posix() for path in contents(tmp_path)} - {"saved"} == {*FILES[layout]}
    for other in FILES[layout]:
        if other != name:
            (tmp_path / other).unlink()
    refuses(f"'.*{name}' exists", model, target(tmp_path, layout), layout)


def test_other_files_in_a_folder_are_kept(model, tmp_path):
    folder = tmp_path / "model"
    (folder / "logs").mkdir(parents=True)
    (folder / "README.md").write_text("mine")
    (folder / "logs" / "run.txt").write_text("mine too")
    save_weights(model, folder, "huggingface")
    save_weights(model, folder, "huggingface", overwrite=True)
    assert (folder / "README.md").read_text() == "mine"
    assert (folder / "logs" / "run.txt").read_text() == "mine too"
    assert {p.name for p in folder.iterdir()} == {"README.md", "logs", *(p[6:] for p in FILES["huggingface"])}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_where_the_folder_is_to_be_is_refused(model, overwrite, tmp_path):
    (tmp_path / "model").write_text("mine")
    refuses("model", model, tmp_path / "model", "huggingface", overwrite=overwrite)


def test_a_path_may_be_a_string_from_home(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save_weights(model, "~/model.npz", "vit_jax") == tmp_path / "model.npz"
    assert (
        save_weights(model, str(tmp_path / "folder"), "huggingface") == tmp_path / "folder/model.safetensors"
    )
    assert (tmp_path / "model.npz").is_file() and (tmp_path / "folder/model.safetensors").is_file()


def fails(*arguments, **options):
    raise OSError(28, "No space left on device")


def fails_midway(*arguments, **options):
    """Writes some of the file that it was told to write, then fails."""
    for argument in arguments:
        if isinstance(argument, (str, os.PathLike)):
            pathlib.Path(argument).write_bytes(b"half")
        elif hasattr(argument, "write"):
            argument.write(b"half")
    fails()


BREAKS = {
    "arrays": [(np.lib.format, "write_array"), (safetensors.numpy, "save_file")],
    "renaming": [(os, "replace")],
    "texts": [(pathlib.Path, "write_text")],
}


@pytest.mark.parametrize("layout", [*LAYOUTS])
@pytest.mark.parametrize("broken", [*BREAKS])
@pytest.mark.parametrize("there", [False, True])
def test_a_failure_midway_leaves_what_was_there(model, layout, broken, there, tmp_path, monkeypatch):
    """Nothing new under a final name, and the old files belong together."""
    path = target(tmp_path, layout)
    if there:
        save_weights(small(activation="gelu_erf"), path, layout)
    before = contents(tmp_path)
    for holder, name in BREAKS[broken]:
        monkeypatch.setattr(holder, name, fails_midway if broken == "arrays" else fails)
    with pytest.raises((OSError, ValueError)):
        save_weights(model, path, layout, overwrite=there)
    assert {p: c for p, c in contents(tmp_path).items() if c is not None} == {
        p: c for p, c in before.items() if c is not None
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_a_folder_that_must_not_be_written_is_left_alone(model, layout, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises((OSError, ValueError), match="closed|denied"):
        save_weights(model, target(folder, layout), layout)
    assert contents(folder) == {}


# What stands beside the arrays ---------------------------------------------------------------------


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_what_the_arrays_do_not_tell_stands_beside_them(layout, tmp_path):
    model = small(class_names=[*"abcde"], activation="quick_gelu", norm_epsilon=1e-3, dropout_rate=0.1)
    path = save_weights(model, target(tmp_path, layout), layout)
    found = json.loads(path.with_suffix(".json").read_text())
    assert (found["format"], found["layout"]) == ("keras_vit checkpoint 1", layout)
    again = from_pretrained(target(tmp_path, layout))
    assert_computes_the_same(again, model, 1e-6)
    assert again.class_names == tuple("abcde")
    path.with_suffix(".json").unlink()  # then only what the layout implies
    if layout != "huggingface":
        assert from_pretrained(target(tmp_path, layout), num_heads=3).activation != "quick_gelu"


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_old_weights_are_refused_beside_the_configuration_of_an_interrupted_save(
    layout, tmp_path, monkeypatch
):
    path = save_weights(small(), target(tmp_path, layout), layout)
    replace = os.replace

    def interrupted(source, final):
        if final == path:
            raise KeyboardInterrupt
        replace(source, final)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", interrupted)
        save_weights(small(activation="gelu_erf"), target(tmp_path, layout), layout, overwrite=True)
    refusal = f"{path.stem}.json was saved with other weights than {path.name}, .*; save the model again, or"
    with pytest.raises(ValueError, match=refusal):
        from_pretrained(target(tmp_path, layout))
    save_weights(small(activation="gelu_erf"), target(tmp_path, layout), layout, overwrite=True)
    assert from_pretrained(target(tmp_path, layout)).activation == "gelu_erf"


@pytest.mark.parametrize("layout", ["vit_jax", "timm"])
def test_a_configuration_may_be_edited_removed_or_of_an_earlier_version(layout, tmp_path):
    path = save_weights(small(), target(tmp_path, layout), layout)
    sidecar = path.with_suffix(".json")
    written = json.loads(sidecar.read_text())
    written["arguments"]["activation"] = "quick_gelu"
    sidecar.write_text(json.dumps(written))
    assert from_pretrained(path).activation == "quick_gelu"
    del written["digest"]
    sidecar.write_text(json.dumps(written))
    assert from_pretrained(path).activation == "quick_gelu"
    sidecar.unlink()
    assert from_pretrained(path, num_heads=3).activation != "quick_gelu"


def test_another_model_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="expected a VisionTransformer; got a Sequential"):
        save_weights(model, tmp_path / "model.npz", "vit_jax")
    assert not any(tmp_path.iterdir())
