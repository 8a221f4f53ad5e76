import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.folders import picture, write_classes
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.data.datasets import Samples, load_dataset

AUGMENTED = {"crop_area": (0.3, 1.0), "shift": 0.1, "flip": True}


def numbered(count):
    """Images of one pixel that hold their own number."""

    def encode(number):
        file = io.BytesIO()
        Image.fromarray(np.full((1, 1, 3), number, "uint8")).save(file, "PNG")
        return file.getvalue()

    return Samples(tuple(encode(i) for i in range(count)), tuple(i % 3 for i in range(count)))


NUMBERED = numbered(40)
PIXEL = Preprocessing(None, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))  # keeps 0 to 255


def numbers(batches):
    return [images[:, 0, 0, 0].round().astype(int).tolist() for images, _ in batches.as_numpy_iterator()]


def some(count):
    return NUMBERED.take(range(count))


@settings(max_examples=12)
@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 17),
    seed=st.integers(0, 2**31),
    first=st.integers(0, 6),
)
def test_batches_from_a_later_step_are_those_of_the_whole_stream(count, batch_size, seed, first):
    def batches(first_step):
        return numbers(
            training_batches(some(count), PIXEL, batch_size, seed=seed, steps=6, first_step=first_step)
        )

    whole = batches(0)
    assert [len(batch) for batch in whole] == [batch_size] * 6
    assert batches(first) == whole[first:]


@settings(max_examples=12)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 17), seed=st.integers(0, 2**31))
def test_every_pass_shows_every_sample_once(count, batch_size, seed):
    steps = -(-3 * count // batch_size)
    batches = training_batches(some(count), PIXEL, batch_size, seed=seed, steps=steps)
    stream = [number for batch in numbers(batches) for number in batch][: 3 * count]
    for start in range(0, 3 * count, count):
        assert sorted(stream[start : start + count]) == [*range(count)]


@settings(max_examples=12)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 17))
def test_evaluation_shows_every_sample_once_and_in_order(count, batch_size):
    batches = numbers(evaluation_batches(some(count), PIXEL, batch_size))
    assert [number for batch in batches for number in batch] == [*range(count)]
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}


def test_each_pass_and_each_seed_has_an_order_of_its_own():
    def passes(seed):
        batches = numbers(training_batches(NUMBERED, PIXEL, 40, seed=seed, steps=4))
        return [tuple(batch) for batch in batches]

    assert passes(0) == passes(0)
    orders = {tuple(range(40)), *passes(0), *passes(1)}
    assert len(orders) == 9


def test_no_position_is_dear_to_a_sample():
    """Over many passes each of 8 samples comes first about equally often."""
    batches = numbers(training_batches(some(8), PIXEL, 8, seed=0, steps=800))
    first = np.bincount([batch[0] for batch in batches], minlength=8)
    assert (abs(first - 100) < 45).all(), first


@pytest.mark.parametrize("options", [{}, AUGMENTED], ids=["plain", "augmented"])
@pytest.mark.parametrize("name", ["digits", "folder"])
def test_images_and_labels_resume_bit_for_bit(name, options, tmp_path):
    name = name if name == "digits" else f"folder:{write_classes(tmp_path / 'images')}"
    samples = load_dataset(name).split("train").take(range(12))

    def batches(first_step):
        made = training_batches(
            samples, Preprocessing(16), 5, seed=3, steps=7, first_step=first_step, **options
        )
        return [*made.as_numpy_iterator()]

    whole = batches(0)
    for first_step in (0, 1, 4, 6):
        rest = batches(first_step)
        assert len(rest) == 7 - first_step
        for (images, labels), (expected_images, expected_labels) in zip(rest, whole[first_step:]):
            np.testing.assert_array_equal(images, expected_images)
            np.testing.assert_array_equal(labels, expected_labels)


def test_a_sample_is_augmented_differently_in_each_pass():
    samples = load_dataset("digits").split("train").take([0])
    batches = training_batches(samples, Preprocessing(16), 1, seed=0, steps=6, **AUGMENTED)
    images = [images for images, _ in batches.as_numpy_iterator()]
    assert len({image.tobytes() for image in images}) == 6


def test_another_seed_augments_differently():
    samples = load_dataset("digits").split("train").take([0])
    images = {
        next(
            training_batches(
                samples, Preprocessing(16), 1, seed=seed, steps=1, **AUGMENTED
            ).as_numpy_iterator()
        )[0].tobytes()
        for seed in range(6)
    }
    assert len(images) == 6


@pytest.mark.parametrize("name", AUGMENTED)
def test_each_augmentation_can_be_switched_on_alone(name):
    samples = load_dataset("digits").split("train").take([0])

    def images(**options):
        batches = training_batches(samples, Preprocessing(16), 1, seed=0, steps=6, **options)
        return {images.tobytes() for images, _ in batches.as_numpy_iterator()}

    assert len(images()) == 1
    # Of an 8×8 scan few crops differ.
    assert len(images(**{name: AUGMENTED[name]})) >= {"crop_area": 3, "shift": 6, "flip": 2}[name]


def test_grey_models_get_grey_training_images(tmp_path):
    samples = load_dataset(f"folder:{write_classes(tmp_path / 'images')}").split("train")
    grey = Preprocessing(16, mean=(0.5,), std=(0.5,))
    images, _ = next(iter(training_batches(samples, grey, 4, seed=0, steps=1, **AUGMENTED)))
    assert images.shape == (4, 16, 16, 1)
    with pytest.raises(ValueError, match="1 or 3 channels, but the model reads 4"):
        training_batches(samples, Preprocessing(16, mean=(0.5,) * 4, std=(0.5,) * 4), 4, seed=0, steps=1)


def test_crops_need_a_size_to_come_to():
    with pytest.raises(ValueError, match="give the preprocessing an image_size"):
        training_batches(numbered(4), Preprocessing(None), 4, seed=0, steps=1, crop_area=(0.5, 1.0))


def test_each_image_keeps_its_label(tmp_path):
    dataset = load_dataset(f"folder:{write_classes(tmp_path / 'images', ('a', 'b', 'c'))}")
    samples, preprocessing = dataset.split("train"), Preprocessing(32)
    means = {preprocessing(picture(label, n)).mean().item(): label for label in range(3) for n in range(10)}
    seen = 0
    for batches in (
        training_batches(samples, preprocessing, 8, seed=0, steps=3),
        evaluation_batches(samples, preprocessing, 8),
    ):
        for images, labels in batches.as_numpy_iterator():
            assert images.dtype == np.float32 and labels.dtype == np.int32
            for image, label in zip(images, labels):
                nearest = min(means, key=lambda mean: abs(mean - image.mean()))
                assert means[nearest] == label
                seen += 1
    assert seen == 24 + len(samples)


@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_prepares_images_as_preprocessing_does(channels, tmp_path):
    root = write_classes(tmp_path / "images")
    samples = load_dataset(f"folder:{root}").split("test")
    colours = {"mean": (0.4,) * channels, "std": (0.2,) * channels}
    preprocessing = Preprocessing((20, 28), interpolation="bicubic", **colours)
    images = np.concatenate(
        [images for images, _ in evaluation_batches(samples, preprocessing, 3).as_numpy_iterator()]
    )
    np.testing.assert_allclose(images, preprocessing(list(samples.images)), atol=2e-5)


@pytest.mark.parametrize(
    "make",
    [lambda s: training_batches(s, PIXEL, 2, seed=0, steps=1), lambda s: evaluation_batches(s, PIXEL, 2)],
    ids=["training", "evaluation"],
)
def test_no_samples_are_refused(make):
    with pytest.raises(ValueError, match="no samples to make batches of"):
        make(Samples((), ()))
