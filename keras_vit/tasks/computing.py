"""Compute a model's outputs for all samples of a split. Needs TensorFlow."""

import numpy as np

from keras_vit.labels import kind_of_samples
from keras_vit.lazy import LazyModule
from keras_vit.models.classifying import check_finite
from keras_vit.progress import Progress

# The modules of this package are imported to find its tasks, also where there is no TensorFlow.
batching, damage = LazyModule("keras_vit.data.batches"), LazyModule("keras_vit.data.damage")
label_storage = LazyModule("keras_vit.data.label_storage")
maps, model_input = LazyModule("keras_vit.data.maps"), LazyModule("keras_vit.data.decoding.model_input")
samples_module, tf = LazyModule("keras_vit.data.samples"), LazyModule("tensorflow")

_BATCH = 16  # of samples that exports are compared on


def computed(compute, samples, preprocessing, batch_size, doing="evaluating"):
    """Yield what a function returns for each batch, and the batch's labels.

    Args:
        compute: A function from images to an array with a row for each.
        samples: A split of a `Dataset`.
        preprocessing: The model's `Preprocessing`.
        batch_size: Images per batch; a model for images of any size gets one at a time.
        doing: The label of the progress bar.

    Raises:
        ValueError: if there are no samples, or a result is NaN or infinite.
    """
    size = batch_size if preprocessing.has_fixed_shape else 1
    batches = batching.evaluation_batches(samples, preprocessing, size)
    yield from computed_batches(compute, batches, samples, doing)


def computed_batches(compute, batches, samples, doing="evaluating"):
    """Yield what a function returns for the images of each batch, and its other parts, as arrays.

    Args:
        compute, samples, doing: As for `computed`.
        batches: Of the samples.
    """
    with damage.damage_named([samples]):
        for images, *labels in Progress(batches, doing, unit="batch"):
            yield check_finite(np.asarray(compute(np.asarray(images)))), *map(np.asarray, labels)


def computed_maps(model, samples, batch_size):
    """As `computed`, of a model for one size, with a list of the images' maps, each of its own size."""
    batches = batching.mask_batches(samples, model.preprocessing, batch_size)
    for outputs, masks, sizes in computed_batches(model.predict_on_batch, batches, samples):
        yield outputs, _unpadded(masks, sizes)


def computed_boxes(model, samples, batch_size):
    """As `computed`, with a list of the images' boxes, and the heights and widths of the images."""
    batches = batching.box_batches(samples, model.preprocessing, batch_size)
    for outputs, boxes, counts, sizes in computed_batches(model.predict_on_batch, batches, samples):
        yield outputs, [rows[:count] for rows, count in zip(boxes, counts)], sizes


def computed_one_by_one(compute, samples):
    """Yield what a function returns for each image at its own size, and the image's map.

    Args:
        compute: A function of an image, uint8 (height, width, 3).
        samples: A split of a `Dataset` whose labels are maps.

    Raises:
        ValueError: if there are no samples.
    """
    if not len(samples):
        raise ValueError("expected at least one sample; got none")
    records = samples.evaluation_records()
    label_type = kind_of_samples(samples, records.element_spec[1].shape.rank)
    with damage.damage_named([samples]):
        for encoded, mask in Progress(records, "evaluating", unit="image"):
            label = maps.in_batches(mask, label_type).numpy()
            yield np.asarray(compute(model_input.decode(encoded, samples.exif).numpy())), label


def _unpadded(masks, sizes):
    """The masks of a batch of `mask_batches`, each of its own size."""
    return [mask[:height, :width] for mask, (height, width) in zip(masks, sizes)]


def sampled_images(samples, preprocessing, count):
    """As `LabelTask.sampled`, with the labels in an array."""
    records = samples.training_records(0, 0, 1, _sample_count(samples, count))  # of one training step

    @samples_module.not_converted
    def prepared(position, encoded, label):
        return model_input.decode_and_prepare(encoded, preprocessing, samples.exif), label

    batches = [*records.map(prepared, tf.data.AUTOTUNE).batch(_BATCH).as_numpy_iterator()]
    images, labels = (np.concatenate(parts) for parts in zip(*batches))
    return images, labels


def sampled_maps(samples, preprocessing, count):
    """As `LabelTask.sampled`, with a list of maps, each of its image's own size."""
    chosen = evenly_spaced(samples, count)
    batches = [*batching.mask_batches(chosen, preprocessing, _BATCH).as_numpy_iterator()]
    labels = [label for _, masks, sizes in batches for label in _unpadded(masks, sizes)]
    return np.concatenate([images for images, *_ in batches]), labels


def sampled_boxes(samples, preprocessing, count):
    """As `LabelTask.sampled`, with a list of each image's boxes and its (height, width)."""
    batches = [
        *batching.box_batches(evenly_spaced(samples, count), preprocessing, _BATCH).as_numpy_iterator()
    ]
    labels = [
        (rows[:number], tuple(size))
        for _, boxes, counts, sizes in batches
        for rows, number, size in zip(boxes, counts, sizes.tolist())
    ]
    return np.concatenate([images for images, *_ in batches]), labels


def evenly_spaced(samples, count):
    """At most `count` samples, from the first to the last, as of `chosen_samples`."""
    indices = np.linspace(0, len(samples) - 1, _sample_count(samples, count)).astype(int)
    return label_storage.chosen_samples(samples, indices.tolist())


def _sample_count(samples, count):
    count = min(count, len(samples))
    if count < 1:
        raise ValueError(f"expected at least one image; got {count} of {len(samples)}")
    return count
