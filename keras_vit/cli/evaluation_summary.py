"""How good a model is on a split: the sections of a report with scores, confusions and predictions."""

import collections
import io
import pathlib

import numpy as np
from PIL import Image

from keras_vit.cli.page import format_value, gallery, picture, table
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.samples import Samples
from keras_vit.evaluation import predict
from keras_vit.inspection.class_map_figures import class_example_figure, iou_figure, segmentation_figure
from keras_vit.inspection.figures import confusion_figure
from keras_vit.messages import spelled
from keras_vit.tasks import get_task

MAX_IMAGES = 2000  # computed for a report
MAX_PICTURES = 12  # best predictions, and worst ones
MAX_MATRIX = 60  # classes of a confusion matrix whose names are legible
MAX_ROWS = 100  # classes in a table
MAX_ERRORS = 10  # pairs of classes
MAX_FILES = 3  # names of files for each pair
MAX_EXAMPLES = 24  # classes of which an example is drawn
THUMBNAIL = (192, 192)  # pixels


def add_evaluation(report, model, samples, task, split, names=None, batch_size=64, folder=None, scores=None):
    """Add the sections of an evaluation to a report; of a large split, of `MAX_IMAGES` random samples.

    Args:
        report: Report.
        model: A `VisionTransformer` with a head, an `ImageSegmenter` or an `ExportedModel`.
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
        >>> from keras_vit.cli.page import Report
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

    words, sampled = f"{split}: {format_value(len(samples))} images.", split
    if len(subset) < len(samples):
        scope = "Everything below the scores" if scores else "Everything below"
        words += f" {scope} is computed on {format_value(len(subset))} sampled images."
        sampled += f" ({format_value(len(subset))} of {format_value(len(samples))} images sampled)"
    report.add("Scores", words, score_table(scores or own_scores, split if scores else sampled))
    if task.per_class:
        report.add("Scores", _class_table(result["classes"]))
    if task.confusion and len(names) <= MAX_MATRIX:
        report.add("Confusions", "Rows are true classes, columns predicted ones.")
        figure = confusion_figure(task.confusion(predictions), names, sampled)
        report.draw("Confusions", "confusion", figure, f"Confusion matrix of {sampled}")
    if task.label.is_class_id:
        _add_errors(report, predictions, names, files)
    if task.label.is_map:
        _add_class_examples(report, model, subset, predictions, task, result["classes"], sampled)

    def add_pictures(heading, words, indices, shown):
        if task.label.is_map:
            scores = predictions.image_iou
            captions = [": ".join(filter(None, (files[i], f"IoU {scores[i]:.2f}"))) for i in indices]
            inputs, truth = zip(*shown)
            predicted = predicted_maps(model, inputs, task)
            figure = segmentation_figure(colors_of(model, inputs), predicted, truth, captions, names, heading)
            report.add(heading, "Each image as the model receives it, with the mean IoU of its classes.")
            report.draw(heading, heading.split()[0].lower(), figure, f"{heading} of {split}")
        else:
            outputs = _outputs(model, [image for image, _ in shown])
            pairs = zip(shown, outputs, indices)
            pictures = [_thumbnail(model, *pair, output, task, names, files[i]) for pair, output, i in pairs]
            report.add(heading, words, gallery(pictures))

    order, correct = np.argsort(-task.errors(predictions), kind="stable"), task.correct(predictions)
    worst = order[: min(MAX_PICTURES, (len(order) + 1) // 2)]
    best = [i for i in order[len(worst) :][::-1] if correct[i]][:MAX_PICTURES]
    read = _read(model, subset, [*worst, *best])
    shown = read[: len(worst)]
    words = "The largest losses first. A wrong prediction is followed by the true label."
    add_pictures("Worst predictions", words, worst, shown)
    if best:
        words = "The smallest losses of correct predictions first."
        add_pictures("Best predictions", words, best, read[len(worst) :])
    return result, [image for image, _ in shown], [task.label.format(label, names) for _, label in shown]


def predicted_maps(model, inputs, task):
    """Return the class map of each model input, of any sizes."""
    return [task.label.decide(model.predict_on_batch(image[np.newaxis]))[0] for image in inputs]


def colors_of(model, inputs):
    """Return the colors of model inputs, for figures."""
    return [model.preprocessing.colors(image) for image in inputs]


def score_table(scores, title):
    """Return the table of a dict of scores."""
    rows = [(spelled(name), score) for name, score in scores.items()]
    return table(f"Scores on {title}", ("score", "value"), rows)


def sample_images(model, samples, task, names, count):
    """Return evenly spaced samples of a split: model inputs, and their labels as text."""
    subset = draw_samples(samples, MAX_IMAGES)
    shown = _read(model, subset, np.linspace(0, len(subset) - 1, min(count, len(subset))).astype(int))
    return [image for image, _ in shown], [get_task(task).label.format(label, names) for _, label in shown]


def draw_samples(samples, count):
    """Return at most `count` samples of a split, drawn at random, as `Samples`; no others are read."""
    if not hasattr(samples, "take"):
        # The first step of a run. TFRecord files are read in order, and shuffled in a buffer.
        records = samples.training_records(0, 0, 1, min(count, len(samples)))
        images, labels = zip(*((image.numpy(), label.numpy()) for _, image, label in records))
        return Samples(images, labels, samples.exif)
    if len(samples) <= count:
        return samples
    return samples.take(np.sort(np.random.default_rng(0).choice(len(samples), count, replace=False)))


def _file_names(samples, folder):
    """Return the images' files, relative to the data set's folder; empty names where images are no files."""
    if folder is None or not isinstance(samples.images[0], str):
        return [""] * len(samples)
    paths = map(pathlib.Path, samples.images)
    return [p.relative_to(folder).as_posix() if p.is_relative_to(folder) else p.name for p in paths]


def _read(model, samples, indices):
    """Return the (model input, label) of samples."""
    batches = evaluation_batches(samples.take(indices), model.preprocessing, 1)
    return [(images[0].numpy(), labels[0].numpy()) for images, labels in batches]


def _add_errors(report, predictions, names, files):
    """Add the most frequent errors with the files of some."""
    errors = collections.defaultdict(list)
    for true, predicted, file in zip(predictions.labels, predictions.best[:, 0], files):
        if true != predicted:
            errors[names[true], names[predicted]].append(file)
    most = sorted(errors.items(), key=lambda error: -len(error[1]))[:MAX_ERRORS]
    rows = [(*pair, len(found), ", ".join(found[:MAX_FILES])) for pair, found in most]
    if not any(files):
        rows = [row[:3] for row in rows]
    if rows:
        columns = ("true class", "predicted", "images", "files")[: len(rows[0])]
        report.add("Confusions", table("The most frequent errors", columns, rows))


def _add_class_examples(report, model, subset, predictions, task, classes, split):
    """Add the IoU of each class, and for each the image with most of its pixels."""
    labeled = [number for number, row in enumerate(classes) if row["pixels"]]
    if not labeled:  # All pixels are ignored.
        return
    report.draw("Scores", "iou", iou_figure(classes, split), f"IoU of each class of {split}")
    images = np.repeat(np.arange(len(predictions.lengths)), predictions.lengths)
    true, predicted, pixels = predictions.pairs.T
    chosen = sorted(sorted(labeled, key=lambda number: classes[number]["iou"])[:MAX_EXAMPLES])
    largest, captions = [], []
    for number in chosen:
        own, found = true == number, predicted == number
        largest.append(np.bincount(images[own], pixels[own]).argmax())
        here = pixels * (images == largest[-1])
        iou = here[own & found].sum() / here[own | found].sum()
        captions.append(f"{classes[number]['name']}: IoU {iou:.2f}")
    inputs, truth = zip(*_read(model, subset, largest))
    drawn = colors_of(model, inputs), predicted_maps(model, inputs, task), truth
    heading = "Classes"
    figure = class_example_figure(*drawn, chosen, captions, heading)
    which = "each class" if len(chosen) == len(labeled) else f"the {len(chosen)} classes of lowest IoU"
    report.add(heading, f"For {which}, the image with most of its pixels.")
    report.draw(heading, "examples", figure, f"Examples of classes of {split}")


def _outputs(model, images):
    """Return the output for each model input, computed together where all have one size."""
    batches = [images] if len({image.shape for image in images}) == 1 else [[image] for image in images]
    return np.concatenate([model.predict_on_batch(np.stack(batch)) for batch in batches]).astype("float64")


def _thumbnail(model, image, label, output, task, names, file):
    """Return a small picture with the prediction, and the truth where it differs."""
    predicted, true = task.label.decide(output), task.label.format(label, names)
    caption = task.label.format(predicted, names) + task.confidence(output)
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
        rows = sorted((row for row in classes if row[score] is not None), key=lambda row: row[score])
        rows = rows[:MAX_ROWS]
        title = f"The {len(rows)} worst of {len(classes)} classes"
    columns = [spelled(name) for name in classes[0]]
    return table(title, columns, [tuple(row.values()) for row in rows])
