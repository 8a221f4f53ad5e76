"""`Preprocessing` of tensors, in graphs and as a layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close, randomize
from reference.small import small

from keras_vit import Preprocessing

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
PHOTOS = np.random.default_rng(1).integers(0, 256, (2, 50, 70, 3)).astype("uint8")
TOLERANCE = 1e-6 if ON_TENSORFLOW else 2e-3  # the documented ones, for a std of 0.5
PREPROCESSINGS = [
    Preprocessing((24, 40)),
    Preprocessing(None, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    Preprocessing((24, 40), "crop", 0.875),
    Preprocessing((24, 40), "squash_crop", 0.3),
    Preprocessing((24, 40), "pad", interpolation="bicubic"),
    Preprocessing(32, "crop", 0.9, "bicubic", antialias=True),
    *[Preprocessing(64, "crop", 1.0, "nearest")] * ON_TENSORFLOW,  # JAX chooses another of two equally near
]


@pytest.mark.parametrize("prepare", some(PREPROCESSINGS, 3), ids=str)
def test_graphs_and_tensors_return_what_arrays_return(prepare):
    size = (None, None)
    graph = tf.function(prepare, input_signature=[tf.TensorSpec((None, *size, 3), tf.uint8)])
    assert graph.get_concrete_function().output_shapes == (None, *(prepare.image_size or size), 3)
    expected, tolerance = prepare(PHOTOS), TOLERANCE * 0.5 / min(prepare.std)
    np.testing.assert_allclose(graph(PHOTOS), expected, rtol=0, atol=tolerance)
    batch, one = (keras.ops.convert_to_tensor(x) for x in (PHOTOS, PHOTOS[0]))
    assert keras.ops.is_tensor(prepare(batch))
    tolerance = 2e-6 if keras.backend.backend() == "tensorflow" else 1e-5  # TensorFlow resizes arrays
    np.testing.assert_allclose(prepare(batch), expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(prepare(one), expected[0], rtol=0, atol=tolerance)


def test_a_graph_computes_a_small_crop_alone():
    prepare = Preprocessing((24, 40), "squash_crop", 0.05)
    graph = tf.function(prepare, input_signature=[tf.TensorSpec((None, None, None, 3), tf.uint8)])
    np.testing.assert_allclose(graph(PHOTOS), prepare(PHOTOS), rtol=0, atol=2e-5)


def test_a_data_pipeline_prepares_images_of_any_sizes_before_they_are_batched():
    prepare = Preprocessing(16, "crop", 0.875)
    images = [PHOTOS[0], PHOTOS[1, :20], PHOTOS[1, :, :16]]
    spec = (tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: zip(images, range(3)), output_signature=spec)
    data = data.map(lambda x, y: (prepare(x), y)).batch(3)
    assert data.element_spec[0].shape == (None, 16, 16, 3)
    ((found, labels),) = data.as_numpy_iterator()
    np.testing.assert_allclose(found, prepare(images), rtol=0, atol=TOLERANCE)
    assert [*labels] == [0, 1, 2]


@pytest.mark.parametrize("value_range", [(0, 255), (-1, 1), None])
def test_floats_of_any_range_are_the_same_images(value_range):
    prepare = Preprocessing(16)
    low, high = value_range or (0, 1)
    floats = (PHOTOS / 255 * (high - low) + low).astype("float32")
    mapped = tf.data.Dataset.from_tensors(floats).map(lambda x: prepare(x, value_range))
    batches = np.concatenate([*prepare.batches(floats, 1, value_range)])
    layer = prepare.as_layer(value_range)
    for each in (next(mapped.as_numpy_iterator()), prepare(floats, value_range), layer(floats), batches):
        np.testing.assert_allclose(each, prepare(PHOTOS), rtol=0, atol=5e-6)


OUTSIDE = (
    r"float images must be in \[0, 1\] \(pass .* value_range=\(0, 255\).*\); got values from\W+0\W+to\W+255"
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


@pytest.mark.parametrize("value_range", [255, (1, 0), "01"])
def test_a_value_range_is_two_numbers_in_order(value_range):
    for call in (Preprocessing(8).as_layer, lambda value: Preprocessing(8)(PHOTOS / 255, value)):
        with pytest.raises(ValueError, match=r"value_range must be \(lowest, highest\).*; got"):
            call(value_range)


@by_table(
    "tensor, message",
    [
        (tf.zeros((2, 3, 8, 8), tf.uint8), "reads 3 channels; got an image with 8, .*put the channels last"),
        (tf.zeros((8, 8), tf.uint8), r"of known rank and channels; got the shape \(8, 8\)"),
        (tf.zeros((8, 8, 3), tf.int32), "uint8 or float in .*; got int32"),
        (tf.ragged.stack([PHOTOS[0], PHOTOS[0, :9]]), "a dense tensor of one image size; got a RaggedTensor"),
        (keras.KerasTensor((None, 8, 8, 2), "uint8"), "reads 3 channels; got an image with 2"),
    ],
    ids=["first", "rank", "dtype", "ragged", "symbolic"],
)
def test_a_tensor_that_is_not_an_image_is_refused(tensor, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(8)(tensor)


@pytest.mark.parametrize("decode", [tf.io.decode_image, tf.io.decode_png])
def test_an_image_of_unknown_rank_or_channels_is_refused(decode):
    encoded = tf.data.Dataset.from_tensors(tf.io.encode_png(PHOTOS[0]))
    with pytest.raises(ValueError, match="of known rank and channels; got"):
        encoded.map(lambda png: Preprocessing(8)(decode(png)))


def test_gray_and_alpha_tensors_are_read_as_arrays_are():
    color, gray = Preprocessing(8), Preprocessing(8, mean=(0.5,), std=(0.5,))
    alpha = np.concatenate([PHOTOS, PHOTOS[..., :1]], -1)
    for images, prepare in ((PHOTOS[..., :1], color), (alpha, color), (PHOTOS, gray), (alpha, gray)):
        np.testing.assert_allclose(prepare(tf.constant(images)), prepare(images), rtol=0, atol=5e-6)


@pytest.fixture(scope="module")
def classifier():
    return randomize(small(num_layers=1))


@pytest.mark.slow
def test_the_layer_is_saved_with_the_model_after_it(classifier, tmp_path):
    layer = classifier.preprocessing.as_layer(value_range=(0, 255), name="prepare")
    whole = keras.Sequential([keras.Input((None, None, 3), dtype="uint8"), layer, classifier])
    expected = classifier.predict(classifier.preprocessing(PHOTOS), verbose=0)
    assert_close(whole.predict(PHOTOS, verbose=0), expected, 1e-5)
    whole.save(tmp_path / "whole.keras")
    again = keras.saving.load_model(tmp_path / "whole.keras")
    np.testing.assert_array_equal(again.predict(PHOTOS, verbose=0), whole.predict(PHOTOS, verbose=0))
    prepare = again.get_layer("prepare")
    assert (prepare.preprocessing, prepare.value_range) == (classifier.preprocessing, (0, 255))


def test_a_sequential_model_without_an_input_explains_the_value_range(classifier):
    """Keras then casts uint8 to float32 before the layer is called."""
    whole = keras.Sequential([classifier.preprocessing.as_layer(), classifier])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="float images must be in"):
        whole.predict(PHOTOS, verbose=0)


def test_mixed_precision_rounds_the_output_only():
    output = Preprocessing(8).as_layer(dtype="mixed_bfloat16")(PHOTOS / 255)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    output = keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))
    np.testing.assert_allclose(output, Preprocessing(8)(PHOTOS), atol=1e-2)
