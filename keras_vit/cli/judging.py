"""How good a model is on a split, as parts of a report: scores, confusions, best and worst predictions."""

import dataclasses
import io
import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.cli.page import Picture, Section, Table, png_of, shown
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.samples import Samples
from keras_vit.evaluation import confusion_matrix, predict
from keras_vit.inspection.figures import confusion_figure
from keras_vit.tasks import get_task

MOST = 2000  # images computed for a report
PICTURES = 12  # best ones, and as many worst
DRAWN = 60  # classes of a confusion matrix that can still be read
ROWS = 100  # classes in a table; of more, the worst
MIXED_UP = 10  # pairs of classes
FILES = 3  # named of each pair
SIDES = (96, 192)  # of a small picture, in pixels


@dataclasses.dataclass(frozen=True)
class Some:
    """Some samples of a split, which `evaluation` reads as it reads all.

    Args:
        records: tf.data.Dataset of (encoded image, label).
        count: How many.
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
class Judged:
    """What a model makes of a split.

    Args:
        scores: What `evaluation` returns for the task.
        classes: A dict for each class, or None.
        confusion: (classes, classes), or None.
        mixed_up: (class, what it is taken for, how often), the most frequent first; where images are files,
            with the names of some.
        worst, best: Pictures with what the model says and what is true, of the largest loss and, among the
            correct predictions, of the smallest.
        images: Model inputs of the worst, and their `truths` in words.
        total: How many images the split has; `scores["samples"]` of them were drawn for all this.
    """

    scores: dict
    classes: list | None
    confusion: np.ndarray | None
    mixed_up: list
    worst: list
    best: list
    images: list
    truths: list
    total: int


def judge(model, samples, task, names=None, batch_size=64, most=MOST, folder=None):
    """Compute a split, or `most` images drawn from it, and see what is best and worst.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split of a `Dataset`.
        task: "single_label", "multi_label" or "regression".
        names: One name per class or number; None for their numbers.
        batch_size: Images computed at a time.
        most: How many images.
        folder: The data set's; names of image files are relative to it.

    Returns:
        Judged.

    Raises:
        ValueError: if the samples' labels are not the model's.

    Example:
        >>> judged = judge(model, load_dataset("digits").split("test"), "single_label")
        >>> judged.scores["samples"], len(judged.worst), judged.confusion.shape
        (355, 12, (10, 10))
    """
    some = _some(samples, most)
    names = names or [str(i) for i in range(model.num_classes)]
    files = _file_names(some, folder)
    confusion, mixed_up = None, []
    task = get_task(task)
    predictions = predict(model, some, batch_size, task)
    scores = task.scores(predictions)
    classes = task.per_class(predictions, names) if task.per_class else None
    losses, correct = task.errors(predictions), task.correct(predictions)
    if task.has_class_ids:
        mixed_up = _mixed_up(predictions, names, files)
        if model.num_classes <= DRAWN:
            confusion = confusion_matrix(predictions)

    order = np.argsort(-losses, kind="stable")
    count = min(PICTURES, (len(order) + 1) // 2)
    best = [i for i in order[: count - 1 : -1] if correct[i]][:PICTURES]
    indices = np.array([*order[:count], *best])
    picked = _read(model, some, indices)
    pictures = [
        _picture(model, *pair, task, names, files[i] if files else "") for i, pair in zip(indices, picked)
    ]
    return Judged(
        scores,
        classes,
        confusion,
        mixed_up,
        pictures[:count],
        pictures[count:],
        [image for image, _ in picked[:count]],
        [task.format_label(label, names) for _, label in picked[:count]],
        len(samples),
    )


def judged_sections(judged, split, scores=None):
    """Sections of a report, and PNG files by name.

    Args:
        judged: Judged.
        split: What it is of, in words: "digits, test".
        scores: Those of the whole split where they are known.
    """
    count, of = judged.scores["samples"], split
    words = f"{split}: {shown(judged.total)} images."
    if count < judged.total:
        of = f"{split} ({shown(count)} of {shown(judged.total)} images drawn)"
        what = "What follows the scores" if scores else "All that follows"
        words += f" {what} is of {shown(count)} drawn from them."
    on, scores = (split, scores) if scores else (of, judged.scores)
    rows = [(name.replace("_", " "), score) for name, score in scores.items()]
    tables = [Table(f"Scores on {on}", ("score", "value"), rows)]
    if judged.classes:
        tables.append(_classes(judged.classes))
    sections, files = [Section("Scores", (words,), tables=tuple(tables))], {}
    pictures, words, tables = (), (), ()
    if judged.confusion is not None:
        class_names = [row["name"] for row in judged.classes]
        png = files["confusion"] = png_of(confusion_figure(judged.confusion, class_names, of))
        words = ("Rows are true classes, columns predicted ones.",)
        pictures = (Picture(png, f"Confusion matrix of {of}"),)
    if judged.mixed_up:
        columns = ("true class", "predicted", "images", "files")[: len(judged.mixed_up[0])]
        tables = (Table("The most frequent errors", columns, judged.mixed_up),)
    if pictures or tables:
        sections.append(Section("Confusions", words, figures=pictures, tables=tables))
    for heading, words, pictures in (
        (
            "Worst predictions",
            "The largest losses first. A wrong prediction is followed by the true label.",
            judged.worst,
        ),
        ("Best predictions", "The smallest losses of correct predictions first.", judged.best),
    ):
        if pictures:
            sections.append(Section(heading, (words,), gallery=tuple(pictures)))
    return sections, files


def drawn_images(model, samples, task, names, count):
    """(model inputs, what they are in words) of some images of a split, evenly spaced among `MOST` of it."""
    some = _some(samples, MOST)
    indices = np.linspace(0, len(some) - 1, min(count, len(some))).astype(int)
    picked = _read(model, some, indices)
    return [image for image, _ in picked], [get_task(task).format_label(label, names) for _, label in picked]


def _mixed_up(predictions, names, files):
    """Rows of the most frequent errors, each with the files of its largest losses if files are known."""
    found = np.stack([predictions.labels, predictions.best[:, 0]], axis=1)
    pairs, counts = np.unique(found[found[:, 0] != found[:, 1]], axis=0, return_counts=True)
    by_loss, rows = np.argsort(predictions.log_probabilities, kind="stable"), []
    for i in np.argsort(-counts, kind="stable")[:MIXED_UP]:
        row = (names[pairs[i, 0]], names[pairs[i, 1]], int(counts[i]))
        if files:
            taken = [files[k] for k in by_loss if (found[k] == pairs[i]).all()]
            row += (", ".join([*taken[:FILES], *(["…"] if len(taken) > FILES else [])]),)
        rows.append(row)
    return rows


def _file_names(samples, folder):
    """The images' files below the data set's folder; None where they are no files."""
    if folder is None or not isinstance(samples, Samples):
        return None
    paths = [pathlib.Path(path) for path in samples.images]
    return [
        path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name for path in paths
    ]


def _some(samples, most):
    if len(samples) <= most:
        return samples
    if isinstance(samples, Samples):
        return samples.take(np.sort(np.random.default_rng(0).choice(len(samples), most, replace=False)))
    # The first step of a run: of records read by index from all of the split, and no others are read; of
    # TFRecord files from the first records that fill the shuffle buffer.
    records = samples.training_records(0, 0, 1, most)
    return Some(records.map(lambda position, encoded, label: (encoded, label)), most, samples.exif)


def _read(model, samples, indices):
    """(model input, label) of some samples, in the order of the indices; no others are decoded."""
    wanted = tf.constant(np.sort(indices), tf.int64)
    records = samples.evaluation_records().enumerate()
    records = records.filter(lambda i, _: tf.reduce_any(i == wanted)).map(lambda _, record: record)
    batches = evaluation_batches(Some(records, len(indices), samples.exif), model.preprocessing, 1)
    found = [(images[0].numpy(), labels[0].numpy()) for images, labels in batches]
    return [found[place] for place in np.argsort(np.argsort(indices))]


def _picture(model, image, label, task, names, file):
    """A small picture, and below it what the model says and what is true."""
    output = model.predict_on_batch(image[np.newaxis])[0].astype("float64")
    said, true = task.decide(output), task.format_label(label, names)
    caption = task.format_label(said, names)
    if task.has_class_ids:
        caption += f" ({task.probabilities(output).max():.1%})"
    if not np.array_equal(said, label):
        caption += f"; is {true}"
    return Picture(_small(model.preprocessing.colors(image)), f"An image of {true}", caption, file)


def _small(pixels):
    """A PNG of a size to be shown beside others."""
    picture = Image.fromarray(np.round(pixels * 255).astype("uint8"))
    small, large = SIDES
    longest = max(picture.size)
    if longest > large:
        picture.thumbnail((large, large))
    elif longest < small:  # by a whole factor, so that pixels stay squares
        factor = -(-small // longest)
        picture = picture.resize([side * factor for side in picture.size], Image.Resampling.NEAREST)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _classes(classes):
    title, rows = "Each class", classes
    if len(classes) > ROWS:
        title = f"The {ROWS} least known of {len(classes)} classes"
        known = [row for row in classes if row["samples"]]
        share = "accuracy" if "accuracy" in classes[0] else "recall"
        rows = sorted(known, key=lambda row: row[share])[:ROWS]
    columns = [name.replace("_", " ") for name in classes[0]]
    return Table(title, tuple(columns), [tuple(row.values()) for row in rows])
