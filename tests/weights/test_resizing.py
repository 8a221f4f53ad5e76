from itertools import product

import numpy as np
import pytest
import scipy.ndimage
import scipy.sparse.linalg
from hypothesis import assume, given
from hypothesis import strategies as st
from made.sampling import some
from PIL import Image
from reference import vit_numpy
from reference.comparing import arrays, assert_close, numpy
from reference.goldens import GOLDENS, stored
from reference.small import compute, images_for, small

from keras_vit import Preprocessing, from_pretrained, save_weights
from keras_vit.weights.resizing import (
    POSITION_RESIZES,
    adapted_channels,
    resized_patch_kernel,
    resized_positions,
)

SMOOTH = {"bicubic_antialias": Image.Resampling.BICUBIC, "bilinear_antialias": Image.Resampling.BILINEAR}
GRIDS = st.tuples(st.integers(1, 20), st.integers(1, 20))
PAIRS = [  # old grid, new grid: up, down, to rectangles and back, one side kept
    ((14, 14), (24, 24)),
    ((24, 24), (14, 14)),
    ((14, 14), (7, 7)),
    ((7, 7), (8, 8)),
    ((14, 14), (10, 21)),
    ((9, 16), (16, 9)),
    ((12, 12), (12, 5)),
    ((5, 3), (1, 1)),
    ((1, 1), (3, 2)),
    ((37, 37), (16, 16)),
]
PATCHES = [  # old patch, new patch
    ((32, 32), (16, 16)),
    ((16, 16), (32, 32)),
    ((32, 32), (8, 8)),
    ((8, 8), (16, 16)),
    ((32, 32), (48, 48)),
    ((16, 16), (14, 14)),
    ((16, 16), (8, 24)),
    ((8, 12), (12, 8)),
    ((4, 4), (1, 1)),
]


def table_of(grid, prefix=0, channels=3, dtype="float32"):
    rng = np.random.default_rng(0)
    return rng.standard_normal((1, prefix + grid[0] * grid[1], channels)).astype(dtype)


def pillow(table, old, new, method):
    """Each channel resized as a picture of floats."""
    channels = [
        np.asarray(Image.fromarray(np.ascontiguousarray(channel)).resize(new[::-1], SMOOTH[method]))
        for channel in np.moveaxis(table[0].reshape(*old, -1), -1, 0)
    ]
    return np.stack(channels, axis=-1).reshape(1, -1, len(channels))


# Positions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("old, new", PAIRS)
@pytest.mark.parametrize("method", [*SMOOTH])
def test_smoothing_resizes_are_those_of_pillow(old, new, method):
    table = table_of(old)
    assert_close(resized_positions(table, old, new, method), pillow(table, old, new, method), 1e-6)


@pytest.mark.parametrize("method", [*SMOOTH])
@given(old=GRIDS, new=GRIDS)
def test_smoothing_resizes_are_those_of_pillow_for_any_grid(method, old, new):
    table = table_of(old)
    assert_close(resized_positions(table, old, new, method), pillow(table, old, new, method), 1e-5)


@given(old=GRIDS, new=GRIDS)
def test_the_official_resize_is_that_of_scipy(old, new):
    table = table_of(old, dtype="float64")
    grid = table[0].reshape(*old, -1)
    expected = scipy.ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    assume(expected.shape[:2] == new)
    for axis, side in enumerate(new):  # zoom zeroes the last row or column of some pairs by a rounding slip
        assume(np.take(expected, side - 1, axis).any())
    np.testing.assert_allclose(resized_positions(table, old, new)[0], expected.reshape(-1, 3), atol=1e-12)


@pytest.mark.parametrize("method", POSITION_RESIZES)
@given(old=GRIDS, new=GRIDS, prefix=st.integers(0, 5))
def test_rows_before_the_grid_are_left_alone(method, old, new, prefix):
    table = table_of(old, prefix)
    resized = resized_positions(table, old, new, method)
    assert resized.shape == (1, prefix + new[0] * new[1], 3)
    np.testing.assert_array_equal(resized[:, :prefix], table[:, :prefix], strict=True)
    alone = resized_positions(table[:, prefix:], old, new, method)
    np.testing.assert_array_equal(resized[:, prefix:], alone)


@pytest.mark.parametrize("method", POSITION_RESIZES)
@given(grid=GRIDS, prefix=st.integers(0, 2))
def test_the_same_grid_is_the_same_table(method, grid, prefix):
    table = table_of(grid, prefix)
    np.testing.assert_array_equal(resized_positions(table, grid, [*grid], method), table, strict=True)


@pytest.mark.parametrize("method", POSITION_RESIZES)
@given(old=GRIDS, new=GRIDS)
def test_a_table_of_one_vector_stays_so(method, old, new):
    table = np.broadcast_to(np.float32([3, -1, 0]), (1, old[0] * old[1], 3))
    expected = np.broadcast_to(np.float32([3, -1, 0]), (1, new[0] * new[1], 3))
    np.testing.assert_allclose(resized_positions(table, old, new, method), expected, rtol=1e-6)


@pytest.mark.parametrize("method", POSITION_RESIZES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_type_of_a_table_is_kept(method, dtype):
    assert resized_positions(table_of((2, 2), 1, dtype=dtype), (2, 2), (3, 3), method).dtype == dtype


def test_the_methods_differ():
    tables = [resized_positions(table_of((4, 4)), (4, 4), (6, 6), method) for method in POSITION_RESIZES]
    for i, one in enumerate(tables):
        for other in tables[i + 1 :]:
            assert np.abs(one - other).max() > 1e-2


@pytest.mark.parametrize("method", ["bicubic", "nearest", None])
def test_an_unknown_method_is_refused(method, golden):
    message = f"position_resize must be one of 'bilinear', 'bicubic_anti.*; got {method!r}"
    with pytest.raises(ValueError, match=message):
        resized_positions(table_of((2, 2)), (2, 2), (2, 2), method)
    with pytest.raises(ValueError, match=message) as caught:
        from_pretrained(golden / "token.npz", position_resize=method)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [*SMOOTH])
def test_a_model_of_any_size_has_one_method(golden, method):
    message = f"resizes its positions at each call.*position_resize={method!r} needs an image_size"
    with pytest.raises(ValueError, match=message):
        from_pretrained(golden / "token.npz", image_size=(None, None), position_resize=method)
    assert from_pretrained(golden / "token.npz", image_size=(None, None)).image_size == (None, None)


TABLES = {  # golden files with a learned table: its key, and the rows before the grid's
    "token": ("Transformer/posembed_input/pos_embedding", 1),
    "token_rep": ("Transformer/posembed_input/pos_embedding", 1),
    "gap": ("Transformer/posembed_input/pos_embedding", 0),
    "hybrid": ("Transformer/posembed_input/pos_embedding", 1),
    "hybrid_root": ("Transformer/posembed_input/pos_embedding", 1),
    "bigvision_map": ("params/pos_embedding", 0),
    "timm_token": ("pos_embed", 1),
    "timm_avg": ("pos_embed", 0),
    "hf_vit": ("vit.embeddings.position_embeddings", 1),
}
CELL = {"hybrid": 8, "hybrid_root": 16}  # pixels that a cell of the grid covers; 8 for the others


@pytest.mark.parametrize(
    "name, method, grid", some(product(TABLES, POSITION_RESIZES, [(6, 6), (2, 2), (3, 7)]), 4)
)
def test_a_checkpoint_gets_the_resized_table(golden, name, method, grid):
    file, _, given = GOLDENS[name]
    key, prefix = TABLES[name]
    table = stored(golden, name)[key]
    side = round((table.shape[1] - prefix) ** 0.5)
    size = tuple(CELL.get(name, 8) * cells for cells in grid)
    model = from_pretrained(golden / file, **{**given, "image_size": size}, position_resize=method)
    resized = arrays(model)["position_embedding/table"]
    np.testing.assert_array_equal(resized[:, :prefix], table[:, :prefix])
    if method in SMOOTH:
        expected = pillow(table[:, prefix:], (side, side), grid, method)
        assert_close(resized[:, prefix:], expected, 1e-6)
    else:
        expected = resized_positions(table[:, prefix:], (side, side), grid)
        np.testing.assert_array_equal(resized[:, prefix:], expected)
    assert model.preprocessing.image_size == size


def test_every_learned_table_is_tested(golden):
    learned = {
        name for name in GOLDENS if any("pos_embed" in k or "position_emb" in k for k in stored(golden, name))
    }
    assert learned == {*TABLES}


def saved(model, path):
    save_weights(model, path, "timm")
    return path


@pytest.mark.parametrize("method", POSITION_RESIZES)
def test_rows_of_registers_and_of_distillation_are_left_alone(method, tmp_path):
    model = small(distillation=True, num_registers=2)
    table = arrays(model)["position_embedding/table"]
    path = saved(model, tmp_path / "model.safetensors")
    resized = arrays(from_pretrained(path, image_size=(24, 32), position_resize=method))
    assert resized["position_embedding/table"].shape == (1, 1 + 1 + 2 + 3 * 4, 12)
    np.testing.assert_array_equal(resized["position_embedding/table"][:, :4], table[:, :4])
    expected = resized_positions(table[:, 4:], (2, 2), (3, 4), method)
    np.testing.assert_array_equal(resized["position_embedding/table"][:, 4:], expected)


# Tokens that are dropped ---------------------------------------------------------------------------

DROPPED = [  # what is asked for, which rows are left of class, distillation, registers and 4 cells
    ({"num_registers": 0}, [0, 1, 4, 5, 6, 7], {"register_tokens"}),
    ({"distillation": False}, [0, 2, 3, 4, 5, 6, 7], {"distillation_token", "head_distillation"}),
    (
        {"distillation": False, "num_registers": 0},
        [0, 4, 5, 6, 7],
        {"distillation_token", "head_distillation", "register_tokens"},
    ),
    (
        {"pooling": "gap", "distillation": False},
        [2, 3, 4, 5, 6, 7],
        {"class_token", "distillation_token", "head_distillation"},
    ),
    (
        {"pooling": "gap", "distillation": False, "num_registers": 0},
        [4, 5, 6, 7],
        {"class_token", "distillation_token", "head_distillation", "register_tokens"},
    ),
]


@pytest.mark.parametrize("options, rows, gone", DROPPED, ids=[str(options) for options, _, _ in DROPPED])
@pytest.mark.parametrize("prefix_positions", [True, False])
def test_a_dropped_token_takes_its_own_row_along(options, rows, gone, prefix_positions, tmp_path):
    model = small(distillation=True, num_registers=2, prefix_positions=prefix_positions)
    before = arrays(model)
    path = saved(model, tmp_path / "model.safetensors")
    after = arrays(from_pretrained(path, **options, head="keep"))
    table = before.pop("position_embedding/table")
    kept = rows if prefix_positions else range(4)
    np.testing.assert_array_equal(after.pop("position_embedding/table"), table[:, list(kept)])
    assert {name.split("/")[0] for name in before} - {name.split("/")[0] for name in after} == gone
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("name", ["token", "hybrid", "hybrid_root", "timm_token", "hf_vit"])
def test_pooling_by_mean_drops_the_class_token_of_a_checkpoint(golden, name):
    file, _, given = GOLDENS[name]
    key, _ = TABLES[name]
    model = from_pretrained(golden / file, **given, pooling="gap")
    assert (model.class_token, model.num_prefix_tokens) == (False, 0)
    np.testing.assert_array_equal(
        arrays(model)["position_embedding/table"], stored(golden, name)[key][:, 1:], strict=True
    )
    kept = from_pretrained(golden / file, **given, pooling="gap", class_token=True)
    np.testing.assert_array_equal(arrays(kept)["position_embedding/table"], stored(golden, name)[key])


def test_dropping_and_resizing_go_together(tmp_path):
    model = small(num_registers=2)
    table = arrays(model)["position_embedding/table"]
    path = saved(model, tmp_path / "model.safetensors")
    after = arrays(from_pretrained(path, num_registers=0, image_size=(24, 8)))["position_embedding/table"]
    np.testing.assert_array_equal(after[:, :1], table[:, :1])
    np.testing.assert_array_equal(after[:, 1:], resized_positions(table[:, 3:], (2, 2), (3, 1)))


# Patch kernels -------------------------------------------------------------------------------------


def bilinear(patch, size):
    """A patch (height, width, …) resized with pixel centres on one another, its border repeated; by loops."""
    resized = np.zeros((*size, *patch.shape[2:]))
    for y, x in np.ndindex(*size):
        for (row, down), (column, right) in [
            (a, b)
            for a in neighbours(y, patch.shape[0], size[0])
            for b in neighbours(x, patch.shape[1], size[1])
        ]:
            resized[y, x] += down * right * patch[row, column]
    return resized


def neighbours(place, old, new):
    """The two old pixels that a new one lies between, each with its weight."""
    point = (place + 0.5) * old / new - 0.5
    low = int(np.floor(point))
    return [
        (min(max(p, 0), old - 1), weight) for p, weight in ((low, 1 - (point - low)), (low + 1, point - low))
    ]


def resize_matrix(old, new):
    """(new pixels, old pixels) of the resize, a column for each patch with one bright pixel."""
    bright = np.eye(old[0] * old[1]).reshape(*old, -1)
    return bilinear(bright, new).reshape(new[0] * new[1], -1)


@pytest.mark.parametrize("old, new", PATCHES)
def test_a_patch_kernel_is_the_least_squares_solution(old, new):
    kernel = np.random.default_rng(0).standard_normal((*old, 2, 2))
    system = scipy.sparse.csr_array(resize_matrix(old, new).T)
    columns = kernel.reshape(old[0] * old[1], -1).T
    # Of all solutions that lsqr could find from zero, the smallest: pinv(matrix.T) @ kernel.
    solved = [scipy.sparse.linalg.lsqr(system, c, atol=1e-14, btol=1e-14, conlim=0)[0] for c in columns]
    expected = np.stack(solved, axis=1)
    resized = resized_patch_kernel(kernel, new)
    assert resized.shape == (*new, 2, 2)
    np.testing.assert_allclose(resized.reshape(new[0] * new[1], -1), expected, atol=1e-8)


@pytest.mark.tensorflow_only("it is TensorFlow's resize")
@pytest.mark.parametrize("old, new", PATCHES)
def test_the_resize_of_patches_is_that_of_tensorflow(old, new):
    import tensorflow as tf

    patch = np.random.default_rng(0).standard_normal((*old, 2)).astype("float32")
    expected = tf.image.resize(patch, new, method="bilinear", antialias=False).numpy()
    np.testing.assert_allclose(bilinear(patch, new), expected, atol=2e-5)


@pytest.mark.parametrize("old, new", [pair for pair in PATCHES if all(n >= o for o, n in zip(*pair))])
def test_a_larger_patch_gives_the_vector_of_the_smaller(old, new):
    rng = np.random.default_rng(0)
    kernel, patch = rng.standard_normal((*old, 3, 5)), rng.standard_normal((*old, 3))
    before = np.einsum("hwc,hwcd->d", patch, kernel)
    after = np.einsum("hwc,hwcd->d", bilinear(patch, new), resized_patch_kernel(kernel, new))
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)


def test_a_patch_kernel_of_the_same_size_is_the_same():
    kernel = np.random.default_rng(0).standard_normal((8, 6, 3, 5)).astype("float32")
    np.testing.assert_allclose(resized_patch_kernel(kernel, (8, 6)), kernel, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_type_of_a_patch_kernel_is_kept(dtype):
    assert resized_patch_kernel(np.ones((4, 4, 1, 1), dtype), (8, 8)).dtype == dtype


UNPATCHED = ("token", "gap", "bigvision_map", "timm_token", "timm_avg", "hf_vit")
PATCHED = [(16, 64), (4, 16), ((12, 8), (48, 32))]


@pytest.mark.parametrize("name, sizes", some(product(UNPATCHED, PATCHED), 4))
def test_a_checkpoint_gets_the_resized_patch_kernel(golden, name, sizes):
    file, _, given = GOLDENS[name]
    patch, size = sizes
    original = arrays(from_pretrained(golden / file, **given))
    model = from_pretrained(golden / file, **{**given, "patch_size": patch, "image_size": size})
    patch = (patch, patch) if isinstance(patch, int) else patch
    assert model.patch_size == patch
    resized, before = arrays(model), original.pop("patch_embedding/kernel")
    expected = np.linalg.pinv(resize_matrix((8, 8), patch).T) @ before.reshape(64, -1)
    assert_close(resized.pop("patch_embedding/kernel"), expected.reshape(*patch, *before.shape[2:]), 1e-6)
    for other, array in original.items():  # the grid is as it was
        np.testing.assert_array_equal(resized[other], array)


def test_a_larger_patch_gives_the_tokens_of_the_smaller(golden):
    """Each patch of the image resized alone, so that none sees its neighbours."""
    model = from_pretrained(golden / "token.npz")
    larger = from_pretrained(golden / "token.npz", patch_size=16, image_size=64)
    images = images_for(model)
    patches = images.reshape(2, 4, 8, 4, 8, 3).transpose(2, 4, 0, 1, 3, 5)
    enlarged = bilinear(patches, (16, 16)).transpose(2, 3, 0, 4, 1, 5).reshape(2, 64, 64, 3).astype("float32")
    assert_close(compute(larger, enlarged)["logits"], compute(model, images)["logits"], 1e-5)


# Input channels ------------------------------------------------------------------------------------

FIRST = {"hybrid": "conv_root/kernel", "hybrid_root": "conv_root/kernel"}
ALL = [*GOLDENS]


@pytest.mark.parametrize("name", some([name for name in ALL if name not in FIRST], 3))
def test_a_grey_image_gives_what_its_copy_in_every_channel_gave(golden, name):
    file, _, given = GOLDENS[name]
    colour, grey = (from_pretrained(golden / file, **given, **more) for more in ({}, {"in_channels": 1}))
    images = images_for(colour)[..., :1]
    assert_close(compute(grey, images)["logits"], compute(colour, np.repeat(images, 3, axis=-1))["logits"])


@pytest.mark.tensorflow_only("JAX compiles the stems for 5 s each")
@pytest.mark.parametrize("name", [*FIRST])
def test_a_grey_image_of_a_hybrid_gives_the_same_up_to_the_standardisation(golden, name):
    """A summed kernel has another deviation than the stored one; the group norm takes that out again."""
    file, _, given = GOLDENS[name]
    colour, grey = (from_pretrained(golden / file, **given, **more) for more in ({}, {"in_channels": 1}))
    images = images_for(colour)[..., :1]
    repeated = np.repeat(images, 3, axis=-1)
    assert_close(compute(grey, images)["logits"], compute(colour, repeated)["logits"], 1e-4)
    summed = arrays(colour)["conv_root/kernel"].sum(axis=2, keepdims=True)
    np.testing.assert_array_equal(arrays(grey)["conv_root/kernel"], summed)


@pytest.mark.parametrize("name, turns", some(product(ALL, [[0, 1, 2, 0], [0, 1, 2] * 2, [0, 1]]), 7), ids=str)
def test_more_channels_get_the_stored_ones_in_turn(golden, name, turns):
    file, _, given = GOLDENS[name]
    channels = len(turns)
    first = FIRST.get(name, "patch_embedding/kernel")
    stored_model, model = (
        from_pretrained(golden / file, **given, **m) for m in ({}, {"in_channels": channels})
    )
    before, after = arrays(stored_model), arrays(model)
    assert model.in_channels == channels
    expected = before.pop(first)[:, :, turns].astype("float64") * 3 / channels
    np.testing.assert_allclose(after.pop(first), expected, rtol=1e-6)
    assert before.keys() == after.keys()
    for other, array in before.items():
        np.testing.assert_array_equal(after[other], array)


def test_an_image_of_equal_channels_keeps_its_size():
    """Where the stored channels are alike, or every one is taken as often."""
    kernel = np.random.default_rng(0).standard_normal((2, 2, 3, 5))
    for channels in (1, 6, 9):
        np.testing.assert_allclose(adapted_channels(kernel, channels).sum(axis=2), kernel.sum(axis=2))
    alike = np.repeat(kernel[:, :, :1], 3, axis=2)
    for channels in (1, 2, 4, 5):
        np.testing.assert_allclose(adapted_channels(alike, channels).sum(axis=2), alike.sum(axis=2))
    np.testing.assert_array_equal(adapted_channels(kernel, 3), kernel)


def test_a_grey_checkpoint_may_read_colours(tmp_path):
    model = small(in_channels=1)
    path = saved(model, tmp_path / "grey.safetensors")
    colour = from_pretrained(path, in_channels=3)
    images = images_for(model)
    assert_close(
        compute(colour, np.repeat(images, 3, axis=-1))["logits"], compute(model, images)["logits"], 1e-5
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_type_of_a_first_kernel_is_kept(dtype, channels):
    adapted = adapted_channels(np.ones((2, 2, 3, 5), dtype), channels)
    assert (adapted.dtype, adapted.shape) == (dtype, (2, 2, channels, 5))


@pytest.mark.parametrize(
    "channels, mean, std",
    [
        (1, (0.5,), (0.3,)),
        (3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
        (4, (0.4, 0.5, 0.6, 0.4), (0.2, 0.3, 0.4, 0.2)),
        (6, (0.4, 0.5, 0.6) * 2, (0.2, 0.3, 0.4) * 2),
    ],
)
def test_mean_and_deviation_of_the_images_follow(channels, mean, std, tmp_path):
    crop = {"resize": "crop", "crop_fraction": 0.9, "interpolation": "bicubic", "antialias": True}
    given = Preprocessing(16, **crop, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    path = saved(small(preprocessing=given), tmp_path / "model.safetensors")
    model = from_pretrained(path, in_channels=channels, image_size=(24, 16))
    assert model.preprocessing.mean == pytest.approx(mean, abs=1e-12)
    assert model.preprocessing.std == pytest.approx(std, abs=1e-12)
    kept = model.preprocessing.get_config() | {"mean": (), "std": ()}
    assert kept == {**crop, "image_size": (24, 16), "mean": (), "std": ()}


def test_without_known_preprocessing_the_official_one_has_the_channels(golden):
    assert from_pretrained(golden / "token.npz", in_channels=1).preprocessing.mean == (0.5,)
    assert from_pretrained(golden / "token.npz", in_channels=5).preprocessing.std == (0.5,) * 5


def test_adapting_all_at_once(golden):
    """Positions, patches and channels, against each made by itself."""
    file = stored(golden, "token")
    model = from_pretrained(golden / "token.npz", image_size=(48, 32), patch_size=16, in_channels=1)
    kernel = file["embedding/kernel"].astype("float64").sum(axis=2, keepdims=True)
    expected = np.linalg.pinv(resize_matrix((8, 8), (16, 16)).T) @ kernel.reshape(64, -1)
    assert_close(arrays(model)["patch_embedding/kernel"], expected.reshape(16, 16, 1, 24), 1e-6)
    table = file["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(
        arrays(model)["position_embedding/table"], resized_positions(table, (4, 4), (3, 2))
    )
    images = images_for(model)
    expected = vit_numpy.forward(arrays(model), images, model.get_config())["logits"]
    assert_close(numpy(compute(model, images)["logits"]), expected, 1e-5)


def test_a_rectangle_is_resized_from_its_own_grid(tmp_path):
    """A table of a rectangle, told by its grid, resizes from that grid."""
    model = small(image_size=(16, 48))
    path = tmp_path / "model.safetensors"
    saved(model, path)
    path.with_suffix(".json").unlink()
    table = arrays(model)["position_embedding/table"]
    wide = from_pretrained(path, num_heads=3, position_grid=(2, 6), image_size=(32, 32))
    expected = resized_positions(table, (2, 6), (4, 4))
    np.testing.assert_array_equal(arrays(wide)["position_embedding/table"], expected)
    turned = from_pretrained(path, num_heads=3, position_grid=(6, 2), image_size=(32, 32))
    assert np.abs(arrays(turned)["position_embedding/table"] - expected).max() > 0.1
