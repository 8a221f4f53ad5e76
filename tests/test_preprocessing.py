import dataclasses
import itertools
import json
import os
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from made.photos import FORMATS, ORIENTATIONS, exif, photo
from PIL import Image, ImageOps
from reference.comparing import assert_close, randomise
from reference.small import small

from keras_vit import Preprocessing, preprocessing
from keras_vit.preprocessing import INTERPOLATIONS, as_pixels, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")


def bilinear(image, size):
    """Half-pixel centres, no smoothing: each output point between its four neighbours."""
    image = image.astype("float64")
    for axis, new in enumerate(size):
        old = image.shape[axis]
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high, share = np.minimum(low + 1, old - 1), at - low
        share = share.reshape([-1 if a == axis else 1 for a in range(3)])
        image = image.take(low, axis) * (1 - share) + image.take(high, axis) * share
    return image


def test_pixels_become_minus_one_to_one_as_the_official_models_want():
    output = Preprocessing(None)(PIXELS)
    assert output.dtype == "float32"
    assert_close(output[0], (PIXELS - 127.5) / 127.5, 1e-6)


@pytest.mark.parametrize("size", [(7, 9), (40, 60), (20, 10), (33, 30)])
def test_squash_resizes_straight_to_the_size_without_smoothing(size):
    expected = (bilinear(PIXELS, size) - 127.5) / 127.5
    assert_close(Preprocessing(size)(PIXELS)[0], expected, 1e-5)


def test_smoothing_can_be_asked_for():
    plain, smooth = (Preprocessing(5, antialias=a)(PIXELS) for a in (False, True))
    assert smooth.std() < 0.6 * plain.std()


def test_mean_and_deviation_are_per_channel_and_of_pixels_up_to_one():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    output = Preprocessing(None, mean=mean, std=std)(PIXELS)
    assert_close(output[0], (PIXELS / 255 - mean) / std, 1e-5)


def test_colors_are_the_way_back_and_no_more_than_black_and_white(rng):
    images = rng.random((2, 8, 8, 3), "float32")
    preprocessing = Preprocessing(8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    x = preprocessing(images)
    np.testing.assert_allclose(preprocessing.colors(x), images, atol=1e-6)
    np.testing.assert_array_equal(preprocessing.colors(np.full_like(x, 9)), 1)
    np.testing.assert_array_equal(preprocessing.colors(np.full_like(x, -9)), 0)


@pytest.mark.parametrize("channels", [1, 2])
def test_colors_of_grey_or_of_bands_are_grey(channels, rng):
    images = rng.random((2, 8, 8, channels), "float32")
    preprocessing = Preprocessing(8, mean=(0.5, 0.3)[:channels], std=(0.2, 0.4)[:channels])
    expected = np.repeat(images.mean(axis=-1, keepdims=True), 3, axis=-1)
    x = preprocessing(images)
    np.testing.assert_allclose(preprocessing.colors(x), expected, atol=1e-6)
    np.testing.assert_allclose(preprocessing.colors(x[0]), expected[0], atol=1e-6)


def test_crop_takes_the_centre_of_the_resized_image():
    """20×30 with 16 as half of the shorter side: resized to 32×48, from which the middle is cut."""
    output = Preprocessing(16, resize="crop", crop_fraction=0.5)(PIXELS)
    expected = bilinear(PIXELS, (32, 48))[8:24, 16:32]
    assert_close(output[0], (expected - 127.5) / 127.5, 1e-5)


@pytest.mark.parametrize("shape", [(3, 101), (101, 3), (1, 60), (40, 1111), (300, 5200), (9, 151)])
@pytest.mark.parametrize("size, fraction", [((24, 24), 0.875), ((20, 37), 1.0)])
def test_of_a_long_image_only_the_part_that_is_kept_is_resized_to_the_same_pixels(
    shape, size, fraction, rng, monkeypatch
):
    image = rng.integers(0, 256, (*shape, 3)).astype("uint8")
    # JAX takes a neighbouring pixel for the nearest.
    kinds = INTERPOLATIONS if keras.backend.backend() == "tensorflow" else ("bilinear", "bicubic")
    for interpolation, antialias in itertools.product(kinds, (False, True)):
        options = {"interpolation": interpolation, "antialias": antialias, "mean": (0,) * 3, "std": (1,) * 3}
        prepare = Preprocessing(size, "crop", fraction, **options)
        part = prepare(image) * 255
        with monkeypatch.context() as patched:
            patched.setattr(preprocessing, "MAX_ENLARGEMENT", np.inf)
            whole = prepare(image) * 255
        bound = 0.02 if antialias else 5e-4
        np.testing.assert_allclose(
            part, whole, atol=bound if keras.backend.backend() == "tensorflow" else 0.5
        )


def test_a_long_image_takes_no_more_memory_than_it_has_itself(tmp_path):
    Image.fromarray(np.zeros((1, 60_000), "uint8")).save(tmp_path / "long.png")
    prepare = Preprocessing(224, "crop", 0.875, "bicubic", antialias=True)
    tracemalloc.start()
    prepare(tmp_path / "long.png")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 600), st.integers(1, 600)),
    st.floats(0.1, 1),
)
def test_the_crop_lies_inside_the_resized_image_at_its_centre(size, image, fraction):
    enlarged, top, left = Preprocessing(size, resize="crop", crop_fraction=fraction).crop_window(*image)
    for side, start, wanted in zip(enlarged, (top, left), size):
        assert 0 <= start <= side - wanted
        assert abs(start - (side - wanted) / 2) <= 0.5


def test_one_image_and_lists_of_any_sizes_are_batches(tmp_path):
    prepare = Preprocessing(8)
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    mixed = prepare([PIXELS, tmp_path / "a.png", str(tmp_path / "a.png"), PIXELS[:10], PIXELS / 255.0])
    assert mixed.shape == (5, 8, 8, 3)
    for same in (1, 2, 4):
        np.testing.assert_allclose(mixed[same], mixed[0], atol=1e-6)
    assert prepare(PIXELS).shape == (1, 8, 8, 3)
    assert prepare(tmp_path / "a.png").shape == (1, 8, 8, 3)
    assert prepare(np.stack([PIXELS] * 2)).shape == (2, 8, 8, 3)


def test_no_images_are_an_empty_batch():
    assert Preprocessing(8)([]).shape == (0, 8, 8, 3)
    assert Preprocessing(8)(np.zeros((0, 5, 5, 3), "uint8")).shape == (0, 8, 8, 3)


def test_batches_are_the_same_in_parts():
    images = [PIXELS[i : i + 10] for i in range(5)]
    parts = [*Preprocessing(8).batches(images, 2)]
    assert [len(part) for part in parts] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate(parts), Preprocessing(8)(images))


@pytest.mark.parametrize(
    "name", ["grey.png", "palette.gif", "alpha.png", "photo.jpg", "plain.bmp", "new.webp", "scan.tiff"]
)
def test_image_files_of_every_kind_are_read_as_rgb(name, tmp_path):
    image = Image.fromarray(PIXELS)
    modes = {"grey": "L", "palette": "P", "alpha": "RGBA"}
    image = image.convert(modes.get(name.split(".")[0], "RGB"))
    image.save(tmp_path / name)
    read = read_image(tmp_path / name)
    assert read.shape == (20, 30, 3)
    assert read.dtype == "uint8"
    reference = np.asarray(image.convert("RGB")).astype(int)
    lossy = name in ("photo.jpg", "new.webp")
    assert np.abs(read - reference).mean() <= (60 if lossy else 0)


def test_channels_are_repeated_dropped_or_mixed_to_the_models():
    grey = np.arange(6, dtype="uint8").reshape(2, 3)
    for image in (grey, grey[..., np.newaxis]):
        assert_close(as_pixels(image, 3), np.repeat(grey[..., np.newaxis], 3, -1), 0)
    alpha = np.concatenate([PIXELS, PIXELS[..., :1]], -1)
    assert_close(as_pixels(alpha, 3), PIXELS, 0)
    assert_close(as_pixels(PIXELS, 1)[..., 0], PIXELS @ [0.299, 0.587, 0.114], 1e-6)
    with pytest.raises(ValueError, match="the model reads 4 channels; got an image with 3"):
        as_pixels(PIXELS, 4)


def test_floats_up_to_one_are_pixels_up_to_255():
    assert_close(as_pixels(PIXELS / 255, 3), PIXELS, 1e-6)


@pytest.mark.parametrize(
    "image, message",
    [
        (PIXELS.astype("float32"), r"float images must be in \[0, 1\] .*; got values from 0 to 255"),
        (np.full((2, 2, 3), np.nan), "float images must be in"),
        (-(PIXELS / 255), "float images must be in"),
        (PIXELS.astype("int64"), "uint8 or float in .*; got int64"),
        (np.zeros((2, 2), bool), "uint8 or float in .*; got bool"),
        (np.zeros((0, 4, 3), "uint8"), r"got \(0, 4, 3\)"),
        (np.zeros(5, "uint8"), "of rank 1"),
        (np.zeros((1, 2, 3, 4, 5), "uint8"), "of rank 5"),
        ([np.zeros((1, 2, 3, 3), "uint8")], r"must have the shape .*got \(1, 2, 3, 3\)"),
        (7, "got int of rank 0"),
        (np.zeros((3, 64, 64), "uint8"), "reads 3 channels; got an image with 64, .*put the channels last"),
        (np.zeros((2, 3, 64, 64), "uint8"), r"of the shape \(3, 64, 64\) \(put the channels last"),
        (np.zeros((224, 224, 5), "uint8"), r"reads 3 channels; got an image with 5, .*\(224, 224, 5\)"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(image, message):
    with pytest.raises(ValueError, match=message) as caught:
        Preprocessing(8)(image)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_images_are_named(tmp_path):
    (tmp_path / "notes.png").write_text("hello")
    Image.fromarray(PIXELS).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:600])
    for name, message in (
        ("notes.png", "not a readable image: .*notes.png"),
        ("half.png", "not a readable image: .*half.png"),
        ("none.png", "no such image file: .*none.png"),
        ("", "not a readable image"),
    ):
        with pytest.raises(ValueError, match=message):
            Preprocessing(8)(tmp_path / name)


def test_pipes_and_devices_are_no_images(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "device.png"):
        with pytest.raises(ValueError, match=f"not a readable image: .*{name} .it is no plain file"):
            Preprocessing(8)(tmp_path / name)


def test_images_of_several_sizes_need_a_size():
    with pytest.raises(ValueError, match=r"one size; got \[\(10, 30, 3\), \(20, 30, 3\)\]"):
        Preprocessing(None)([PIXELS, PIXELS[:10]])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"image_size": 0}, "image_size must be .*; got 0"),
        ({"image_size": (4,)}, r"image_size must be .*; got \(4,\)"),
        ({"image_size": (4, None)}, "image_size must be"),
        ({"resize": "pad"}, "resize 'pad' is unknown; choose one of .*squash.*crop"),
        ({"interpolation": "lanczos3"}, "interpolation 'lanczos3' is unknown"),
        ({"crop_fraction": 0}, r"crop_fraction must be in \(0, 1\]; got 0"),
        ({"crop_fraction": [1, 2]}, r"crop_fraction must be in \(0, 1\]; got \[1, 2\]"),
        ({"antialias": "no"}, "antialias must be True or False; got 'no'"),
        ({"crop_fraction": 1.1}, r"crop_fraction must be in \(0, 1\]; got 1.1"),
        ({"mean": (0.5,)}, "mean and std need one number per channel"),
        ({"std": (1, 0, 1)}, "std positive"),
        *[
            ({"mean": (0, number, 0)}, "that float32 holds")
            for number in (np.nan, np.inf, 1e-320, 10**400, None)
        ],
        *[
            ({"std": (1, number, 1)}, "that float32 holds")
            for number in (np.nan, np.inf, 1e-320, 10**400, "1")
        ],
        ({"image_size": 10**9}, "at most 89478485 pixels; got"),
        ({"resize": "crop", "crop_fraction": 1e-9}, "at most 89478485 pixels; got .* 1e-09"),
        ({"crop_fraction": 1e-320}, "at most 89478485 pixels"),
        ({"crop_fraction": np.nan}, r"must be in \(0, 1\]"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**{"image_size": 8, **options})


def test_its_configuration_makes_the_same_again():
    made = Preprocessing((8, 9), "crop", 0.9, "bicubic", True, (0.1, 0.2, 0.3), (1, 2, 3))
    again = Preprocessing(**json.loads(json.dumps(made.get_config())))
    assert again == made
    assert hash(again) == hash(made)
    assert {f.name for f in dataclasses.fields(made)} == {*made.get_config()}


def test_it_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Preprocessing(8).resize = "crop"


def test_of_16_bits_the_upper_8_are_kept(tmp_path):
    ramp = np.arange(0, 65536, 257, dtype="uint16").reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(read_image(tmp_path / "deep.png")[..., 0], ramp >> 8)


@pytest.mark.parametrize("name", FORMATS)
def test_photos_are_read_in_their_orientation(name, tmp_path):
    for number in ORIENTATIONS:
        (tmp_path / "photo").write_bytes(photo(number, name, exif=exif(number, "<>"[number % 2])))
        expected = ImageOps.exif_transpose(Image.open(tmp_path / "photo"))
        np.testing.assert_array_equal(read_image(tmp_path / "photo"), expected)


def test_an_image_of_six_channels_is_one_image():
    six = Preprocessing(8, mean=(0.5,) * 6, std=(0.5,) * 6)
    assert six(np.zeros((20, 30, 6), "uint8")).shape == (1, 8, 8, 6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"image_size": 32.0}, "image_size must be a positive int, .* got 32.0"),
        ({"image_size": 32, "mean": 0.5, "std": 0.5}, "mean and std need one number per channel.* got 0.5"),
    ],
)
def test_a_value_of_another_kind_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**arguments)


# Tensors ------------------------------------------------------------------------------------------

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
PHOTOS = np.random.default_rng(1).integers(0, 256, (2, 50, 70, 3)).astype("uint8")
WAYS = [
    Preprocessing((24, 40)),
    Preprocessing(None, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    Preprocessing((50, 70)),
    Preprocessing((24, 40), "crop", 0.875),
    Preprocessing(32, "crop", 0.9, "bicubic", antialias=True),
    *[Preprocessing(64, "crop", 1.0, "nearest")] * ON_TENSORFLOW,  # JAX takes another of two equally near
]
BOUND = 1e-6 if ON_TENSORFLOW else 2e-3  # the documented ones, for a standard deviation of 0.5


def bound_of(prepare):
    return BOUND * 0.5 / min(prepare.std)


@pytest.mark.parametrize("prepare", WAYS, ids=str)
@pytest.mark.parametrize("size", [(None, None), (50, None), (50, 70)], ids=str)
def test_a_graph_gives_what_arrays_give(prepare, size):
    graph = tf.function(prepare, input_signature=[tf.TensorSpec((None, *size, 3), tf.uint8)])
    shape = prepare.image_size or size
    assert graph.get_concrete_function().output_shapes == (None, *shape, 3)
    np.testing.assert_allclose(graph(PHOTOS), prepare(PHOTOS), rtol=0, atol=bound_of(prepare))


@pytest.mark.parametrize("prepare", WAYS, ids=str)
def test_a_tensor_gives_a_tensor_of_its_rank(prepare):
    batch, one = (keras.ops.convert_to_tensor(x) for x in (PHOTOS, PHOTOS[0]))
    assert keras.ops.is_tensor(prepare(batch))
    np.testing.assert_allclose(prepare(batch), prepare(PHOTOS), rtol=0, atol=2e-6)
    np.testing.assert_allclose(prepare(one), prepare(PHOTOS)[0], rtol=0, atol=2e-6)


def test_a_data_pipeline_prepares_images_of_any_sizes_before_they_are_a_batch():
    prepare = Preprocessing(16, "crop", 0.875)
    images = [PHOTOS[0], PHOTOS[1, :20], PHOTOS[1, :, :16]]
    spec = (tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: zip(images, range(3)), output_signature=spec)
    data = data.map(lambda x, y: (prepare(x), y)).batch(3)
    assert data.element_spec[0].shape == (None, 16, 16, 3)
    ((found, labels),) = data.as_numpy_iterator()
    np.testing.assert_allclose(found, prepare(images), rtol=0, atol=BOUND)
    assert [*labels] == [0, 1, 2]


@pytest.mark.parametrize("value_range", [(0, 255), (0, 1), (-1, 1), None])
def test_floats_of_any_range_are_the_same_images(value_range):
    prepare = Preprocessing(16)
    low, high = value_range or (0, 1)
    floats = (PHOTOS / 255 * (high - low) + low).astype("float32")
    mapped = tf.data.Dataset.from_tensors(floats).map(lambda x: prepare(x, value_range))
    layer = prepare.as_layer(value_range)
    found = [next(mapped.as_numpy_iterator()), prepare(floats, value_range), layer(floats)]
    found.append(np.concatenate([*prepare.batches(floats, 1, value_range)]))
    for one in found:
        np.testing.assert_allclose(one, prepare(PHOTOS), rtol=0, atol=5e-6)


OUTSIDE = (
    r"float images must be in \[0, 1\] \(give .* value_range=\(0, 255\).*\); got values from\W+0\W+to\W+255"
)


def test_floats_up_to_255_are_never_taken_for_floats_up_to_one():
    prepare = Preprocessing(16)
    floats = PHOTOS.astype("float32")
    floats[0, 0, 0] = 0, 255, 255
    for make in (np.asarray, tf.constant, keras.ops.convert_to_tensor):
        with pytest.raises(ValueError, match=OUTSIDE) as caught:
            prepare(make(floats))
        assert "\n" not in str(caught.value)
    mapped = tf.data.Dataset.from_tensors(floats).map(prepare)
    with pytest.raises(tf.errors.InvalidArgumentError, match=OUTSIDE):
        next(iter(mapped))


def test_where_a_graph_cannot_raise_the_output_is_nan():
    """XLA drops assertions, and JAX has none."""
    prepare = Preprocessing(16)
    if ON_TENSORFLOW:
        compiled = tf.function(prepare, jit_compile=True)
    else:
        import jax

        compiled = jax.jit(prepare)
    assert np.isnan(compiled(PHOTOS.astype("float32"))).all()
    np.testing.assert_allclose(compiled(PHOTOS / np.float32(255)), prepare(PHOTOS), rtol=0, atol=5e-6)


def test_what_an_earlier_step_has_rounded_is_inside_the_range():
    rounded = np.full((1, 4, 4, 3), 1.00001, "float32")
    for images in (rounded, tf.constant(rounded)):
        np.testing.assert_allclose(Preprocessing(None)(images), np.ones((1, 4, 4, 3)), atol=1e-4)


@pytest.mark.parametrize("value_range", [255, (1, 0), (0, np.nan), (0, 1, 2), "01"])
def test_a_value_range_is_two_numbers_in_order(value_range):
    for call in (Preprocessing(8).as_layer, lambda given: Preprocessing(8)(PIXELS / 255, given)):
        with pytest.raises(ValueError, match=r"value_range must be \(lowest, highest\).*; got"):
            call(value_range)


@pytest.mark.parametrize(
    "tensor, message",
    [
        (tf.zeros((2, 3, 8, 8), tf.uint8), "reads 3 channels; got an image with 8, .*put the channels last"),
        (tf.zeros((8, 8), tf.uint8), r"must have the shape .*; got \(8, 8\)"),
        (tf.zeros((8, 8, 3), tf.int32), "uint8 or float in .*; got int32"),
        (tf.ragged.stack([PHOTOS[0], PHOTOS[0, :9]]), "a dense tensor, all of one size; got a RaggedTensor"),
        (keras.KerasTensor((None, 8, 8, 2), "uint8"), "reads 3 channels; got an image with 2"),
    ],
    ids=["first", "rank", "dtype", "ragged", "symbolic"],
)
def test_a_tensor_that_is_no_image_is_refused(tensor, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(8)(tensor)


def test_an_image_of_unknown_rank_is_refused():
    """`tf.io.decode_image` makes one unless it is asked not to."""
    encoded = tf.data.Dataset.from_tensors(tf.io.encode_png(PIXELS))
    with pytest.raises(ValueError, match="of a known rank and channel count; got <unknown>"):
        encoded.map(lambda png: Preprocessing(8)(tf.io.decode_image(png)))
    with pytest.raises(ValueError, match="of a known rank and channel count; got"):
        encoded.map(lambda png: Preprocessing(8)(tf.io.decode_png(png)))


def test_grey_and_alpha_tensors_are_read_as_arrays_are():
    alpha = np.concatenate([PHOTOS, PHOTOS[..., :1]], -1)
    for images, prepare in (
        (PHOTOS[..., :1], Preprocessing(8)),
        (alpha, Preprocessing(8)),
        (PHOTOS, Preprocessing(8, mean=(0.5,), std=(0.5,))),
        (alpha, Preprocessing(8, mean=(0.5,), std=(0.5,))),
    ):
        np.testing.assert_allclose(prepare(tf.constant(images)), prepare(images), rtol=0, atol=5e-6)


@pytest.mark.parametrize("channels, counts", [(1, (2, 3, 33)), (3, (1, 2, 33))])
def test_a_batch_of_grey_images_needs_no_channels(channels, counts):
    half = (0.5,) * channels
    prepare = Preprocessing(8, mean=half, std=half)
    for count in counts:
        images = np.zeros((count, 28, 20), "uint8")
        assert prepare(images).shape == (count, 8, 8, channels)
    # The last batch of these is (3, 28, 20), which alone could have its channels first.
    assert [len(x) for x in prepare.batches(np.zeros((35, 28, 20), "uint8"), 32)] == [32, 3]
    assert prepare(np.zeros((60, 8, 8), "uint8")).shape == (60, 8, 8, channels)
    assert prepare(np.zeros((28, 28, 3), "uint8")).shape == (1, 8, 8, channels)


# As a layer ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier():
    return randomise(small(num_layers=1))


def test_it_stands_in_front_of_a_model_and_is_saved_with_it(classifier, tmp_path):
    layer = classifier.preprocessing.as_layer(value_range=(0, 255), name="prepare")
    whole = keras.Sequential([keras.Input((None, None, 3), dtype="uint8"), layer, classifier])
    expected = classifier.predict(classifier.preprocessing(PHOTOS), verbose=0)
    assert_close(whole.predict(PHOTOS, verbose=0), expected, 1e-5)
    whole.save(tmp_path / "whole.keras")
    again = keras.saving.load_model(tmp_path / "whole.keras")
    np.testing.assert_array_equal(again.predict(PHOTOS, verbose=0), whole.predict(PHOTOS, verbose=0))
    prepare = again.get_layer("prepare")
    assert (prepare.preprocessing, prepare.value_range) == (classifier.preprocessing, (0, 255))
    if ON_TENSORFLOW:
        again.export(tmp_path / "exported", verbose=False)
        exported = tf.saved_model.load(str(tmp_path / "exported"))
        assert_close(exported.serve(PHOTOS), expected, 1e-5)


def test_a_symbolic_input_makes_a_functional_model_and_adds_nothing_to_the_classifier(classifier):
    before = [layer.name for layer in classifier._flatten_layers()]
    images = keras.Input((50, 70, 3), dtype="uint8")
    whole = keras.Model(images, classifier(classifier.preprocessing(images)))
    expected = classifier.predict(classifier.preprocessing(PHOTOS), verbose=0)
    assert_close(whole.predict(PHOTOS, verbose=0), expected, 1e-5)
    assert whole.count_params() == classifier.count_params()
    assert [layer.name for layer in classifier._flatten_layers()] == before


def test_a_sequential_without_an_input_says_how_to_call_the_layer(classifier):
    """Keras then casts uint8 to float32 before the layer sees it."""
    whole = keras.Sequential([classifier.preprocessing.as_layer(), classifier])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="float images must be in"):
        whole.predict(PHOTOS, verbose=0)


def test_under_mixed_precision_pixels_are_rounded_last():
    layer = Preprocessing(8).as_layer(dtype="mixed_bfloat16")
    output = layer(PHOTOS / 255)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    exact = keras.ops.cast(keras.ops.convert_to_tensor(Preprocessing(8)(PHOTOS)), "bfloat16")
    difference = keras.ops.cast(output, "float32") - keras.ops.cast(exact, "float32")
    assert np.abs(keras.ops.convert_to_numpy(difference)).max() < 1e-2
