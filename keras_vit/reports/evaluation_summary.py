"""How good a model is on a split: the sections of a report with scores, confusions and predictions."""

import pathlib

import numpy as np

from keras_vit.data.label_storage import chosen_samples
from keras_vit.evaluation import predict
from keras_vit.inspection.figures import confusion_figure
from keras_vit.messages import spelled
from keras_vit.reports.image_pictures import ImagePictures, read_samples
from keras_vit.reports.page import format_value, table
from keras_vit.tasks import get_task, report_pictures

MAX_IMAGES = 2000  # computed for a report
MAX_PICTURES = 12  # best predictions, and worst ones
MAX_MATRIX = 60  # classes of a confusion matrix whose names are legible
MAX_ROWS = 100  # classes in a table


def add_evaluation(report, model, samples, task, split, names=None, batch_size=64, folder=None, scores=None):
    """Add the sections of an evaluation to a report; of a large split, of `MAX_IMAGES` random samples.

    Args:
        report: Report.
        model: A model with a head, or an `ExportedModel`.
        samples: A split of a `Dataset`.
        task: As for `evaluate`.
        split: Its title: "digits, test".
        names: A name for each output; None for indices.
        batch_size: Images per batch.
        folder: The data set's folder, to which names of files are relative; None to show none.
        scores: Those of the whole split if they are known.

    Returns:
        (result, images, labels): the scores, the size of the split and the scores of each class by their keys
        in result.json; the model inputs of the worst predictions, and their true labels as text.

    Raises:
        ValueError: if there are no samples, or a label does not fit the model.

    Example:
        >>> from keras_vit.reports.page import Report
        >>> samples = load_dataset("digits").split("test")
        >>> result, images, labels = add_evaluation(Report(), model, samples, "single_label", "digits, test")
        >>> result["samples"], len(images)
        (355, 12)
    """
    task, subset = get_task(task), draw_samples(samples, MAX_IMAGES)
    names = names or [str(i) for i in range(model.num_classes)]
    files = _file_names(subset, folder)
    predictions = predict(model, subset, batch_size, task)
    own_scores = task.scores(predictions)
    result = own_scores | {"drawn_from": len(samples)}
    if task.per_class:
        result["classes"] = task.per_class(predictions, names)

    text, sampled = f"{split}: {format_value(len(samples))} images.", split
    if len(subset) < len(samples):
        scope = "Everything below the scores" if scores else "Everything below"
        text += f" {scope} is computed on {format_value(len(subset))} sampled images."
        sampled += f" ({format_value(len(subset))} of {format_value(len(samples))} images sampled)"
    report.add("Scores", text, score_table(scores or own_scores, split if scores else sampled))
    if task.per_class:
        report.add("Scores", _class_table(result["classes"], task.class_score))
    if task.confusion and len(names) <= MAX_MATRIX:
        report.add("Confusions", "Rows are true classes, columns predicted ones.")
        figure = confusion_figure(task.confusion(predictions), task.confusion_names(names), sampled)
        report.draw("Confusions", "confusion", figure, f"Confusion matrix of {sampled}")
    pictures_of = report_pictures().get(task.name, ImagePictures)
    pictures = pictures_of(report, model, task, predictions, names, files)
    pictures.add_details(subset, result, sampled)

    order, correct = np.argsort(-task.errors(predictions), kind="stable"), task.correct(predictions)
    worst = order[: min(MAX_PICTURES, (len(order) + 1) // 2)]
    best = [i for i in order[len(worst) :][::-1] if correct[i]][:MAX_PICTURES]
    read = read_samples(model.preprocessing, subset, [*worst, *best])
    shown = read[: len(worst)]
    text = "The largest losses first. A wrong prediction is followed by the true label."
    pictures.add("Worst predictions", text, worst, shown, split)
    if best:
        text = "The smallest losses of correct predictions first."
        pictures.add("Best predictions", text, best, read[len(worst) :], split)
    return result, [image for image, _ in shown], [task.label.format(label, names) for _, label in shown]


def score_table(scores, title):
    """Return the table of a dict of scores."""
    rows = [(spelled(name), score) for name, score in scores.items()]
    return table(f"Scores on {title}", ("score", "value"), rows)


def sample_images(preprocessing, samples, task, names, count):
    """Return evenly spaced samples of a split: model inputs, and their labels as text."""
    subset = draw_samples(samples, MAX_IMAGES)
    indices = np.linspace(0, len(subset) - 1, min(count, len(subset))).astype(int)
    shown = read_samples(preprocessing, subset, indices)
    return [image for image, _ in shown], [get_task(task).label.format(label, names) for _, label in shown]


def draw_samples(samples, count):
    """Return at most `count` samples of a split, drawn at random, as samples by index; no others are read."""
    drawn = np.random.default_rng(0).choice(len(samples), min(count, len(samples)), replace=False)
    return chosen_samples(samples, np.sort(drawn))


def _file_names(samples, folder):
    """Return the images' files, relative to the data set's folder; empty names where images are no files."""
    if folder is None or not isinstance(samples.images[0], str):
        return [""] * len(samples)
    paths = map(pathlib.Path, samples.images)
    return [p.relative_to(folder).as_posix() if p.is_relative_to(folder) else p.name for p in paths]


def _class_table(classes, score):
    title, rows = "Each class", classes
    if len(classes) > MAX_ROWS:
        rows = sorted((row for row in classes if row[score] is not None), key=lambda row: row[score])
        rows = rows[:MAX_ROWS]
        title = f"The {len(rows)} worst of {len(classes)} classes"
    columns = [spelled(name) for name in classes[0]]
    return table(title, columns, [tuple(row.values()) for row in rows])
