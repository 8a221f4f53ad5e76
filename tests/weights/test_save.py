import os
import pathlib
import re
from itertools import product

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, assert_same_arrays, numpy
from reference.goldens import GOLDENS, stored
from reference.small import HYBRID, NO_TRANSFORMER, images_for, one_block

from keras_vit import Preprocessing, from_pretrained, save_weights
from keras_vit.models.vit.schema import DEFAULTS
from keras_vit.weights.array_files import digest_in, read_arrays, write_arrays
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.huggingface_type_table import TYPES

# Keys in published files, and their Linen names, which are written.
RENAMED = (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0"))
FLOATS = {**{name: name for name in ("float16", "float32", "float64")}, "bfloat16": ml_dtypes.bfloat16}
NOT_SAVED = ("name", "trainable", "dtype", "frozen")
CONFIGS = ("config.json", "preprocessor_config.json")
ONE_TOWER = [name for name, layout in LAYOUTS.items() if "classifier" in layout.forms]
every_layout = pytest.mark.parametrize("layout", ONE_TOWER)


def target(folder, layout, name="saved"):
    """Where a layout's checkpoint is saved, and loaded from."""
    return folder / f"{name}{'' if LAYOUTS[layout].in_folder else LAYOUTS[layout].suffix}"


def config_of(model):
    return {name: value for name, value in model.get_config().items() if name not in NOT_SAVED}


def assert_same_weights(one, other):
    assert_same_arrays(arrays(one), arrays(other))


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
    return one_block()


# Load → save → load --------------------------------------------------------------------------------

OTHER_TYPES = [("token", "float64"), ("timm_avg", "float16"), ("hf_vit", "bfloat16")]


@pytest.mark.parametrize("name, dtype", some([*product(GOLDENS, ["float32"]), *OTHER_TYPES], 2))
def test_a_checkpoint_is_saved_as_it_was(name, dtype, golden, tmp_path):
    """Also in another type: a model computes in float32, which can represent every float16 and bfloat16."""
    _, layout, given = GOLDENS[name]
    file = {key: array.astype(FLOATS[dtype]) for key, array in stored(golden, name).items()}
    write_arrays(file, tmp_path / f"source{LAYOUTS[layout].suffix}", dtype)
    if layout == "huggingface":
        given = {"num_heads": 3}
    model = from_pretrained(tmp_path / f"source{LAYOUTS[layout].suffix}", **given)
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
        again = from_pretrained(path, dtype=dtype)
        again = save_weights(again, tmp_path / f"{dtype}.npz", "vit_jax", dtype="float64")
        for key, array in read_arrays(again).items():
            np.testing.assert_array_equal(array, fine[key].astype(dtype).astype("float64"), strict=True)


def test_a_model_of_lower_precision_is_saved(tmp_path):
    model = one_block(dtype="bfloat16")
    path = save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="bfloat16")
    for name, array in arrays(from_pretrained(path, dtype="bfloat16")).items():
        expected = arrays(model)[name].astype(FLOATS["bfloat16"])
        np.testing.assert_array_equal(array.astype("float32"), expected.astype("float32"))


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


# Every layout × every kind of model ----------------------------------------------------------------

CHANGES = {  # values of options, of which each layout can express some
    "num_layers": (2,),
    "num_classes": (None,),
    "representation_size": (12, 7),
    "in_channels": (1, 4),
    "activation": ("gelu_erf", "quick_gelu"),
    "norm_epsilon": (1e-5, 1e-12),
    "norm_after_pooling": (True,),
    "pooling": ("gap", "map", None),
    "class_token": (True, False),
    "qkv_bias": (False,),
    "num_registers": (1, 3),
    "distillation": (True,),
    "layer_scale": (1e-5, 0.1),
    "position_embedding": ("sincos2d", "none"),
    "prefix_positions": (False,),
    "position_grid": ((3, 2),),
    "pre_norm": (True,),
    "image_size": ((16, 24), (None, None)),
    "patch_size": ((4, 8),),
    "class_names": (("tabby", "tiger", "lynx", "lion", "ocelot"),),
    "task": ("multi_label",),
    "split_seed": (3,),
    "dropout_rate": (0.1,),
    "stochastic_depth_rate": (0.3,),
    "rotary": ({"kind": "axial"}, {"kind": "mixed"}),
    "relative_positions": (True,),
    "gated_mlp": (True,),
    "norm": ("rms",),
    "key_bias": (False,),
    "scale_mlp": (False,),
    "qk_norm": (True,),
    "mlp_sub_norm": (True,),
    "post_norm": (True,),
    "final_norm": (False,),
    "pool_prefix": (False,),
    "resnet": (HYBRID | {"resnet": ()}, HYBRID | {"resnet": (1,), "resnet_form": "timm"}),
}


@st.composite
def variations(draw):
    """(layout, options of a small model) with some changes; often only such that the layout supports."""
    layout = draw(st.sampled_from(ONE_TOWER))
    names = draw(st.lists(st.sampled_from([*CHANGES]), max_size=4, unique=True))
    options = {name: draw(st.sampled_from(CHANGES[name])) for name in names}
    if draw(st.booleans()):
        of = draw(st.sampled_from([*TYPES.values()])) if layout == "huggingface" else LAYOUTS[layout]
        options = {name: v for name, v in options.items() if v in of.supported.get(name, ())}
    return layout, options | (options.pop("resnet", None) or {})


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=variations())
def test_a_layout_holds_a_model_or_says_what_it_cannot_express(tmp_path_factory, drawn):
    layout, options = drawn
    # A norm before the blocks makes it CLIP's folder, which moves the last norm behind the pooling and has a
    # head without a bias: test_huggingface.py compares those.
    assume(layout != "huggingface" or not options.get("pre_norm"))
    try:
        model = one_block(**options)
    except ValueError:  # the options contradict each other
        assume(False)
    assert_refused_or_round_trip(model, tmp_path_factory.mktemp("any"), layout)


def assert_refused_or_round_trip(model, folder, layout):
    path = target(folder, layout)
    if reasons := LAYOUTS[layout].unsupported(model.get_config()):
        with pytest.raises(ValueError, match=f"the layout {layout!r} cannot express this model: ") as caught:
            save_weights(model, path, layout)
        assert all(reason in str(caught.value) for reason in reasons) and "\n" not in str(caught.value)
        assert not [*folder.iterdir()]
        return
    save_weights(model, path, layout)
    again = from_pretrained(path, **({} if model.image_size[0] else {"image_size": (None, None)}))
    assert config_of(again) | {"prefix_positions": None} == config_of(model) | {"prefix_positions": None}
    if again.prefix_positions == model.prefix_positions:
        assert_same_weights(again, model)
    else:
        assert_same_outputs(again, model)


@pytest.mark.parametrize(
    "name, stored_type", [("bfloat16", ml_dtypes.bfloat16), ("mixed_bfloat16", "float32")]
)
def test_a_dtype_policy_gives_the_type_of_its_variables(name, stored_type, tmp_path):
    path = save_weights(one_block(), tmp_path / "m.safetensors", "timm", dtype=keras.DTypePolicy(name))
    assert {array.dtype for array in read_arrays(path).values()} == {np.dtype(stored_type)}


@pytest.mark.parametrize(
    "file, size", some([("model.npz", 16), ("model.keras", (24, 40))], 2)
)  # 16 is the table's
def test_a_model_for_any_size_keeps_the_size_to_which_it_resizes_images(file, size, tmp_path):
    dynamic = {"image_size": (None, None), "position_grid": (2, 2)}
    model = one_block(**dynamic, preprocessing=Preprocessing(size, "crop", 0.5))
    if file == "model.keras":
        model.save(tmp_path / file)
    else:
        save_weights(model, tmp_path / file, "vit_jax")
    assert from_pretrained(tmp_path / file, image_size=(None, None)).preprocessing == model.preprocessing
    assert from_pretrained(tmp_path / file, image_size=32).preprocessing == Preprocessing(32, "crop", 0.5)


def test_a_model_for_any_size_of_a_stored_one_for_one_size_takes_images_of_their_own_size(tmp_path):
    save_weights(one_block(), tmp_path / "model.npz", "vit_jax")
    assert from_pretrained(tmp_path / "model.npz", image_size=(None, None)).preprocessing.image_size is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout, options",
    [
        ("vit_jax", {"image_size": (16, 40), "position_grid": (3, 3)}),
        ("timm", {"pooling": "gap", "class_token": True, "norm_after_pooling": True}),
        ("timm", {"distillation": True, "num_registers": 2, "prefix_positions": False}),
        ("timm", {"pooling": "map", "layer_scale": 0.1}),
        ("timm", {"pooling": "map", "norm": "rms"}),
        ("timm", {"qkv_bias": False, "key_bias": False, "scale_mlp": False}),
        ("huggingface", {"distillation": True, "qkv_bias": False, "in_channels": 1}),
        ("big_vision", {"position_embedding": "sincos2d"}),
    ],
    ids=str,
)
def test_a_layout_holds_a_rare_model(layout, options, tmp_path):
    model = one_block(**options)
    assert LAYOUTS[layout].unsupported(model.get_config()) == []
    assert_refused_or_round_trip(model, tmp_path, layout)


REFUSED = [  # one of each reason; `variations` draws the other options
    ("vit_jax", {"pooling": "map"}, "pooling='map' (supported: 'token' or 'gap' or None)"),
    ("vit_jax", {"pooling": "gap", "class_token": True}, "class_token=True with pooling='gap'"),
    ("vit_jax", NO_TRANSFORMER, "num_layers=None"),
    ("big_vision", {"pooling": "map", "class_token": True}, "class_token=True with pooling='map'"),
    ("timm", {"position_embedding": "none"}, "position_embedding='none' without rotary"),
    ("timm", {**NO_TRANSFORMER, "resnet": ()}, "num_layers=None"),
    ("timm", {"pooling": "map", "qkv_bias": False}, "qkv_bias=False with pooling='map'"),
    ("huggingface", {"pooling": "gap"}, "as 'vit': pooling='gap' (supported: 'token')"),
    ("huggingface", {"num_registers": 2}, "as 'dinov2_with_registers': layer_scale=None"),
    ("huggingface", {"num_registers": 1, "distillation": True}, "num_registers with distillation"),
    ("huggingface", {"layer_scale": 0.1}, "pooling='token' with a head (supported: 'token_gap')"),
    ("huggingface", {"patch_size": (8, 4)}, "patch_size=(8, 4) (supported: squares)"),
    ("huggingface", {"representation_size": 7, "num_classes": None}, "(supported: hidden_size)"),
    ("huggingface", {"representation_size": 12}, "representation_size with a head"),
    ("huggingface", {"distillation": True, "num_classes": None}, "distillation without a head"),
]


@by_table("layout, options, reason", REFUSED, ids=[f"{r[0]}: {r[2]}" for r in REFUSED])
def test_what_a_layout_cannot_express_is_named(layout, options, reason, model):
    config = {**model.get_config(), **options}
    assert any(reason in found for found in LAYOUTS[layout].unsupported(config))


def test_a_model_for_any_size_must_resize_positions_as_transformers_does(tmp_path):
    """Its DINOv2 takes any size; other models only if asked to."""
    options = {"image_size": (None, None), "position_grid": (2, 2), "num_classes": None}
    save_weights(one_block(**options), tmp_path / "vit", "huggingface")
    options |= {"layer_scale": 0.1, "activation": "gelu_erf", "hidden_size": 12, "mlp_dim": 24}
    with pytest.raises(ValueError, match="position_interpolation='bilinear' at each call .*'bicubic'"):
        save_weights(one_block(**options), tmp_path / "dinov2", "huggingface")
    model = one_block(**options, position_interpolation="bicubic")
    assert save_weights(model, tmp_path / "dinov2", "huggingface").exists()


@every_layout
def test_an_option_that_a_layout_does_not_name_must_have_its_default(layout, model, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "invented", False)
    of, start = (TYPES["vit"], "as 'vit': ") if layout == "huggingface" else (LAYOUTS[layout], "")
    config = model.get_config()
    for name, value, supported in (("invented", True, "False"), ("unknown", True, "none")):
        reasons = LAYOUTS[layout].unsupported({**config, name: value})
        assert reasons == [f"{start}{name}={value} (supported: {supported})"]
    assert LAYOUTS[layout].unsupported({**config, "invented": False}) == []
    monkeypatch.setitem(of.supported, "invented", (True, False))
    assert LAYOUTS[layout].unsupported({**config, "invented": True}) == []


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


@by_table(
    "name, layout, options, message",
    [
        ("model.npz", "vit_jax", {"scan": True}, "'vit_jax' has the options none; got scan"),
        ("model.npz", "big_vision", {"stack": True}, "'big_vision' has the options scan; got stack"),
        ("model.NPZ", "vit_jax", {}, "expected a .npz file for the layout 'vit_jax'; got '.*model.NPZ'"),
        ("missing/model.npz", "vit_jax", {}, "there is no folder '.*missing' to write into"),
    ],
)
def test_a_wrong_argument_is_refused(name, layout, options, message, model, tmp_path):
    refuses(message, model, tmp_path / name, layout, **options)


def test_values_that_the_type_cannot_represent_are_refused_by_name(tmp_path):
    model = one_block()
    model.get_layer("head").bias.assign([0, 0, 1e5, 0, 0])
    refuses("head/bias.*float16", model, tmp_path / "model.npz", "vit_jax", dtype="float16")
    save_weights(model, tmp_path / "model.npz", "vit_jax", dtype="bfloat16")


FILES = {
    **dict.fromkeys(("vit_jax", "big_vision"), ["saved.npz", "saved.json"]),
    "timm": ["saved.safetensors", "saved.json"],
    "huggingface": [f"saved/{name}" for name in ("model.safetensors", "model.json", *CONFIGS)],
}


@every_layout
def test_existing_files_are_replaced_only_on_request(layout, model, tmp_path):
    other, path = one_block(num_classes=4), target(tmp_path, layout)
    save_weights(model, path, layout)
    (tmp_path / FILES[layout][0]).with_name("notes.txt").write_text("mine")
    written = contents(tmp_path)
    names = {pathlib.Path(name).name for name in FILES[layout]}
    assert {file.name for file in written} - {"saved", "notes.txt"} == names
    save_weights(other, path, layout, overwrite=True)
    assert from_pretrained(path).num_classes == 4
    assert contents(tmp_path).keys() == written.keys()
    for name in FILES[layout]:  # each of them counts
        for file in FILES[layout]:
            (tmp_path / file).unlink(missing_ok=True)
        (tmp_path / name).touch()
        refuses(f"'.*{name}' exists; .* overwrite=True", other, path, layout)


def test_a_name_that_another_file_has_with_another_suffix_is_refused(model, tmp_path):
    save_weights(model, tmp_path / "model.npz", "vit_jax")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="model.json.* exists; give another name or overwrite=True"):
        save_weights(model, tmp_path / "model.safetensors", "timm")
    with pytest.raises(ValueError, match="model.json would be read with '.*/model.npz', too"):
        save_weights(model, tmp_path / "model.safetensors", "timm", overwrite=True)
    (tmp_path / "model.json").unlink()
    with pytest.raises(ValueError, match="model.json would be read with '.*/model.npz', too"):
        save_weights(model, tmp_path / "model.safetensors", "timm")
    (tmp_path / "model.json").write_bytes(before["model.json"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_with_a_file_that_would_be_loaded_first_is_refused(model, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    model.save(path / "model.keras")
    message = f"'{path}/model.keras' would be loaded in place of model.safetensors; give another name"
    for overwrite in (False, True):
        refuses(message, model, path, "huggingface", overwrite=overwrite)


def test_a_path_may_be_a_string_relative_to_home(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save_weights(model, "~/model.npz", "vit_jax") == tmp_path / "model.npz"
    assert save_weights(model, "~/folder", "huggingface") == tmp_path / "folder/model.safetensors"


def fails(*arguments, **options):
    raise OSError(28, "No space left on device")


def fails_midway(arrays, path, *arguments):
    pathlib.Path(path).write_bytes(b"half")
    fails()


@pytest.mark.parametrize("layout", ["vit_jax", "huggingface"])
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("broken", ["arrays", "renaming"])
def test_a_failure_leaves_the_files_as_they_were(layout, existing, broken, model, tmp_path, monkeypatch):
    path = target(tmp_path, layout)
    if existing:
        save_weights(model, path, layout)
    before = contents(tmp_path)
    if broken == "arrays":
        monkeypatch.setattr(np.lib.format, "write_array", fails)
        monkeypatch.setattr(safetensors.numpy, "save_file", fails_midway)
    else:
        monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        save_weights(model, path, layout, overwrite=existing)
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("layout", ONE_TOWER)
def test_an_interrupted_save_is_refused(layout, model, tmp_path, monkeypatch):
    path = save_weights(model, target(tmp_path, layout), layout)
    replace, other = os.replace, one_block(activation="gelu_erf")

    def interrupted(source, final):
        if pathlib.Path(final) == path:
            raise KeyboardInterrupt
        replace(source, final)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", interrupted)
        save_weights(other, target(tmp_path, layout), layout, overwrite=True)
    refusal = f"{path.stem}.json was saved with other weights than {path.name}; save the model again, or"
    with pytest.raises(ValueError, match=refusal):
        from_pretrained(target(tmp_path, layout))
    save_weights(other, target(tmp_path, layout), layout, overwrite=True)
    assert from_pretrained(target(tmp_path, layout)).activation == "gelu_erf"
