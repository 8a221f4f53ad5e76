"""Exports compared with the live model: outputs, accuracy, size and speed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_vit.export.description import Description
from keras_vit.export.formats import FORMATS
from keras_vit.export.outputs import outputs_of
from keras_vit.export.tolerance import MARGIN, lowest
from keras_vit.progress import Progress
from keras_vit.tasks import get_task
from keras_vit.types import ArrayOrTensor, Path

if TYPE_CHECKING:
    import keras

    from keras_vit.data.samples import IndexedSamples

BATCH = 16


@dataclasses.dataclass(frozen=True)
class Reference:
    """The live model's outputs for images, which the outputs of exports are compared with.

    Args:
        description: The `Description` of the exports.
        images: Float32 (n, height, width, channels) in [0, 1].
        labels: The data set's; None for noise.
        outputs: Float32, the live model's.
        run: The live model as a function of images in [0, 1].
        margin: The difference of logits above which a prediction of the live model counts as decided.
    """

    description: Description
    images: np.ndarray
    labels: np.ndarray | list[Any] | None
    outputs: np.ndarray
    run: Callable[[np.ndarray], np.ndarray]
    margin: float = MARGIN

    def measure(self, run: Callable[[np.ndarray], np.ndarray], path: Path | None = None) -> dict[str, Any]:
        """Compare an export, or the live model itself, with these outputs.

        Args:
            run: Function from float32 images in [0, 1] to outputs, or to class maps.
            path: The file or folder, for its size.

        Returns:
            dict of `max_logit_difference` and `mean_logit_difference` (relative to the largest live logit;
            None for class maps), `agreement` (the fraction of equal predictions, of images or pixels; None
            without classes, and of images without a data set), `decided` (of rows of class scores, the number
            of predictions whose live `margin` is larger) and `decided_agreement` (the fraction of these that
            are equal), `score` (the task's primary metric, or None), `least_score` (the lower end of the 95 %
            interval of the live accuracy or AP), what `differences` of these outputs returns, `bytes`,
            `ms_batch_1` and `ms_batch_16` (medians).

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

    @functools.cached_property
    def least_score(self) -> float | None:
        """The lower end of the 95 % interval of the live model's score, where it bounds that of exports."""
        task = get_task(self.description.task)
        if self.labels is None or not task.bounds_exports:
            return None
        _, predictions = task.compared(self.outputs, self.outputs, self.labels, self.description)
        score = None if predictions is None else task.scores(predictions)[task.primary_metric]
        return None if score is None else lowest(score, len(self.outputs))

    def compare(self, outputs: np.ndarray) -> dict[str, Any]:
        """The differences and the score of `measure`, for outputs of the images."""
        task = get_task(self.description.task)
        decided = decided_agreement = None
        scale = max(float(np.abs(self.outputs).max()), float(np.finfo("float32").tiny))
        largest = mean = score = None
        if outputs.ndim == self.outputs.ndim:  # no class maps
            differences = np.abs(self.outputs - outputs)
            largest, mean = float(differences.max()) / scale, float(differences.mean()) / scale
        agreement, predictions = task.compared(self.outputs, outputs, self.labels, self.description)
        if predictions is not None:
            score = task.scores(predictions)[task.judged_by(self.description)[0]]
        if agreement is not None and task.label.has_rows_of_classes:
            is_decided = task.label.margins(self.outputs) > self.margin
            same = task.label.decide(self.outputs) == task.label.decide(outputs)
            decided = int(np.sum(is_decided))
            decided_agreement = float(np.mean(same[is_decided])) if decided else None
        return {
            "max_logit_difference": largest,
            "mean_logit_difference": mean,
            "agreement": agreement,
            "decided": decided,
            "decided_agreement": decided_agreement,
            "score": score,
            "least_score": self.least_score,
            **outputs_of(self.description).differences(self.outputs, outputs),
        }


def live_reference(
    model: keras.Model,
    description: Description,
    samples: IndexedSamples | None = None,
    count: int = 512,
    margin: float = MARGIN,
) -> Reference:
    """Run the live model on images of a data set, or on noise.

    Args:
        model: A model of images that computes in float32.
        description: The `Description` of its exports.
        samples: A split of a `Dataset`, or None.
        count: The maximum number of its images; of class maps as many as their task says.
        margin: As for `Reference`.

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
    if (most := task.max_samples(description)) is not None:
        count = min(count, most)
    if samples is None:
        shape = (min(BATCH, count), *description.native_image_size, description.channels)
        images, labels = np.random.default_rng(0).uniform(size=shape).astype("float32"), None
    else:
        images, labels = task.sampled(samples, description.preprocessing, count)
        task.check_samples(labels, description)
    run = live_run(model)
    return Reference(description, images, labels, _run_batches(run, images), run, margin)


def live_run(model: keras.Model) -> Callable[[np.ndarray], np.ndarray]:
    """A live model as a function of images in [0, 1], like its exports."""
    return lambda images: model.predict_on_batch(normalize_as_exports_do(model, images))


def normalize_as_exports_do(model: keras.Model, images: ArrayOrTensor) -> ArrayOrTensor:
    """The live model's input for images in [0, 1], which its exports normalize themselves."""
    return model.preprocessing.normalize(images * np.float32(255))


@contextlib.contextmanager
def full_precision_matmul() -> Iterator[None]:
    """Disable TensorFloat-32, the 10-bit matmuls of GPUs, so that formats can be compared."""
    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(before)


def milliseconds(call: Callable[[], object], most: int = 20, seconds: float = 1.0) -> float:
    """The median time of a call in milliseconds, after a warm-up call.

    Example:
        >>> milliseconds(lambda: None) < 1
        True
    """
    call()
    times: list[float] = []
    while len(times) < 3 or (len(times) < most and sum(times) < seconds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def size_of(path: Path) -> int:
    """Bytes of a file with those that belong to it, or of all files in a folder.

    Example:
        >>> _ = pathlib.Path("four").write_bytes(b"1234")
        >>> size_of("four")
        4
    """
    path = pathlib.Path(path)
    beside = {path.with_suffix(row.beside) for row in FORMATS if row.beside and path.suffix in row.suffixes}
    files = path.rglob("*") if path.is_dir() else {path, *beside}
    return sum(file.stat().st_size for file in files if file.is_file())


def _run_batches(
    run: Callable[[np.ndarray], np.ndarray], images: np.ndarray, title: str = "computing"
) -> np.ndarray:
    starts = Progress(range(0, len(images), BATCH), title, unit="batch", leave=False)
    outputs = np.concatenate([np.asarray(run(images[i : i + BATCH])) for i in starts])
    is_map = np.issubdtype(outputs.dtype, np.integer)
    return outputs if is_map else outputs.astype("float32", copy=False)
