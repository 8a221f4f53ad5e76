import keras
import numpy as np
import pytest
from made.encoded import encoded
from made.folders import picture, write_classes
from made.sampling import some
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import Augmentation, evaluation_batches, load_dataset, training_batches
from keras_vit.data.samples import Samples

MOVES = {"crop_area": (0.3, 1.0), "shift": 0.1, "flip": True}
NOISE = (keras.layers.GaussianNoise(0.1),)
ALL = Augmentation(**MOVES, layers=NOISE, random_erasing=0.3, mixup=0.2, cutmix=1.0)
# Images of one pixel with their index as its value.
NUMBERED = Samples(
    tuple(encoded(Image.fromarray(np.full((1, 1, 3), i, "uint8")), "PNG") for i in range(40)),
    tuple(i % 3 for i in range(40)),
)
PIXEL = Preprocessing(1, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))  # keeps 0 to 255


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits").split("train").take(range(50))


def numbers(batches):
    return [images[:, 0, 0, 0].round().astype(int).tolist() for images, _ in batches.as_numpy_iterator()]


def first(count):
    return NUMBERED.take(range(count))


def stream(samples, preprocessing, *args, **options):
    return [*training_batches(samples, preprocessing, *args, **{"seed": 3, **options}).as_numpy_iterator()]


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for pair in zip(batches, expected):
        for actual, same in zip(*pair):
            np.testing.assert_array_equal(actual, same)


@pytest.mark.slow
def test_workers_evaluate_every_sample_once_in_order_and_in_as_many_batches():
    count, batch_size, workers = 13, 6, 3  # The last worker gets an empty batch.
    spec = evaluation_batches(first(count), PIXEL, batch_size).element_spec
    parts = []
    for worker in range(workers):
        batches = evaluation_batches(first(count), PIXEL, batch_size, worker=worker, workers=workers)
        for own, whole in zip(batches.element_spec, spec):
            assert own.dtype == whole.dtype and own.shape.rank == whole.shape.rank
        parts.append(numbers(batches))
    assert {len(part) for part in parts} == {-(-count // batch_size)}
    joined = [sum(batch, []) for batch in zip(*parts)]
    assert sum(joined, []) == [*range(count)]
    assert [len(batch) for batch in joined[:-1]] == [batch_size] * (len(joined) - 1)


@pytest.mark.slow
def test_batches_with_every_augmentation_are_the_same_in_a_resumed_run(digits):
    options = {"seed": 2**31, "steps": 12, "augmentation": ALL, "num_classes": 10}
    whole = stream(digits, Preprocessing(8), 4, **options)
    assert len({images.tobytes() for images, _ in whole}) == 12
    assert all(np.isclose(labels.sum(1), 1).all() and labels.shape == (4, 10) for _, labels in whole)
    assert_same(stream(digits, Preprocessing(8), 4, first_step=4, **options), whole[4:])


def test_each_image_keeps_its_label(tmp_path):
    dataset = load_dataset(f"folder:{write_classes(tmp_path / 'images', ('a', 'b', 'c'))}")
    samples, preprocessing = dataset.split("train"), Preprocessing(32)
    means = {preprocessing(picture(label, n)).mean().item(): label for label in range(3) for n in range(10)}
    training = training_batches(samples, preprocessing, 8, seed=0, steps=3)
    for batches in (training, evaluation_batches(samples, preprocessing, 8)):
        for images, labels in batches.as_numpy_iterator():
            assert images.dtype == np.float32 and labels.dtype == np.int32
            for image, label in zip(images, labels):
                nearest = min(means, key=lambda mean: abs(mean - image.mean()))
                assert means[nearest] == label


@pytest.mark.parametrize("channels", some([1, 3], 2))
def test_evaluation_prepares_images_as_preprocessing_does(channels, tmp_path):
    samples = load_dataset(f"folder:{write_classes(tmp_path / 'images')}").split("test")
    colors = {"mean": (0.4,) * channels, "std": (0.2,) * channels}
    preprocessing = Preprocessing((20, 28), interpolation="bicubic", **colors)
    batches = evaluation_batches(samples, preprocessing, 3)
    images = np.concatenate([images for images, _ in batches.as_numpy_iterator()])
    np.testing.assert_allclose(images, preprocessing(list(samples.images)), atol=2e-5)


def test_workers_share_each_batch(digits):
    options = {"steps": 5, "first_step": 1, "augmentation": Augmentation(**MOVES)}
    whole = stream(digits, Preprocessing(8), 4, **options)
    parts = [stream(digits, Preprocessing(8), 4, **options, worker=worker, workers=2) for worker in range(2)]
    joined = [[np.concatenate(each) for each in zip(*batches)] for batches in zip(*parts)]
    assert {len(labels) for part in parts for _, labels in part} == {2}
    assert_same(joined, whole)


@pytest.mark.slow
def test_workers_mix_their_parts_independently(digits):
    options = {"augmentation": Augmentation(mixup=1.0), "num_classes": 10, "steps": 12, "workers": 2}
    streams = [
        stream(digits.take([0, 1]), Preprocessing(8), 4, **options, worker=worker) for worker in (0, 1)
    ]
    fractions = [[set(labels.max(1).round(5)) for _, labels in batches] for batches in streams]
    assert fractions[0] != fractions[1]
    assert not any(a & b - {1.0} for a, b in zip(*fractions))


@pytest.mark.parametrize(
    "samples, who, message",
    [
        (Samples((), ()), {}, "expected at least one sample; got none"),
        (NUMBERED, {"workers": 3}, "batch_size must be a multiple of workers.*; got batch_size 4"),
        (NUMBERED, {"workers": 2, "worker": 2}, "got batch_size 4, worker 2 of 2"),
    ],
)
def test_batches_without_samples_or_that_workers_do_not_divide_are_refused(samples, who, message):
    with pytest.raises(ValueError, match=message):
        training_batches(samples, PIXEL, 4, seed=0, steps=1, **who)
    with pytest.raises(ValueError, match=message):
        evaluation_batches(samples, PIXEL, 4, **who)


def test_mixed_labels_need_the_number_of_classes():
    augmentation = Augmentation(cutmix=0.5)
    with pytest.raises(ValueError, match="mix one-hot labels; pass num_classes"):
        training_batches(NUMBERED, PIXEL, 4, seed=0, steps=1, augmentation=augmentation)


@pytest.mark.parametrize("labels", [(0, 1, 2), (1, -1)])
def test_labels_without_a_class_are_refused(labels):
    samples = Samples(NUMBERED.images[: len(labels)], labels)
    with pytest.raises(ValueError, match="^expected labels from 0 to 1; got (0 to 2|-1 to 1)$"):
        training_batches(samples, PIXEL, 1, seed=0, steps=1, num_classes=2)


def test_labels_of_several_numbers_are_not_encoded_but_mixed():
    options = {"num_classes": 2, "augmentation": Augmentation(mixup=1.0)}
    samples = Samples(NUMBERED.images[:6], tuple((float(i), float(i % 2)) for i in range(6)))
    for images, labels in stream(samples, PIXEL, 3, steps=4, **options):
        np.testing.assert_allclose(labels[:, 0], images[:, 0, 0, 0], atol=1e-4)
