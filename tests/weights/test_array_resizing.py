import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, assert_close, assert_same_arrays, numpy
from reference.goldens import GOLDENS
from reference.small import compute, images_for, one_block

from keras_vit import Preprocessing, from_pretrained, save_weights
from keras_vit.interpolation import INTERPOLATIONS
from keras_vit.layers import resize_position_grid
from keras_vit.weights.array_resizing import (
    adapted_channels,
    resized_patch_kernel,
    resized_positions,
    resized_relative_positions,
)

GRIDS = st.tuples(st.integers(1, 20), st.integers(1, 20))
# Type of the file → of what is resized from it.
DTYPES = {"bfloat16": "float32", "float16": "float32", "float32": "float32", "float64": "float64"}


def table_of(grid, prefix=0, channels=3, dtype="float32"):
    rng = np.random.default_rng(0)
    return rng.standard_normal((1, prefix + grid[0] * grid[1], channels)).astype(dtype)


def saved(model, folder):
    return save_weights(model, folder / "model.safetensors", "timm")


# Positions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("old, new", [((3, 3), (7, 5)), ((6, 4), (3, 3)), ((5, 5), (5, 5))], ids=str)
def test_relative_positions_keep_those_of_neighbors_and_the_class_token(old, new, rng):
    rows, columns = 2 * old[0] - 1, 2 * old[1] - 1
    table = rng.standard_normal((rows * columns + 3, 4))
    resized = resized_relative_positions(table, old, new)
    np.testing.assert_array_equal(resized[-3:], table[-3:])
    sides = (2 * new[0] - 1, 2 * new[1] - 1)
    assert len(resized) == sides[0] * sides[1] + 3
    near = [
        offsets[:-3].reshape(*shape, 4)[shape[0] // 2 - 1 :][:3, shape[1] // 2 - 1 :][:, :3]
        for offsets, shape in ((table, (rows, columns)), (resized, sides))
    ]
    np.testing.assert_allclose(*near)
    constant = resized_relative_positions(np.full_like(table, 3), old, new)
    np.testing.assert_allclose(constant, 3)


@pytest.mark.parametrize("method", INTERPOLATIONS)
@given(old=GRIDS, new=GRIDS, prefix=st.integers(0, 5))
def test_rows_of_prefix_tokens_do_not_change(method, old, new, prefix):
    if method == "truncate":  # to a smaller grid
        old, new = tuple(map(max, old, new)), tuple(map(min, old, new))
    table = table_of(old, prefix)
    resized = resized_positions(table, old, new, method)
    assert resized.shape == (1, prefix + new[0] * new[1], 3)
    np.testing.assert_array_equal(resized[:, :prefix], table[:, :prefix], strict=True)
    grid = table[0, prefix:].reshape(*old, 3)
    grid = grid if old == new else resize_position_grid(grid, new, method)
    np.testing.assert_array_equal(resized[0, prefix:], grid.reshape(-1, 3))
    np.testing.assert_array_equal(resized_positions(table, old, [*old], method), table, strict=True)
    constant = resized_positions(np.full_like(table, 3), old, new, method)
    np.testing.assert_allclose(constant, np.full_like(resized, 3), rtol=1e-6)


@pytest.mark.parametrize(
    "name, interpolation",
    some([("token", "bilinear"), ("timm_token", "bicubic_antialias"), ("hf_vit", "bicubic")], 3),
)
def test_by_default_the_table_is_resized_as_the_authors_do(golden, name, interpolation):
    file, _, given = GOLDENS[name]
    rows, columns = from_pretrained(golden / file, **given).get_layer("position_embedding").grid_size
    free = from_pretrained(golden / file, **{**given, "image_size": (None, None)})
    assert free.position_interpolation == interpolation
    height, width = ((side + 1) * patch for side, patch in zip((rows, columns + 1), free.patch_size))
    fixed = from_pretrained(golden / file, **{**given, "image_size": (height, width)})
    table = arrays(free)["position_embedding/table"]
    expected = resized_positions(table, (rows, columns), (rows + 1, columns + 2), interpolation)
    np.testing.assert_array_equal(arrays(fixed)["position_embedding/table"], expected)
    images = images_for(fixed)
    assert_close(compute(free, images)["logits"], compute(fixed, images)["logits"], 3e-6)


# Prefix tokens -------------------------------------------------------------------------------------

DISTILLED = {"distillation_token", "head_distillation"}
DROPPED = [  # options, remaining rows of a table with class, distillation, 2 registers and a 2×2 grid
    ({"distillation": False}, [0, 2, 3, 4, 5, 6, 7], DISTILLED),
    ({"distillation": False, "num_registers": 0}, [0, 4, 5, 6, 7], {*DISTILLED, "register_tokens"}),
    ({"pooling": "gap", "distillation": False}, [2, 3, 4, 5, 6, 7], {"class_token", *DISTILLED}),
]


@pytest.mark.parametrize("options, rows, dropped", DROPPED, ids=[str(options) for options, _, _ in DROPPED])
def test_a_dropped_token_takes_its_row_along(options, rows, dropped, tmp_path):
    model = one_block(distillation=True, num_registers=2)
    before = arrays(model)
    after = arrays(from_pretrained(saved(model, tmp_path), **options, head="keep"))
    table = before.pop("position_embedding/table")
    np.testing.assert_array_equal(after.pop("position_embedding/table"), table[:, rows])
    assert {name.split("/")[0] for name in before} - {name.split("/")[0] for name in after} == dropped
    for name, array in after.items():
        np.testing.assert_array_equal(array, before[name])


def test_tokens_are_dropped_before_the_grid_is_resized(tmp_path):
    model = one_block(num_registers=2)
    table = arrays(model)["position_embedding/table"]
    again = from_pretrained(saved(model, tmp_path), num_registers=0, image_size=(24, 8))
    after = arrays(again)["position_embedding/table"]
    np.testing.assert_array_equal(after[:, :1], table[:, :1])
    np.testing.assert_array_equal(after[:, 1:], resized_positions(table[:, 3:], (2, 2), (3, 1)))


def test_a_rectangle_is_resized_from_its_own_grid(tmp_path):
    model = one_block(image_size=(16, 48))
    path = saved(model, tmp_path)
    path.with_suffix(".json").unlink()
    table = arrays(model)["position_embedding/table"]
    wide = from_pretrained(path, num_heads=3, position_grid=(2, 6), image_size=(32, 32))
    expected = resized_positions(table, (2, 6), (4, 4), "bicubic_antialias")  # timm's
    np.testing.assert_array_equal(arrays(wide)["position_embedding/table"], expected)


# Patch kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("old, new", [((8, 8), (16, 16)), ((16, 16), (14, 10)), ((4, 4), (1, 1))])
def test_a_patch_kernel_is_the_least_squares_solution(old, new, rng):
    kernel = rng.standard_normal((*old, 2, 2))
    # Each image is one pixel of a patch; the resize has half-pixel centers and repeats the border.
    pixels = np.eye(old[0] * old[1], dtype="float32").reshape(-1, *old, 1)
    by_pixel = numpy(keras.ops.image.resize(pixels, new, "bilinear")).reshape(len(pixels), -1)
    solved = np.linalg.pinv(by_pixel) @ kernel.reshape(len(pixels), -1)
    assert_close(resized_patch_kernel(kernel, new), solved.reshape(*new, 2, 2), 1e-5)


@by_table("dtype", DTYPES)
def test_what_is_resized_from_16_bits_is_not_rounded_to_them(dtype):
    stored = np.dtype(dtype)
    table, kernel = table_of((2, 2), 1, dtype=stored), np.linspace(0, 1, 8 * 6 * 15).reshape(8, 6, 3, 5)
    kernel, offsets = kernel.astype(stored), table[0, :, :1].repeat(3, 0)[:12]
    for resize, array, *sizes in (
        (resized_positions, table, (2, 2), (3, 3)),
        (resized_relative_positions, offsets, (2, 2), (3, 3)),
        (resized_patch_kernel, kernel, (4, 4)),
        (adapted_channels, kernel, 4),
    ):
        resized = resize(array, *sizes)
        assert resized.dtype == DTYPES[dtype]
        assert_close(resized, resize(array.astype("float64"), *sizes), 1e-6)


@pytest.mark.parametrize("name, patch, size", some([("timm_avg", 4, 16), ("hf_vit", (12, 8), (48, 32))], 2))
def test_a_checkpoint_gets_the_resized_patch_kernel(golden, name, patch, size):
    file, _, given = GOLDENS[name]
    original = arrays(from_pretrained(golden / file, **given))
    model = from_pretrained(golden / file, **given, patch_size=patch, image_size=size)
    patch = model.patch_size
    resized, before = arrays(model), original.pop("patch_embedding/kernel")
    assert_close(resized.pop("patch_embedding/kernel"), resized_patch_kernel(before, patch), 1e-6)
    for other, array in original.items():  # the grid has not changed
        np.testing.assert_array_equal(resized[other], array)


# Input channels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, bound", some([("token", 3e-6), ("hybrid", 1e-4)], 2))
def test_a_gray_image_has_the_outputs_of_its_copy_in_every_channel(golden, name, bound):
    """In a hybrid up to the standardization of the kernel, whose scale the group norm removes."""
    file, _, given = GOLDENS[name]
    color, gray = (from_pretrained(golden / file, **given, **more) for more in ({}, {"in_channels": 1}))
    images = images_for(color)[..., :1]
    repeated = np.repeat(images, 3, axis=-1)
    assert_close(compute(gray, images)["logits"], compute(color, repeated)["logits"], bound)


@pytest.mark.parametrize(
    "name, first", some([("token", "patch_embedding/kernel"), ("hybrid", "conv_root/kernel")], 2)
)
def test_more_channels_repeat_the_stored_ones(golden, name, first):
    file, _, given = GOLDENS[name]
    before, after = (arrays(from_pretrained(golden / file, **given, **m)) for m in ({}, {"in_channels": 4}))
    expected = before.pop(first)[:, :, [0, 1, 2, 0]].astype("float64") * 3 / 4
    np.testing.assert_allclose(after.pop(first), expected, rtol=1e-6)
    assert_same_arrays(after, before)


@pytest.mark.parametrize(
    "channels, mean, std", [(1, (0.5,), (0.3,)), (4, (0.4, 0.5, 0.6, 0.4), (0.2, 0.3, 0.4, 0.2))]
)
def test_the_mean_and_std_of_the_images_have_the_channels(channels, mean, std, tmp_path):
    crop = {"resize": "crop", "crop_fraction": 0.9, "interpolation": "bicubic", "antialias": True}
    stored_with = Preprocessing(16, **crop, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    path = saved(one_block(preprocessing=stored_with), tmp_path)
    found = from_pretrained(path, in_channels=channels, image_size=(24, 16)).preprocessing
    assert (found.mean, found.std) == (pytest.approx(mean, abs=1e-12), pytest.approx(std, abs=1e-12))
    assert found == Preprocessing((24, 16), **crop, mean=found.mean, std=found.std)


def test_without_known_preprocessing_the_official_one_has_the_channels(golden):
    assert from_pretrained(golden / "token.npz", in_channels=5).preprocessing.std == (0.5,) * 5
