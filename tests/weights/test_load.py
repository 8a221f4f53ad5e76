import io
import pickle
import zipfile
from itertools import product

import keras
import numpy as np
import pytest
from made.sampling import some_on_jax
from reference.comparing import arrays, assert_close, numpy
from reference.small import images_for

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import read_checkpoint

NAMES = ["token", "token_rep", "gap", "hybrid", "hybrid_root"]
OTHERS = {  # file, and what it does not tell
    "bigvision_gap_sincos": ("bigvision_gap_sincos.npz", {"image_size": 32}),
    "bigvision_map": ("bigvision_map.npz", {}),
    "timm_token": ("timm_token.safetensors", {"num_heads": 3}),
    "timm_avg": ("timm_avg.safetensors", {"num_heads": 3}),
    "hf_vit": ("hf_vit", {}),
}
RESIZED = [("token", 48), ("token", 24), ("token_rep", 64), ("gap", 48), ("hybrid", 96)]


@pytest.fixture
def stored(golden):
    """The arrays of golden/token.npz by the file's keys, to be changed."""
    with np.load(golden / "token.npz") as file:
        return dict(file)


@pytest.fixture
def write(tmp_path):
    def write(arrays, name="model.npz"):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return write


def stages_of(model, images):
    stages = model.feature_extractor(["tokens", "representation", "logits"])
    return stages.predict_on_batch(images) if keras.backend.backend() == "jax" else stages(images)


# What the authors' code computes -----------------------------------------------------------------


@pytest.mark.parametrize("name", some_on_jax(NAMES, 2))
def test_a_checkpoint_computes_what_its_authors_code_computes(golden, name):
    with np.load(golden / f"{name}.expected.npz") as expected:
        computed = stages_of(from_pretrained(golden / f"{name}.npz"), expected["image"])
        assert_close(computed["tokens"], expected["tokens"])
        assert_close(computed["representation"], expected["pre_logits"])
        assert_close(computed["logits"], expected["logits"])


@pytest.mark.parametrize("name", some_on_jax(OTHERS, 4))
def test_a_checkpoint_of_another_project_computes_what_that_computes(golden, name):
    file, options = OTHERS[name]
    model = from_pretrained(golden / file, **options)
    with np.load(golden / f"{name}.expected.npz") as expected:
        computed = stages_of(model, expected["image"])
        for theirs, ours in (("tokens", "tokens"), ("pre_logits", "representation"), ("logits", "logits")):
            if theirs in expected:
                assert_close(computed[ours], expected[theirs])


@pytest.mark.parametrize("case, free", some_on_jax(product(RESIZED, [False, True]), 5), ids=str)
def test_a_resized_checkpoint_computes_what_the_official_loader_makes_of_it(golden, case, free):
    name, size = case
    model = from_pretrained(
        golden / f"{name}.npz", image_size=(None, None) if free else size, representation_size=None
    )
    with np.load(golden / f"{name}.expected.npz") as expected:
        case = {key: expected[f"resize{size}/{key}"] for key in ("image", "pos_embedding", "pre_logits")}
    features = model.feature_extractor(["representation"])
    assert_close(features.predict_on_batch(case["image"])["representation"], case["pre_logits"])
    if not free:
        assert_close(model.get_layer("position_embedding").table, case["pos_embedding"])


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_case_is_tested(golden, name):
    with np.load(golden / f"{name}.expected.npz") as expected:
        sizes = {int(key[6 : key.index("/")]) for key in expected.files if key.startswith("resize")}
    assert sizes == {size for n, size in RESIZED if n == name}


def test_a_table_is_resized_to_any_rectangle_with_its_class_row_left_alone(golden):
    model = from_pretrained(golden / "token.npz", image_size=(16, 56))
    table = numpy(model.get_layer("position_embedding").table)
    before = numpy(from_pretrained(golden / "token.npz").get_layer("position_embedding").table)
    assert table.shape == (1, 1 + 2 * 7, 24)
    np.testing.assert_array_equal(table[:, 0], before[:, 0])
    corners = table[0, 1:].reshape(2, 7, 24)[::1, ::6]
    np.testing.assert_allclose(corners, before[0, 1:].reshape(4, 4, 24)[::3, ::3], rtol=1e-6)


# What arguments change ---------------------------------------------------------------------------


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
def test_the_head_is_kept_when_it_fits_and_else_zero(golden, stored, options, kept):
    model = from_pretrained(golden / "token.npz", **options)
    head = numpy(model.get_layer("head").kernel)
    assert head.shape == (24, options.get("num_classes", 7))
    if kept:
        np.testing.assert_array_equal(head, stored["head/kernel"])
    else:
        assert not head.any()
        assert not numpy(model.get_layer("head").bias).any()


def test_dropping_the_representation_resets_the_head_that_stood_on_it(golden):
    model = from_pretrained(golden / "token_rep.npz", representation_size=None)
    assert numpy(model.get_layer("head").kernel).shape == (24, 7)
    assert not numpy(model.get_layer("head").kernel).any()


def test_keeping_a_head_that_does_not_fit_is_refused(golden):
    with pytest.raises(ValueError, match=r"wrong shape: head/bias \(7,\) for head/bias \(5,\)"):
        from_pretrained(golden / "token.npz", num_classes=5, head="keep")
    with pytest.raises(ValueError, match="head must be one of .*reset.*; got 'new'"):
        from_pretrained(golden / "token.npz", head="new")


def test_no_classes_means_no_head(golden):
    model = from_pretrained(golden / "token_rep.npz", num_classes=0)
    assert model.num_classes is None
    with np.load(golden / "token_rep.expected.npz") as expected:
        assert_close(model(expected["image"]), expected["pre_logits"])


def test_a_token_file_pooled_by_mean_loses_its_class_token_and_its_row(golden, stored):
    model = from_pretrained(golden / "token.npz", pooling="gap")
    assert model.num_prefix_tokens == 0
    table = stored["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(numpy(model.get_layer("position_embedding").table), table[:, 1:])
    np.testing.assert_array_equal(numpy(model.get_layer("head").kernel), stored["head/kernel"])
    kept = from_pretrained(golden / "token.npz", pooling="gap", class_token=True)
    np.testing.assert_array_equal(numpy(kept.get_layer("position_embedding").table), table)


def test_options_of_the_model_may_be_given(golden):
    model = from_pretrained(golden / "token.npz", class_names=list("abcdefg"), dropout_rate=0.1)
    assert model.class_names == tuple("abcdefg")
    assert model.get_layer("encoder_block_0").dropout_rate == 0.1


def test_class_names_may_be_a_list_that_is_known_or_a_file(golden, tmp_path):
    model = from_pretrained(golden / "token.npz", num_classes=1000, class_names="imagenet_1k")
    assert model.class_names[281] == "tabby, tabby cat"
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    assert from_pretrained(golden / "token.npz", class_names=tmp_path / "names.txt").class_names[6] == "g"
    with pytest.raises(ValueError, match="token.npz: 1000 class_names do not fit num_classes=7"):
        from_pretrained(golden / "token.npz", class_names="imagenet_1k")


def test_the_folder_of_a_finished_run_is_its_model(golden, tmp_path):
    model = from_pretrained(golden / "token.npz", class_names=list("abcdefg"))
    model.save(tmp_path / "model.keras")
    found = from_pretrained(tmp_path)
    assert found.class_names == tuple("abcdefg")
    np.testing.assert_array_equal(found(images_for(model)), model(images_for(model)))


def test_a_path_may_be_a_string(golden):
    assert from_pretrained(str(golden / "gap.npz")).pooling == "gap"


def test_a_table_that_is_no_square_needs_its_grid(stored, write):
    key = "Transformer/posembed_input/pos_embedding"
    path = write({**stored, key: stored[key][:, :13]})  # a class token and 2 × 6 or 3 × 4 cells
    with pytest.raises(ValueError, match=r"12 grid positions are not a square; give position_grid="):
        from_pretrained(path)
    model = from_pretrained(path, position_grid=(2, 6))
    assert model.image_size == (16, 48)
    np.testing.assert_array_equal(numpy(model.get_layer("position_embedding").table), stored[key][:, :13])
    with pytest.raises(ValueError, match="position_grid 2×5 does not fit the checkpoint's 12 positions"):
        from_pretrained(path, position_grid=(2, 5))


def test_a_file_without_positions_needs_the_image_size(stored, write):
    del stored["Transformer/posembed_input/pos_embedding"]
    path = write(stored)
    with pytest.raises(
        ValueError, match="without a position table the image size is unknown; give image_size"
    ):
        from_pretrained(path)
    model = from_pretrained(path, image_size=32)
    assert model.position_embedding == "none"
    assert model(images_for(model)).shape == (2, 7)


# Strictness --------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_listed_in_one_line(stored, write):
    stored["Transformer/encoderblock_0/extra/kernel"] = np.zeros(3, "float32")
    del stored["Transformer/encoder_norm/bias"]
    stored["head/bias"] = np.zeros(8, "float32")
    with pytest.raises(ValueError) as caught:
        from_pretrained(write(stored))
    message = str(caught.value)
    assert "only in the file: Transformer/encoderblock_0/extra/kernel;" in message
    assert "only in the model: encoder_norm/beta;" in message
    assert "wrong shape: head/bias (8,) for head/bias (7,)" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("cls"), "17 grid positions are not a square"),
        (lambda a: a.pop("embedding/bias"), "only in the model: patch_embedding/bias; wrong shape: none"),
        (lambda a: a.pop("Transformer/encoderblock_1/LayerNorm_2/scale"), "encoder_block_1/mlp_norm/gamma"),
        (lambda a: a.update({"pos_embed": a["cls"]}), "only in the file: pos_embed; only in the model: none"),
        (lambda a: a.update({"embedding/kernel": a["cls"]}), r"expected 4 axes of .*; got \(1, 1, 24\)"),
        (
            lambda a: a.update({"head/kernel": a["cls"]}),
            r"expected 2 axes of .*head/kernel; got \(1, 1, 24\)",
        ),
        (
            lambda a: a.update({"Transformer/encoderblock_0/LayerNorm_1/scale": a["embedding/bias"]}),
            "both map to encoder_block_0/mlp_norm/gamma",
        ),
        (
            lambda a: a.update(
                {
                    k.replace("encoderblock_1", "encoderblock_3"): v
                    for k, v in a.items()
                    if "encoderblock_1" in k
                }
            ),
            "only in the file: Transformer/encoderblock_3/LayerNorm_0/bias",
        ),
    ],
)
def test_a_change_to_a_checkpoint_is_refused(stored, write, change, message):
    change(stored)
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(write(stored))
    assert "\n" not in str(caught.value)


def test_a_long_list_ends_with_the_count_of_the_rest(stored, write):
    gap = {key.replace("encoderblock_1", "encoderblock_2"): array for key, array in stored.items()}
    with pytest.raises(ValueError, match="file: .* and 11 more; only in the model: none") as error:
        from_pretrained(write(gap))
    assert str(error.value).count("encoderblock_2") == 5
    extra = {f"extra_{i}": np.zeros(1, "float32") for i in range(7)}
    with pytest.raises(ValueError, match="extra_0, extra_1, extra_2, extra_3, extra_4 and 2 more; only in"):
        from_pretrained(write({**stored, **extra}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(stored, write, value):
    stored["head/bias"][3] = value
    path = write(stored)
    with pytest.raises(ValueError, match="model.npz holds NaN or infinity in head/bias; the file is damaged"):
        from_pretrained(path)
    assert not np.isfinite(numpy(from_pretrained(path, check_finite=False).get_layer("head").bias)).all()


def test_numbers_of_float64_that_float32_takes_for_infinity_are_refused(stored, write):
    stored["head/bias"] = stored["head/bias"].astype("float64")
    stored["head/bias"][3] = 1e39
    path = write(stored)
    with pytest.raises(ValueError, match="model.npz holds NaN or infinity in head/bias"):
        from_pretrained(path)
    assert not np.isfinite(numpy(from_pretrained(path, check_finite=False).get_layer("head").bias)).all()


def test_arrays_of_a_model_much_larger_than_the_file_are_refused_before_it_is_built(stored, write):
    stored["embedding/kernel"] = np.zeros((1, 1, 1, 2**22), "float32")
    with pytest.raises(ValueError, match=r"bytes declare \S+; at most 1,073,741,824 are accepted"):
        from_pretrained(write(stored))


def test_every_single_array_matters(stored, write):
    for key in [*stored][::7]:
        with pytest.raises(ValueError):
            from_pretrained(write({k: v for k, v in stored.items() if k != key}))


# Files that are none -----------------------------------------------------------------------------


class Trap:
    """An object whose unpickling would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def truncated(folder, golden):
    path = folder / "half.npz"
    path.write_bytes((golden / "token.npz").read_bytes()[:5000])
    return path, "half.npz is no checkpoint that can be read"


def pickled_array(folder, golden):
    path = folder / "objects.npz"
    np.savez(path, **{"embedding/kernel": np.array([Trap(folder / "trap")], dtype=object)})
    return path, "pickled objects, which are refused"


def pickle_file(folder, golden):
    path = folder / "model.npz"
    path.write_bytes(pickle.dumps({"embedding/kernel": Trap(folder / "trap")}))
    return path, "pickled objects, which are refused"


def one_array(folder, golden):
    path = folder / "array.npy"
    np.save(path, np.zeros(3))
    return path, "array.npy is no checkpoint that can be read: it is no archive"


def text(folder, golden):
    path = folder / "notes.npz"
    path.write_text("not a checkpoint")
    return path, "notes.npz is no checkpoint that can be read"


def empty(folder, golden):
    path = folder / "empty.npz"
    path.write_bytes(b"")
    return path, "empty.npz is no checkpoint that can be read"


def foreign_zip(folder, golden):
    path = folder / "pictures.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return path, "pictures.zip is no checkpoint: readme.txt holds bytes; expected floating-point arrays"


def damaged_array(folder, golden):
    """A zip that is whole, of an array that is not."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((8, 8, 3, 24), "float32"))
    path = folder / "damaged.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("embedding/kernel.npy", buffer.getvalue()[:200])
    return path, "damaged.npz is no checkpoint that can be read"


def damaged_compression(folder, golden):
    path = folder / "compressed.npz"
    np.savez_compressed(path, **{"embedding/kernel": np.random.default_rng(0).random(4000)})
    content = bytearray(path.read_bytes())
    content[2000:2400] = bytes(400)
    path.write_bytes(content)
    return path, "compressed.npz is no checkpoint that can be read"


def foreign(folder, golden):
    path = folder / "foreign.npz"
    np.savez(path, **{"conv1.weight": np.zeros(3), "fc.bias": np.zeros(2)})
    return (
        path,
        r"no known layout \(vit_jax, big_vision, timm, huggingface\); it holds 2 arrays: conv1.weight",
    )


def no_arrays(folder, golden):
    np.savez(folder / "none.npz")
    return folder / "none.npz", "holds 0 arrays: no arrays"


def missing(folder, golden):
    return folder / "missing.npz", "no such checkpoint file: '.*missing.npz'"


BAD = [truncated, pickled_array, pickle_file, one_array, text, empty, foreign_zip, damaged_array]
BAD += [damaged_compression, foreign, no_arrays, missing]


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_a_file_that_is_no_checkpoint_is_refused_in_one_line(make, tmp_path, golden):
    path, message = make(tmp_path, golden)
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "trap").exists(), "reading the file ran code in it"


def test_reading_names_every_array_as_the_model_does(golden):
    checkpoint = read_checkpoint(golden / "hybrid.npz")
    read, keys, unknown = checkpoint.arrays, checkpoint.keys, checkpoint.unknown
    model = from_pretrained(golden / "hybrid.npz")
    assert {name: a.shape for name, a in read.items()} == {n: a.shape for n, a in arrays(model).items()}
    assert keys["gn_root/gamma"] == "gn_root/scale"
    assert unknown == []
    for name, array in arrays(model).items():
        np.testing.assert_array_equal(array, read[name])


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.zeros(3, "V4"), np.zeros(3, "int32"), np.zeros(3, "c8"), np.zeros(3, ">f4")]
)
def test_arrays_that_are_no_real_numbers_are_refused_by_name(array, golden, tmp_path):
    with np.load(golden / "token.npz") as file:
        np.savez(tmp_path / "odd.npz", **{**file, "head/bias": array})
    with pytest.raises(ValueError, match="odd.npz is no checkpoint: head/bias holds .*; expected floating"):
        from_pretrained(tmp_path / "odd.npz")


def test_an_image_is_not_said_to_be_pickled(golden, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 and so on")
    with pytest.raises(ValueError, match="photo.jpg is no checkpoint .*: it is no archive"):
        from_pretrained(tmp_path / "photo.jpg")


def test_a_head_cannot_be_kept_and_left_out(golden):
    with pytest.raises(ValueError, match="num_classes=0 removes the head, but head='keep' keeps it"):
        from_pretrained(golden / "token.npz", num_classes=0, head="keep")
