"""How good a model is on a split, for a report: scores, confusion, best and worst predictions."""

import dataclasses
import io
import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.cli.page import format_value, gallery, picture, png_of, table
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.samples import Samples
from keras_vit.evaluation import confusion_matrix, predict
from keras_vit.inspection.figures import confusion_figure
from keras_vit.tasks import get_task

MAX_IMAGES = 2000  # computed for a report
MAX_PICTURES = 12  # best predictions, and worst ones
MAX_MATRIX = 60  # classes of a confusion matrix whose names are legible
MAX_ROWS = 100  # classes in a table
MAX_ERRORS = 10  # pairs of classes
THUMBNAIL = (192, 192)  # pixels


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some samples of a split, which `evaluation` reads like a split.

    Args:
        records: tf.data.Dataset of (encoded image, label).
        count: The number of samples.
        exif: As of the split.
    """

    records: tf.data.Dataset
    count: int
    exif: bool
    labels = None

    def __len__(self):
        return self.count

    def evaluation_records(self):
        return self.records


@dataclasses.dataclass(frozen=True)
class Summary:
    """How good a model is on a split.

    Args:
        scores: What `evaluate` returns for the task.
        classes: A dict of scores for each class, or None.
        confusion: The confusion matrix (classes, classes), or None.
        errors: (true class, predicted class, count), the most frequent first.
        worst, best: Pictures with prediction and truth: of the largest loss, and of the smallest loss
            among the correct predictions.
        images: Model inputs of the worst predictions.
        labels: Their true labels as text.
        total: The size of the split, of which `scores["samples"]` were computed.
    """

    scores: dict
    classes: list | None
    confusion: np.ndarray | None
    errors: list
    worst: list
    best: list
    images: list
    labels: list
    total: int


def summarize(model, samples, task, names=None, batch_size=64, max_images=MAX_IMAGES, folder=None):
    """Evaluate a model on a split, or on `max_images` sampled from it.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split of a `Dataset`.
        task: The name of a task.
        names: One name per output; None for their indices.
        batch_size: Images computed at a time.
        max_images: The number of images.
        folder: The data set's; names of image files are relative to it.

    Returns:
        Summary.

    Raises:
        ValueError: if the samples' labels do not fit the model.

    Example:
        >>> summary = summarize(model, load_dataset("digits").split("test"), "single_label")
        >>> summary.scores["samples"], len(summary.worst), summary.confusion.shape
        (355, 12, (10, 10))
    """
    task, subset = get_task(task), _subset(samples, max_images)
    names = names or [str(i) for i in range(model.num_classes)]
    predictions = predict(model, subset, batch_size, task)
    errors, correct = task.errors(predictions), task.correct(predictions)
    order = np.argsort(-errors, kind="stable")
    count = min(MAX_PICTURES, (len(order) + 1) // 2)
    best = [i for i in order[: count - 1 : -1] if correct[i]][:MAX_PICTURES]
    indices = np.array([*order[:count], *best])
    chosen = _read(model, subset, indices)
    files = _file_names(subset, folder)
    pictures = [
        _thumbnail(model, image, label, task, names, files[i] if files else "")
        for i, (image, label) in zip(indices, chosen)
    ]
    drawn = task.has_class_ids and model.num_classes <= MAX_MATRIX
    return Summary(
        scores=task.scores(predictions),
        classes=task.per_class(predictions, names) if task.per_class else None,
        confusion=confusion_matrix(predictions) if drawn else None,
        errors=_frequent_errors(predictions, names) if task.has_class_ids else [],
        worst=pictures[:count],
        best=pictures[count:],
        images=[image for image, _ in chosen[:count]],
        labels=[task.format_label(label, names) for _, label in chosen[:count]],
        total=len(samples),
    )


def summary_sections(summary, split, scores=None):
    """Return sections of a report, and PNG files by name.

    Args:
        summary: Summary.
        split: Its title: "digits, test".
        scores: Those of the whole split if they are known.
    """
    count, subset = summary.scores["samples"], split
    words = f"{split}: {format_value(summary.total)} images."
    if count < summary.total:
        subset = f"{split} ({format_value(count)} of {format_value(summary.total)} images sampled)"
        scope = "Everything below the scores" if scores else "Everything below"
        words += f" {scope} is computed on {format_value(count)} sampled images."
    title, scores = (split, scores) if scores else (subset, summary.scores)
    rows = [(name.replace("_", " "), score) for name, score in scores.items()]
    sections, files = {"Scores": [words, table(f"Scores on {title}", ("score", "value"), rows)]}, {}
    if summary.classes:
        sections["Scores"].append(_class_table(summary.classes))
    confusions = []
    if summary.confusion is not None:
        names = [row["name"] for row in summary.classes]
        png = files["confusion"] = png_of(confusion_figure(summary.confusion, names, subset))
        words = "Rows are true classes, columns predicted ones."
        confusions += [words, picture(png, f"Confusion matrix of {subset}")]
    if summary.errors:
        columns = ("true class", "predicted", "images")
        confusions.append(table("The most frequent errors", columns, summary.errors))
    if confusions:
        sections["Confusions"] = confusions
    if summary.worst:
        words = "The largest losses first. A wrong prediction is followed by the true label."
        sections["Worst predictions"] = [words, gallery(summary.worst)]
    if summary.best:
        words = "The smallest losses of correct predictions first."
        sections["Best predictions"] = [words, gallery(summary.best)]
    return sections, files


def sample_images(model, samples, task, names, count):
    """Return evenly spaced samples of a split: model inputs, and their labels as text."""
    subset = _subset(samples, MAX_IMAGES)
    indices = np.linspace(0, len(subset) - 1, min(count, len(subset))).astype(int)
    chosen = _read(model, subset, indices)
    return [image for image, _ in chosen], [get_task(task).format_label(label, names) for _, label in chosen]


def _frequent_errors(predictions, names):
    pairs = np.stack([predictions.labels, predictions.best[:, 0]], axis=1)
    pairs, counts = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_ERRORS]
    return [(names[pairs[i, 0]], names[pairs[i, 1]], int(counts[i])) for i in order]


def _file_names(samples, folder):
    """Return the images' files, relative to the data set's folder; None where images are no files."""
    if folder is None or not isinstance(samples, Samples):
        return None
    paths = map(pathlib.Path, samples.images)
    return [p.relative_to(folder).as_posix() if p.is_relative_to(folder) else p.name for p in paths]


def _subset(samples, count):
    if len(samples) <= count:
        return samples
    if isinstance(samples, Samples):
        return samples.take(np.sort(np.random.default_rng(0).choice(len(samples), count, replace=False)))
    # The first step of a run. Of records that are read by index, no others are read; of TFRecord files, the
    # first that fill the shuffle buffer.
    records = samples.training_records(0, 0, 1, count)
    return Subset(records.map(lambda position, encoded, label: (encoded, label)), count, samples.exif)


def _read(model, samples, indices):
    """Return (model input, label) of samples in the order of the indices; others are not decoded."""
    selected = tf.constant(np.sort(indices), tf.int64)
    records = samples.evaluation_records().enumerate()
    records = records.filter(lambda i, _: tf.reduce_any(i == selected)).map(lambda _, record: record)
    batches = evaluation_batches(Subset(records, len(indices), samples.exif), model.preprocessing, 1)
    found = [(images[0].numpy(), labels[0].numpy()) for images, labels in batches]
    return [found[place] for place in np.argsort(np.argsort(indices))]


def _thumbnail(model, image, label, task, names, file):
    """Return a small picture with the prediction, and the truth where it differs."""
    output = model.predict_on_batch(image[np.newaxis])[0].astype("float64")
    predicted, true = task.decide(output), task.format_label(label, names)
    caption = task.format_label(predicted, names)
    if task.has_class_ids:
        caption += f" ({task.probabilities(output).max():.1%})"
    if not np.array_equal(predicted, label):
        caption += f"; is {true}"
    thumbnail = Image.fromarray(np.round(model.preprocessing.colors(image) * 255).astype("uint8"))
    thumbnail.thumbnail(THUMBNAIL)
    png = io.BytesIO()
    thumbnail.save(png, "PNG")
    return picture(png.getvalue(), f"An image of {true}", caption, file)


def _class_table(classes):
    title, rows = "Each class", classes
    if len(classes) > MAX_ROWS:
        score = "accuracy" if "accuracy" in classes[0] else "recall"
        rows = sorted((row for row in classes if row["samples"]), key=lambda row: row[score])[:MAX_ROWS]
        title = f"The {len(rows)} worst of {len(classes)} classes"
    columns = [name.replace("_", " ") for name in classes[0]]
    return table(title, columns, [tuple(row.values()) for row in rows])
