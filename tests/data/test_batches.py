import dataclasses
import io
import os
from itertools import product

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from made.folders import picture, write_classes
from made.photos import ORIENTATIONS, photo
from made.sampling import some as some_of
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.batches import evaluation_batches, training_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.data.samples import Samples

MOVES = {"crop_area": (0.3, 1.0), "shift": 0.1, "flip": True}
AUGMENTED = {"augmentation": Augmentation(**MOVES)}
EVERYTHING = {
    "augmentation": Augmentation(
        **MOVES,
        randaugment=(2, 0.5),
        layers=(keras.layers.RandomHue(0.4), keras.layers.GaussianNoise(0.1)),
        random_erasing=0.3,
        mixup=0.2,
        cutmix=1.0,
    ),
    "num_classes": 10,
}


def numbered(count):
    """Images of one pixel that hold their own number."""

    def encode(number):
        file = io.BytesIO()
        Image.fromarray(np.full((1, 1, 3), number, "uint8")).save(file, "PNG")
        return file.getvalue()

    return Samples(tuple(encode(i) for i in range(count)), tuple(i % 3 for i in range(count)))


NUMBERED = numbered(40)
PIXEL = Preprocessing(1, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))  # keeps 0 to 255


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


OPTIONS = {"plain": {}, "moved": AUGMENTED, "everything": EVERYTHING}


@pytest.mark.parametrize("name, options", some_of(product(["digits", "folder"], OPTIONS), 2))
def test_images_and_labels_resume_bit_for_bit(name, options, tmp_path):
    name = name if name == "digits" else f"folder:{write_classes(tmp_path / 'images')}"
    samples = load_dataset(name).split("train").take(range(12))

    def batches(first_step):
        made = training_batches(
            samples, Preprocessing(16), 5, seed=3, steps=7, first_step=first_step, **OPTIONS[options]
        )
        return [*made.as_numpy_iterator()]

    whole = batches(0)
    for first_step in (1, 6):
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


@pytest.mark.parametrize("name", MOVES)
def test_each_augmentation_can_be_switched_on_alone(name):
    samples = load_dataset("digits").split("train").take([0])

    def images(**options):
        batches = training_batches(
            samples, Preprocessing(16), 1, seed=0, steps=6, augmentation=Augmentation(**options)
        )
        return {images.tobytes() for images, _ in batches.as_numpy_iterator()}

    assert len(images()) == 1
    # Of an 8×8 scan few crops differ.
    assert len(images(**{name: MOVES[name]})) >= {"crop_area": 3, "shift": 6, "flip": 2}[name]


def test_grey_models_get_grey_training_images(tmp_path):
    samples = load_dataset(f"folder:{write_classes(tmp_path / 'images')}").split("train")
    grey = Preprocessing(16, mean=(0.5,), std=(0.5,))
    images, _ = next(iter(training_batches(samples, grey, 4, seed=0, steps=1, **AUGMENTED)))
    assert images.shape == (4, 16, 16, 1)
    with pytest.raises(ValueError, match="1 or 3 channels, but the model reads 4"):
        training_batches(samples, Preprocessing(16, mean=(0.5,) * 4, std=(0.5,) * 4), 4, seed=0, steps=1)


@pytest.mark.parametrize(
    "fields", [{"crop_area": (0.5, 1.0)}, {"random_erasing": 0.1}, {"randaugment": (1, 0.1)}, {"cutmix": 0.1}]
)
def test_some_changes_need_a_size(fields):
    options = {"augmentation": Augmentation(**fields), "num_classes": 3}
    with pytest.raises(
        ValueError, match=f"{[*fields][0]}: needs one size; give the preprocessing an image_size"
    ):
        training_batches(numbered(4), Preprocessing(None), 4, seed=0, steps=1, **options)


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


@pytest.mark.parametrize("crop_area", [None, (1.0, 1.0)])  # the second is a crop of the whole image
def test_training_and_evaluation_turn_photos_as_preprocessing_does(crop_area, tmp_path):
    paths = [tmp_path / f"{number}.{name}" for number in ORIENTATIONS for name in ("JPEG", "WEBP")]
    for path in paths:
        path.write_bytes(photo(int(path.stem), path.suffix[1:]))
    preprocessing = Preprocessing((20, 28))
    samples = Samples(tuple(map(str, paths)), tuple(range(16)))
    expected = preprocessing(paths)
    augmentation = Augmentation(crop_area=crop_area)
    training = training_batches(samples, preprocessing, 16, seed=0, steps=1, augmentation=augmentation)
    for batches in (training, evaluation_batches(samples, preprocessing, 16)):
        for images, labels in batches.as_numpy_iterator():
            np.testing.assert_allclose(images, expected[labels], atol=2e-5)
    stored = dataclasses.replace(samples, exif=False)
    ((images, _),) = evaluation_batches(stored, preprocessing, 16).as_numpy_iterator()
    turned = np.abs(images - expected).max((1, 2, 3)) > 0.1
    assert turned.tolist() == [path.stem != "1" for path in paths]


@pytest.mark.parametrize(
    "make",
    [lambda s: training_batches(s, PIXEL, 2, seed=0, steps=1), lambda s: evaluation_batches(s, PIXEL, 2)],
    ids=["training", "evaluation"],
)
def test_no_samples_are_refused(make):
    with pytest.raises(ValueError, match="no samples to make batches of"):
        make(Samples((), ()))


def stream(samples, preprocessing, *args, **options):
    return [*training_batches(samples, preprocessing, *args, seed=3, **options).as_numpy_iterator()]


def test_many_batches_are_the_same_each_time_and_from_any_step():
    """Every augmentation on, drawn by several threads."""
    steps = 10_000 if "FULL" in os.environ else 250
    samples = load_dataset("digits").split("train").take(range(50))
    whole, again = (stream(samples, Preprocessing(8), 4, steps=steps, **EVERYTHING) for _ in range(2))
    assert len(whole) == steps
    for (images, labels), (same_images, same_labels) in zip(whole, again):
        np.testing.assert_array_equal(images, same_images)
        np.testing.assert_array_equal(labels, same_labels)
    assert len({images.tobytes() for images, _ in whole}) == steps
    first = steps * 9 // 10
    rest = stream(samples, Preprocessing(8), 4, steps=steps, first_step=first, **EVERYTHING)
    assert len(rest) == steps - first
    for (images, labels), (same_images, same_labels) in zip(rest, whole[first:]):
        np.testing.assert_array_equal(images, same_images)
        np.testing.assert_array_equal(labels, same_labels)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_share_each_batch(workers):
    augmentation = Augmentation(**MOVES, random_erasing=0.5)
    samples = load_dataset("digits").split("train").take(range(40))
    options = {"steps": 5, "first_step": 1, "augmentation": augmentation}
    whole = stream(samples, Preprocessing(8), 6, **options)
    shares = [
        stream(samples, Preprocessing(8), 6, **options, worker=worker, workers=workers)
        for worker in range(workers)
    ]
    for (images, labels), *parts in zip(whole, *shares):
        assert all(len(part) == 6 // workers for _, part in parts)
        np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), images)
        np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), labels)


def test_workers_mix_in_ways_of_their_own():
    """A worker's share is mixed within itself: its draws are not another worker's."""
    samples = load_dataset("digits").split("train").take([0, 1])
    options = {"augmentation": Augmentation(mixup=1.0), "num_classes": 10, "steps": 30, "workers": 2}
    first, second = (stream(samples, Preprocessing(8), 4, **options, worker=worker) for worker in (0, 1))
    shares = [[set(labels.max(1).round(5)) for _, labels in batches] for batches in (first, second)]
    assert shares[0] != shares[1]
    assert not any(a & b - {1.0} for a, b in zip(*shares))


@settings(max_examples=5)
@given(count=st.integers(1, 40), share=st.integers(1, 5), workers=st.integers(1, 4))
def test_workers_evaluate_every_sample_once_in_as_many_batches(count, share, workers):
    batch_size = share * workers
    spec = evaluation_batches(some(count), PIXEL, batch_size).element_spec
    parts = []
    for worker in range(workers):
        batches = evaluation_batches(some(count), PIXEL, batch_size, worker=worker, workers=workers)
        for mine, whole in zip(batches.element_spec, spec):
            assert mine.dtype == whole.dtype and mine.shape.rank == whole.shape.rank
        parts.append(numbers(batches))
    assert {len(part) for part in parts} == {-(-count // batch_size)}
    whole = numbers(evaluation_batches(some(count), PIXEL, batch_size))
    assert [sum(batch, []) for batch in zip(*parts)] == whole


def test_an_empty_share_has_the_shape_of_the_others():
    samples = load_dataset("digits").split("test").take(range(9))
    *_, (images, labels) = evaluation_batches(samples, Preprocessing(16), 4, worker=1, workers=2)
    assert images.shape == (0, 16, 16, 3) and images.dtype == tf.float32
    assert labels.shape == (0,) and labels.dtype == tf.int32


@pytest.mark.parametrize(
    "workers, worker, message", [(3, 0, "divide by the 3 workers; got 4"), (2, 2, "got 2 of 2")]
)
def test_a_batch_divides_by_the_workers(workers, worker, message):
    for batches in (
        lambda **who: training_batches(NUMBERED, PIXEL, 4, seed=0, steps=1, **who),
        lambda **who: evaluation_batches(NUMBERED, PIXEL, 4, **who),
    ):
        with pytest.raises(ValueError, match=message):
            batches(worker=worker, workers=workers)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixed_labels_need_the_number_of_classes(name):
    augmentation = Augmentation(**{name: 0.5})
    with pytest.raises(ValueError, match="mix labels of one number per class; give num_classes"):
        training_batches(NUMBERED, PIXEL, 4, seed=0, steps=1, augmentation=augmentation)
    batches = training_batches(NUMBERED, PIXEL, 4, seed=0, steps=20, augmentation=augmentation, num_classes=3)
    assert batches.element_spec[1] == tf.TensorSpec((4, 3), tf.float32)
    labels = np.concatenate([labels for _, labels in batches.as_numpy_iterator()])
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)


def test_class_numbers_become_one_number_a_class_where_it_is_asked_for():
    given = stream(NUMBERED, PIXEL, 5, steps=4)
    one_hot = stream(NUMBERED, PIXEL, 5, steps=4, num_classes=3)
    for (_, labels), (_, ones) in zip(given, one_hot):
        assert ones.dtype == np.float32
        np.testing.assert_array_equal(ones, np.eye(3)[labels])


def test_labels_of_several_numbers_stay_what_they_are():
    samples = Samples(NUMBERED.images[:6], tuple((float(i), float(i % 2)) for i in range(6)))
    for images, labels in stream(samples, PIXEL, 3, steps=4, num_classes=2):
        np.testing.assert_array_equal(labels[:, 0], images[:, 0, 0, 0].round())
    mixed = {"augmentation": Augmentation(mixup=1.0)}
    for images, labels in stream(samples, PIXEL, 3, steps=4, **mixed):
        np.testing.assert_allclose(labels[:, 0], images[:, 0, 0, 0], atol=1e-4)
