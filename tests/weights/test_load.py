import keras
import numpy as np
import pytest
from made import checkpoints
from made.sampling import some_on_jax
from made.tables import by_table
from reference.comparing import assert_close, numpy
from reference.goldens import GOLDENS
from reference.small import images_for

from keras_vit import from_pretrained

OFFICIAL = [name for name, (_, layout, _) in GOLDENS.items() if layout == "vit_jax"]
RESIZED = [("token", 48, False), ("token_rep", 64, True), ("gap", 48, True), ("hybrid", 96, False)]
TABLE = "Transformer/posembed_input/pos_embedding"


@pytest.fixture
def stored():
    """The arrays of golden/token.npz by the file's keys."""
    return {key: array.copy() for key, array in checkpoints.base("token").arrays.items()}


@pytest.fixture
def write(tmp_path):
    return lambda arrays: checkpoints.write(arrays, tmp_path / "model.npz")


# Golden outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some_on_jax(GOLDENS, 4))
def test_a_checkpoint_computes_what_its_authors_code_computes(golden, name):
    file, _, options = GOLDENS[name]
    model = from_pretrained(golden / file, **options)
    stages = model.feature_extractor(["tokens", "representation", "logits"])
    with np.load(golden / f"{name}.expected.npz") as expected:
        compute = stages.predict_on_batch if keras.backend.backend() == "jax" else stages
        computed = compute(expected["image"])
        compared = {"tokens": "tokens", "pre_logits": "representation", "logits": "logits"}.items()
        compared = [(theirs, ours) for theirs, ours in compared if theirs in expected]
        assert ("logits", "logits") in compared and (len(compared) == 3 or name not in OFFICIAL)
        for theirs, ours in compared:
            assert_close(computed[ours], expected[theirs])


def test_vit5_computes_what_its_authors_code_computes(golden):
    """Made with github.com/wangf3014/ViT-5, commit b7b0796; the tokens are in our order, registers first."""
    rotary = {"kind": "axial", "rotate_registers": True}
    with pytest.raises(ValueError, match="blocks.0.gamma_1 also occurs in models with rotary positions"):
        from_pretrained(golden / "vit5.safetensors", num_heads=3)
    model = from_pretrained(golden / "vit5.safetensors", num_heads=3, rotary=rotary)
    assert (model.norm, model.qk_norm, model.num_registers, model.norm_epsilon) == ("rms", True, 4, 1e-6)
    with np.load(golden / "vit5.expected.npz") as expected:
        found = model.feature_extractor(["tokens", "logits"]).predict_on_batch(expected["image"])
        for stage, array in found.items():
            assert_close(array, expected[stage])


@pytest.fixture(scope="module")
def trained_outputs(golden):
    """What transformers computes by trained weights for `images`, a photograph (1, 112, 112, 3)."""
    with np.load(golden / "dinov2_trained.expected.npz") as file:
        outputs = dict(file)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return outputs | {"images": (outputs["image"][None] / np.float32(255) - mean) / std}


@pytest.mark.parametrize("image_size", [112, pytest.param((None, None), marks=pytest.mark.slow)], ids=str)
def test_some_channels_of_trained_weights_compute_what_transformers_computes(
    golden, trained_outputs, image_size
):
    """24 channels, 3 heads and 2 blocks of DINOv2 ViT-S/14, with its largest values and in float16.

    Queries and keys are multiplied by 6, so that attention is as peaked as with all channels, where a token
    gives up to 1.0 to another.
    """
    model = from_pretrained(golden / "dinov2_trained", image_size=image_size)
    found = model.feature_extractor(["tokens"]).predict_on_batch(trained_outputs["images"])
    assert_close(found["tokens"], trained_outputs["tokens"])


def test_the_first_blocks_of_trained_weights_compute_what_transformers_computes(
    trained_folder, trained_outputs
):
    model = from_pretrained(trained_folder, image_size=112)
    found = model.feature_extractor(["encoder_block_1"]).predict_on_batch(trained_outputs["images"])
    found = numpy(found["encoder_block_1"])[0][:, trained_outputs["channels"]]
    assert_close(found, trained_outputs["block_1"])


@by_table("name, size, any_size", RESIZED)
def test_a_resized_checkpoint_computes_what_the_official_loader_makes_of_it(golden, name, size, any_size):
    image_size = (None, None) if any_size else size
    model = from_pretrained(golden / f"{name}.npz", image_size=image_size, representation_size=None)
    with np.load(golden / f"{name}.expected.npz") as expected:
        case = {key: expected[f"resize{size}/{key}"] for key in ("image", "pos_embedding", "pre_logits")}
    features = model.feature_extractor(["representation"])
    assert_close(features.predict_on_batch(case["image"])["representation"], case["pre_logits"])
    if not any_size:
        assert_close(model.get_layer("position_embedding").table, case["pos_embedding"])


# Arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, kept",
    [
        ({}, True),
        ({"num_classes": 7}, True),
        ({"num_classes": 5}, False),
        ({"head": "reset"}, False),
        ({"head": "keep"}, True),
    ],
    ids=str,
)
def test_the_head_is_kept_if_it_fits_and_else_zero(golden, stored, options, kept):
    head = from_pretrained(golden / "token.npz", **options).get_layer("head")
    assert head.kernel.shape == (24, options.get("num_classes", 7))
    if kept:
        np.testing.assert_array_equal(numpy(head.kernel), stored["head/kernel"])
    else:
        assert not numpy(head.kernel).any() and not numpy(head.bias).any()


@by_table(
    "options, message",
    [
        ({"num_classes": 5, "head": "keep"}, r"wrong shape: head/bias \(7,\) for head/bias \(5,\)"),
        ({"num_classes": 0, "head": "keep"}, "num_classes=0 removes the head, but head='keep' keeps it"),
        (
            {"image_size": (None, None), "position_interpolation": "truncate"},
            "'truncate' has no positions for an image that is larger; got .*: give image_size",
        ),
        ({"class_names": "imagenet_1k"}, "token.npz: class_names must hold num_classes=7 names; got 1000"),
    ],
)
def test_arguments_that_contradict_each_other_or_the_file_are_refused(golden, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(golden / "token.npz", **options)
    assert "\n" not in str(caught.value)


def test_dropping_the_representation_resets_the_head(golden):
    head = from_pretrained(golden / "token_rep.npz", representation_size=None).get_layer("head")
    assert head.kernel.shape == (24, 7) and not numpy(head.kernel).any()


def test_no_classes_means_no_head(golden):
    model = from_pretrained(golden / "token_rep.npz", num_classes=0)
    assert model.num_classes is None
    with np.load(golden / "token_rep.expected.npz") as expected:
        assert_close(model(expected["image"]), expected["pre_logits"])


def test_pooling_by_mean_drops_the_class_token_and_its_row(golden, stored):
    model = from_pretrained(golden / "token.npz", pooling="gap")
    assert model.num_prefix_tokens == 0
    np.testing.assert_array_equal(numpy(model.get_layer("position_embedding").table), stored[TABLE][:, 1:])
    np.testing.assert_array_equal(numpy(model.get_layer("head").kernel), stored["head/kernel"])
    kept = from_pretrained(golden / "token.npz", pooling="gap", class_token=True)
    np.testing.assert_array_equal(numpy(kept.get_layer("position_embedding").table), stored[TABLE])


def test_options_of_the_model_may_be_given(golden, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    for names in (list("abcdefg"), tmp_path / "names.txt"):
        model = from_pretrained(str(golden / "token.npz"), class_names=names, dropout_rate=0.1)
        assert model.class_names == tuple("abcdefg")
        assert model.get_layer("encoder_block_0").dropout_rate == 0.1
    model = from_pretrained(golden / "token.npz", num_classes=1000, class_names="imagenet_1k")
    assert model.class_names[281] == "tabby, tabby cat"


def test_a_file_without_positions_needs_the_image_size(stored, write):
    del stored[TABLE]
    path = write(stored)
    with pytest.raises(ValueError, match="without a position table the image size is unknown; give"):
        from_pretrained(path)
    model = from_pretrained(path, image_size=32)
    assert model.position_embedding == "none"
    assert model(images_for(model)).shape == (2, 7)


# Strictness ----------------------------------------------------------------------------------------


def test_all_mismatches_are_listed_in_one_line(stored, write):
    stored["Transformer/encoderblock_0/extra/kernel"] = np.zeros(3, "float32")
    del stored["Transformer/encoder_norm/bias"]
    stored["head/bias"] = np.zeros(8, "float32")
    with pytest.raises(ValueError) as caught:
        from_pretrained(write(stored))
    assert str(caught.value).endswith(
        "model.npz does not fit the model. only in file: Transformer/encoderblock_0/extra/kernel; "
        "only in model: encoder_norm/beta; wrong shape: head/bias (8,) for head/bias (7,)"
    )


def test_infinity_of_float64_in_float32_is_refused_unless_accepted(stored, write):
    stored["head/bias"] = stored["head/bias"].astype("float64")
    stored["head/bias"][3] = 1e39
    path = write(stored)
    with pytest.raises(ValueError, match="model.npz holds NaN or infinity in head/bias; the file is damaged"):
        from_pretrained(path)
    assert not np.isfinite(numpy(from_pretrained(path, check_finite=False).get_layer("head").bias)).all()
