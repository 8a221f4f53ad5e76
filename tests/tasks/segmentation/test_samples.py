import dataclasses
import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.damage import damaged
from made.encoded import encoded, png_of
from made.sampling import some
from made.tables import by_table
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import Augmentation
from keras_vit.data.augmentation.random_augmentation import (
    image_augmentation,
    random_photometric,
    random_scale,
)
from keras_vit.data.batches import evaluation_batches, mask_batches, training_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.data.maps import prepare_map
from keras_vit.data.sources.tfds_masks import KNOWN_MASKS
from keras_vit.labels import label_kind
from keras_vit.tasks import digits_scenes
from keras_vit.tasks.segmentation.samples import MaskReader, MaskSamples, read_mask

PIXELS = Preprocessing((20, 24), interpolation="nearest", mean=(0,) * 3, std=(1 / 255,) * 3)  # keeps 0 to 255
SIZE = (40, 56)
MASKS = label_kind("segmentation")


def test_a_padded_image_has_a_mask_that_ignores_its_padding():
    label = tf.constant([[[1], [2]]], tf.uint8)
    prepare = Preprocessing((2, 2), resize="pad")
    assert prepare_map(label, MASKS, prepare).numpy().tolist() == [[1, 2], [255, 255]]
    image = png(np.zeros((1, 2), "uint8"))
    augment = image_augmentation(Augmentation(), prepare, kind=MASKS)
    assert augment(image, [0, 1], label)[1].numpy().tolist() == [[1, 2], [255, 255]]


def png(values, mode="L", **options):
    """A PNG of a mask in one of Pillow's modes."""
    image = Image.fromarray(values.astype(bool) if mode == "1" else values)
    if mode == "P":
        image.putpalette([200, 10, 10, 10, 200, 10, 10, 10, 200, 9, 9, 9])
    return encoded(image, "PNG", **options)


def gray(values, bits):
    """A gray PNG of few bits per pixel."""
    places = np.unpackbits(values[..., np.newaxis], axis=-1)[..., -bits:]
    rows = (b"\0" + np.packbits(row).tobytes() for row in places)
    return png_of(b"".join(rows), values.shape[1], values.shape[0], bits, 0)


def made(number):
    """An image whose red channel is its mask."""
    coarse = np.random.default_rng(number).integers(1, 6, (SIZE[0] // 8, SIZE[1] // 8), "uint8")
    mask = coarse.repeat(8, 0).repeat(8, 1)
    return png(np.stack([mask, 0 * mask, 0 * mask], -1)), png(mask)


SAMPLES = MaskSamples(*zip(*map(made, range(8))), exif=False)
WRITTEN = {  # by form: the number of values, and what writes it
    "gray": (16, png),
    "palette": (4, lambda values: png(values, "P")),
    **{f"palette of {bits} bits": (4, lambda values, b=bits: png(values, "P", bits=b)) for bits in (2, 4)},
    "black and white": (2, lambda values: png(values, "1")),
    **{f"gray of {bits} bits": (2**bits, lambda values, b=bits: gray(values, b)) for bits in (1, 2, 4)},
}


def test_values_without_a_class_are_refused_but_not_ignored_ones():
    reader = MaskReader((0, 255, None, 1, *[None] * 251, 255))
    assert reader.label(png(np.uint8([[0, 1, 3, 255]])))[..., 0].tolist() == [[0, 255, 1, 255]]
    assert reader.label_values == [[0, 255, 255, 1, *[255] * 252], None]
    with pytest.raises(ValueError, match="^expected values of the 2 classes in classes.txt; got 2, 7$"):
        reader.label(png(np.uint8([[0, 7, 2, 2]])))
    pets = MaskReader(KNOWN_MASKS["oxford_iiit_pet", "segmentation_mask"].values)
    assert pets.label(png(np.uint8([[0, 1, 7]])))[..., 0].tolist() == [[255, 0, 255]]


@by_table("form", WRITTEN)
def test_masks_are_numbers_in_any_depth(form):
    count, write = WRITTEN[form]
    values = np.arange(16, dtype="uint8").reshape(2, 8) % count
    np.testing.assert_array_equal(read_mask(write(values)), values)


@pytest.mark.parametrize("count", [300, pytest.param(3_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["L", "P", "1", "RGB"])
def test_a_damaged_mask_is_refused_or_has_its_values(mode, count, rng):
    values = rng.integers(0, 2, (16, 12), "uint8").repeat(2, 0)
    content = png(np.stack([values] * 3, -1)) if mode == "RGB" else png(values, mode)
    refused, options = 0, {"colors": (0x000000, 0x010101)} if mode == "RGB" else {}
    for _ in range(count):
        try:
            np.testing.assert_array_equal(read_mask(damaged(content, rng), **options), values)
        except ValueError:
            refused += 1
    assert refused > 0.8 * count


def test_a_mask_of_several_frames_or_without_pixels_is_refused():
    frames = [Image.fromarray(np.full((4, 4), n, "uint8")) for n in range(2)]
    with pytest.raises(ValueError, match="expected one image; got 2 frames"):
        read_mask(encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]))
    content = png(np.zeros((4, 4), "uint8"))
    start, end = content.index(b"IDAT") - 4, content.index(b"IEND") - 4
    with pytest.raises(ValueError, match="without pixels"):
        read_mask(content[:start] + content[end:])


def test_the_red_channel_is_a_mask_where_it_is_asked_for():
    colors = np.arange(24, dtype="uint8").reshape(2, 4, 3)
    np.testing.assert_array_equal(read_mask(png(colors), red=True), colors[..., 0])
    with pytest.raises(ValueError, match="^expected a color PNG; got one of Pillow's mode L$"):
        read_mask(png(colors[..., 0]), red=True)


def test_other_masks_are_refused():
    with pytest.raises(ValueError, match="^no such file$"):
        read_mask("nowhere.png")
    for content in (b"text", encoded(Image.new("L", (4, 4)), "JPEG")):
        with pytest.raises(ValueError, match="^not a PNG file$"):
            read_mask(content)


def batches(augmentation, **options):
    options = {"seed": 3, "steps": 3, "augmentation": augmentation, **options}
    return [*training_batches(SAMPLES, PIXELS, 4, **options).as_numpy_iterator()]


CROP = {"crop_area": (0.1, 1.0), "flip": True}
MOVES = {
    "flip": Augmentation(flip=True),
    "crop": Augmentation(**CROP),
    "jitter": Augmentation(scale_jitter=(0.4, 2.5)),
}


@pytest.mark.parametrize("name", some(MOVES, 3))
def test_a_mask_moves_with_its_image(name):
    """The red channel of each image is its mask, and padding is black here."""
    for images, masks in batches(MOVES[name]):
        assert masks.dtype == np.int32 and masks.shape == (4, 20, 24)
        red = images[..., 0].round().astype(int)
        np.testing.assert_array_equal(np.where(masks == 255, 0, masks), red)
        assert (masks != 0).all() and ((masks == 255).any() <= (name == "jitter"))


def test_a_shifted_mask_is_its_shifted_image_up_to_interpolation():
    for images, masks in batches(Augmentation(shift=0.3)):
        ignored = masks == 255
        assert ignored.any() and not (masks == 0).any()
        # Within a class, bilinear pixels of the image are the class.
        near = np.abs(images[..., 0] - masks)[~ignored] < 1e-3
        assert near.mean() > 0.5
        np.testing.assert_array_less(images[..., 0][ignored], 5.01)


def test_photometric_changes_leave_the_mask():
    plain, changed = (
        image_augmentation(Augmentation(**CROP, photometric=probability), PIXELS, False, MASKS)
        for probability in (0.0, 1.0)
    )
    image, mask = SAMPLES.images[0], read_mask(SAMPLES.masks[0])[..., np.newaxis]
    (images, masks), (others, other_masks) = (augment(image, [3, 5], mask) for augment in (plain, changed))
    np.testing.assert_array_equal(masks, other_masks)
    assert np.abs(images - others).max() > 1
    assert others.numpy().min() >= 0 and others.numpy().max() <= 255


@pytest.mark.slow
def test_photometric_changes_have_their_probability_and_gray_images_have_two():
    pixels = tf.fill((4, 4, 3), 128.0) * [1.0, 0.5, 0.75]
    apply = tf.function(lambda seed: random_photometric(pixels, [7, seed], 0.5))
    same = [np.array_equal(apply(tf.constant(seed, tf.int64)), pixels) for seed in range(200)]
    assert 0.01 < np.mean(same) < 0.15  # 1 / 16 of them
    assert random_photometric(pixels[..., :1], [7, 5], 1.0).shape == (4, 4, 1)


def test_at_factor_1_the_image_just_covers_the_crop_and_a_smaller_one_is_padded_by_the_mean_color(rng):
    image = rng.integers(0, 256, (20, 40, 3), "uint8")
    pixels = random_scale(image, [0, 1], PIXELS, (1.0, 1.0))
    assert any(np.array_equal(pixels, image[:, x : x + 24]) for x in range(17))
    preprocessing = Preprocessing((20, 24), mean=(0.2, 0.4, 0.6))
    pixels = random_scale(tf.zeros((20, 24, 3)), [0, 1], preprocessing, (0.5, 0.5)).numpy()
    outside = (pixels > 0).any(-1)
    assert (~outside).sum() == 10 * 12
    np.testing.assert_allclose(pixels[outside], np.tile([51, 102, 153], (360, 1)), rtol=1e-5)


@pytest.mark.slow
def test_a_worker_resumes_with_its_part_of_the_rest():
    augmentation = Augmentation(scale_jitter=(0.5, 2.0), flip=True, shift=0.1, photometric=0.5)
    whole = batches(augmentation)
    own = batches(augmentation, first_step=1, worker=1, workers=2)
    for expected, found in zip(whole[1:], own, strict=True):
        for part, same in zip(expected, found):
            np.testing.assert_array_equal(part[2:], same)


IMAGES_ALONE = {"randaugment": (2, 0.5), "layers": (keras.layers.GaussianNoise(0.1),), "random_erasing": 0.5}
IMAGES_ALONE |= {"mixup": 0.2, "cutmix": 1.0}


@by_table("name", IMAGES_ALONE)
def test_changes_of_images_alone_are_refused(name):
    with pytest.raises(ValueError, match=f"with which they move; got {name}$"):
        batches(Augmentation(**{name: IMAGES_ALONE[name]}))


@pytest.mark.slow
@pytest.mark.parametrize("resize", ["squash", "crop"])
def test_evaluation_resizes_masks_like_images(resize):
    preprocessing = dataclasses.replace(PIXELS, resize=resize)
    for images, masks in evaluation_batches(SAMPLES, preprocessing, 8).as_numpy_iterator():
        np.testing.assert_array_equal(images[..., 0].round().astype(int), masks)
    for _, masks, sizes in mask_batches(SAMPLES, PIXELS, 3).take(1).as_numpy_iterator():
        assert sizes.tolist() == [[*SIZE]] * 3 and masks.shape == (3, *SIZE)
    own = prepare_map(tf.reshape(tf.range(6), (2, 3, 1)), MASKS, Preprocessing(None))
    assert own.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_workers_without_samples_get_an_empty_batch_of_masks():
    found = [*evaluation_batches(SAMPLES.take(range(5)), PIXELS, 4, worker=1, workers=2).as_numpy_iterator()]
    assert [masks.shape for _, masks in found] == [(2, 20, 24), (0, 20, 24)]


@pytest.mark.parametrize("count", [12, pytest.param(None, marks=pytest.mark.slow)])
def test_scenes_are_a_function_of_seed_split_and_index(count, monkeypatch):
    if count:
        monkeypatch.setattr(digits_scenes, "COUNTS", dict.fromkeys(digits_scenes.COUNTS, count))
    dataset = load_dataset("digits_scenes", seed=1, task="segmentation")
    assert dataset.class_names[:2] == ("background", "0") and len(dataset.class_names) == 11
    digits = load_dataset("digits", seed=1).split("validation")
    scans = [np.float32(Image.open(io.BytesIO(content))) / 255 for content in digits.images]
    picture, mask, _ = digits_scenes.scene(np.stack(scans), digits.labels, [1, 1, 5])
    samples = dataset.split("validation")
    np.testing.assert_array_equal(read_mask(samples.masks[5]), mask)
    np.testing.assert_array_equal(Image.open(io.BytesIO(samples.images[5])), picture)
    np.testing.assert_array_equal(samples[5][1], mask[..., None])
    assert len({*dataset.split("train").images}) == (count or 6000)
    shown = np.mean([read_mask(content) > 0 for content in samples.masks])
    assert 0.1 < shown < 0.4
