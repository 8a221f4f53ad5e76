"""Exports compared with the live model: outputs, accuracy, size and speed."""

import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_vit.data.batches import mask_batches
from keras_vit.data.images import decode_and_prepare
from keras_vit.data.samples import not_converted
from keras_vit.export.class_maps import one_hot
from keras_vit.export.description import Description
from keras_vit.tasks import get_task
from keras_vit.tasks.computing import predictions_of_maps, unpadded

BATCH = 16
MIN_IMAGES = 256  # An agreement on fewer images is too coarse to be compared with a tolerance.
# A mean difference above this fraction of the largest logit is an error, and not the rounding of int8.
MAX_MEAN_DIFFERENCE = 0.1
# Two classes of a pixel whose live logits differ by this fraction of the largest are equal in float32.
EQUAL_LOGITS = 1e-5
# As MIN_IMAGES, of class maps; either is enough. In a model of `digits_scenes`, the fraction of an image's
# pixels that disagree had a standard deviation of 0.85 to 0.9 of its mean, so 32 images give the mean to a
# sixth. Large images are few, by `MAX_VALUES`, but each has many independent regions.
MIN_MAPS = 32
MIN_PIXELS = 1_000_000
MAX_VALUES = 2**28  # of the logits of all pixels that are verified: 1 GiB


def sample_images(samples, preprocessing, count, is_map=False):
    """Images sampled evenly from a split, as exports take them.

    Args:
        samples: A split of a `Dataset`.
        preprocessing: An export's, to float32 in [0, 1].
        count: The maximum number of images.
        is_map: Whether the labels are class maps.

    Returns:
        (images (n, height, width, channels), labels); class maps are a list, each of its image's own size.

    Raises:
        ValueError: if there are no samples, or they have another number of channels.

    Example:
        >>> from keras_vit.export.description import describe
        >>> samples = load_dataset("digits").split("test")
        >>> [len(part) for part in sample_images(samples, describe(model).preprocessing, 100)]
        [100, 100]
    """
    count = min(count, len(samples))
    if count < 1:
        raise ValueError(f"expected at least one image; got {count} of {len(samples)}")
    if is_map:
        chosen = samples.take(np.linspace(0, len(samples) - 1, count).astype(int).tolist())
        batches = [*mask_batches(chosen, preprocessing, BATCH).as_numpy_iterator()]
        labels = [label for _, masks, sizes in batches for label in unpadded(masks, sizes)]
        return np.concatenate([images for images, *_ in batches]), labels
    records = samples.training_records(0, 0, 1, count)  # the images of one training step

    @not_converted
    def prepared(position, encoded, label):
        return decode_and_prepare(encoded, preprocessing, samples.exif), label

    batches = [*records.map(prepared, tf.data.AUTOTUNE).batch(BATCH).as_numpy_iterator()]
    images, labels = (np.concatenate(parts) for parts in zip(*batches))
    return images, labels


@dataclasses.dataclass(frozen=True)
class Reference:
    """The live model's outputs for images, which the outputs of exports are compared with.

    Args:
        description: The `Description` of the exports.
        images: Float32 (n, height, width, channels) in [0, 1].
        labels: The data set's; None for noise.
        outputs: Float32, the model's: logits, values or representations; logits of all pixels of a segmenter.
        run: The live model as a function of images in [0, 1].
    """

    description: Description
    images: np.ndarray
    labels: np.ndarray | list | None
    outputs: np.ndarray
    run: Callable

    def measure(self, run, path=None):
        """Compare an export, or the live model itself, with these outputs.

        Args:
            run: Function from float32 images in [0, 1] to outputs, or to class maps.
            path: The file or folder, for its size.

        Returns:
            dict of `max_logit_difference` and `mean_logit_difference` (relative to the largest live logit;
            None for class maps), `agreement` (the fraction of equal predictions, of images or pixels; None
            without classes, and of images without a data set), `score` (the task's primary metric, or None),
            `bytes`, `ms_batch_1` and `ms_batch_16` (medians).

        Example:
            >>> from keras_vit.export.description import describe
            >>> reference = live_reference(model, describe(model))
            >>> reference.measure(reference.run)["max_logit_difference"] < 1e-5
            True
        """
        first = self.images[np.arange(BATCH) % len(self.images)]
        return {
            **self.compare(_run_batches(run, self.images, "verifying")),
            "bytes": None if path is None else size_of(path),
            "ms_batch_1": milliseconds(lambda: run(first[:1])),
            "ms_batch_16": milliseconds(lambda: run(first)),
        }

    def compare(self, outputs):
        """The differences and the score of `measure`, for outputs of the images."""
        task = get_task(self.description.task)
        scale = max(float(np.abs(self.outputs).max()), float(np.finfo("float32").tiny))
        largest = mean = agreement = score = predictions = None
        if outputs.ndim == self.outputs.ndim:  # no class maps
            differences = np.abs(self.outputs - outputs)
            largest, mean = float(differences.max()) / scale, float(differences.mean()) / scale
        if task.label.is_map:
            agreement = self._agreement_of_pixels(outputs, scale)
            if self.labels is not None:
                logits = outputs if mean is not None else one_hot(outputs, self.description.num_classes)
                predictions = predictions_of_maps(logits, self.labels)
        elif self.labels is not None and self.description.is_classifier:
            predictions = task.predictions(outputs, self.labels)
            agreement = task.label.agreement(self.outputs, outputs)
        if predictions is not None:
            score = task.scores(predictions)[task.primary_metric]
        return {
            "max_logit_difference": largest,
            "mean_logit_difference": mean,
            "agreement": agreement,
            "score": score,
        }

    def _agreement_of_pixels(self, outputs, scale):
        """The fraction of pixels whose class has the highest of the live logits, but for `EQUAL_LOGITS`."""
        chosen = outputs if outputs.ndim < self.outputs.ndim else outputs.argmax(-1)
        chosen = np.expand_dims(chosen.astype("int64"), -1)
        known = chosen < self.outputs.shape[-1]
        logits = np.take_along_axis(self.outputs, np.where(known, chosen, 0), -1)
        lead = self.outputs.max(-1, keepdims=True) - logits
        return float(np.mean(known & (lead <= EQUAL_LOGITS * scale)))


def live_reference(model, description, samples=None, count=512):
    """Run the live model on images of a data set, or on noise.

    Args:
        model: A `VisionTransformer` or an `ImageSegmenter` that computes in float32.
        description: The `Description` of its exports.
        samples: A split of a `Dataset`, or None.
        count: The maximum number of its images; class maps have at most `MAX_VALUES` logits together, but
            at least one image is used.

    Returns:
        Reference.

    Raises:
        ValueError: if there are no samples, or their labels do not fit the model's outputs.

    Example:
        >>> from keras_vit.export.description import describe
        >>> live_reference(model, describe(model)).outputs.shape
        (16, 10)
    """
    task = get_task(description.task)
    if task.label.is_map:
        per_image = math.prod(description.image_size) * description.num_classes
        count = min(count, max(MAX_VALUES // per_image, 1))
    if samples is None:
        shape = (min(BATCH, count), *description.preprocessing.image_size, description.channels)
        images, labels = np.random.default_rng(0).uniform(size=shape).astype("float32"), None
    else:
        images, labels = sample_images(samples, description.preprocessing, count, task.label.is_map)
        if description.is_classifier:
            task.label.check(labels, description.num_classes)
        for label in labels if task.label.is_map else ():
            task.label.check(label[np.newaxis], description.num_classes)
    run = live_run(model)
    return Reference(description, images, labels, _run_batches(run, images), run)


def live_run(model):
    """A live model as a function of images in [0, 1], like its exports."""
    return lambda images: model.predict_on_batch(normalized(model, images))


def normalized(model, images):
    """The live model's input for images in [0, 1], which its exports normalize themselves."""
    return model.preprocessing.normalize(images * np.float32(255))


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a format's outputs may be from the live model's.

    Args:
        metric: "max_logit_difference" or "agreement".
        bound: The maximum of the first, the minimum of the second.
        required: Whether an export beyond it is discarded; otherwise there is a warning.
        pixels: Of a segmenter, the minimum agreement of the pixels' classes, in place of the others: the
            logits of "mask" are logarithms, which magnify the rounding of small scores.
    """

    metric: str
    bound: float
    required: bool = True
    pixels: float = 0.995


def check_tolerance(tolerance, row, images, pixels=None):
    """Compare the row of an export with its format's tolerance.

    Args:
        tolerance: `Tolerance`.
        row: The dict that `Reference.measure` returned.
        images: The number of images that it was measured on.
        pixels: Of class maps, the number of their pixels.

    Returns:
        A warning, or None.

    Raises:
        ValueError: if a required tolerance is exceeded, or the outputs have NaN or infinity.

    Example:
        >>> row = {"max_logit_difference": 1e-3, "mean_logit_difference": 1e-4, "agreement": 1.0}
        >>> check_tolerance(Tolerance("max_logit_difference", 5e-3), row, 512)
        >>> check_tolerance(Tolerance("max_logit_difference", 1e-5), row, 512)
        Traceback (most recent call last):
        ValueError: its outputs differ from the live model by 1.0e-03 of the largest; the bound is 1e-05
    """
    bound, value, mean = tolerance.bound, row[tolerance.metric], row["mean_logit_difference"]
    differ = "its outputs differ from the live model by {:.1e} of the largest{}; the bound is {:.0e}"
    if not np.isfinite(row["max_logit_difference"] or 0):
        raise ValueError("it computes NaN or infinity")
    if pixels is not None:
        # Lower precisions confuse classes that are close to each other, as most are in noise.
        is_coarse = row["score"] is None or (images < MIN_MAPS and pixels < MIN_PIXELS)
        if tolerance.pixels < 1 and is_coarse:
            return (
                f"agreement with the live model is checked on {MIN_MAPS} or more images, or "
                f"{MIN_PIXELS:,} or more pixels, of a data set"
            )
        agrees = f"it agrees with the live model on {row['agreement']:.2%} of {pixels:,} pixels; "
        problem = (
            None if row["agreement"] >= tolerance.pixels else f"{agrees}the bound is {tolerance.pixels:.1%}"
        )
    elif tolerance.metric == "max_logit_difference":
        problem = differ.format(value, "", bound) if value > bound else None
    elif mean > MAX_MEAN_DIFFERENCE:
        problem = differ.format(mean, " on average", MAX_MEAN_DIFFERENCE)
    elif value is None or images < MIN_IMAGES:
        return f"agreement with the live model is checked on {MIN_IMAGES} or more images of a data set"
    else:
        agrees = f"it agrees with the live model on {value:.1%} of {images} images; the bound is {bound:.0%}"
        problem = agrees if value < bound else None
    if problem and tolerance.required:
        raise ValueError(problem)
    return problem


@contextlib.contextmanager
def full_precision_matmul():
    """Disable TensorFloat-32, the 10-bit matmuls of GPUs, so that formats can be compared."""
    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(before)


def milliseconds(call, most=20, seconds=1.0):
    """The median time of a call in milliseconds, after a warm-up call.

    Example:
        >>> milliseconds(lambda: None) < 1
        True
    """
    call()
    times = []
    while len(times) < 3 or (len(times) < most and sum(times) < seconds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def size_of(path):
    """Bytes of a file, or of all files in a folder; of an `.xml` file with its `.bin` file.

    Example:
        >>> _ = pathlib.Path("four").write_bytes(b"1234")
        >>> size_of("four")
        4
    """
    path = pathlib.Path(path)
    weights = [path.with_suffix(".bin")] if path.suffix == ".xml" else []
    files = path.rglob("*") if path.is_dir() else [path, *weights]
    return sum(file.stat().st_size for file in files if file.is_file())


def _run_batches(run, images, title="computing"):
    starts = tqdm(range(0, len(images), BATCH), title, unit="batch", delay=2, leave=False, disable=None)
    outputs = np.concatenate([np.asarray(run(images[i : i + BATCH])) for i in starts])
    is_map = np.issubdtype(outputs.dtype, np.integer)
    return outputs if is_map else outputs.astype("float32", copy=False)
