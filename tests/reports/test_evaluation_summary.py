import base64
import collections
import html
import io
import re

import numpy as np
import pytest
import tensorflow as tf
from made.detections import random_predictions
from made.folders import write_classes
from made.pages import read_page
from made.sampling import some
from PIL import Image
from reference.small import small

from keras_vit import ImageSegmenter
from keras_vit.data.mixed_samples import MixedSamples, Part
from keras_vit.data.samples import IndexedRecords, Samples
from keras_vit.evaluation import KeypointPredictions, evaluate
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.reports import evaluation_summary
from keras_vit.reports.evaluation_summary import add_evaluation, draw_samples, sample_images
from keras_vit.reports.page import Report
from keras_vit.tasks import get_task, label_storages
from keras_vit.tasks.segmentation.samples import MaskSamples

pytestmark = pytest.mark.usefixtures("eager", "undrawn")


@pytest.fixture(scope="module")
def model():
    """A model of five classes, which is traced once."""
    return small()


NAMES = ("ant", "bee", "cat", "dog", "<eel>")


def encoded(count):
    """PNG files of one color each, and these colors."""
    colors = np.random.default_rng(0).integers(0, 256, (count, 3), "uint8")
    return tuple(image_bytes(np.full((16, 16, 3), color)) for color in colors), colors


def labeled(task, count):
    rng = np.random.default_rng(1)
    labels = {
        "single_label": lambda: tuple(rng.integers(0, 5, count).tolist()),
        "multi_label": lambda: tuple(tuple(map(float, row)) for row in rng.integers(0, 2, (count, 5))),
        "regression": lambda: tuple(tuple(map(float, row)) for row in rng.normal(size=(count, 5))),
    }[task]()
    files, colors = encoded(count)
    return Samples(files, labels), colors


def outputs_of(model, colors):
    images = np.broadcast_to(colors[:, np.newaxis, np.newaxis], (len(colors), 16, 16, 3))
    return np.asarray(model(model.preprocessing(images)), "float64")


def errors_of(outputs, labels, task):
    """(the error of each sample, whether it is predicted correctly)."""
    if task == "single_label":
        scores = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        return -np.log(scores[np.arange(len(labels)), labels]), outputs.argmax(axis=1) == labels
    if task == "regression":
        return np.abs(outputs - labels).mean(axis=1), np.ones(len(labels), bool)
    return np.abs(1 / (1 + np.exp(-outputs)) - labels).mean(axis=1), ((outputs > 0) == labels).all(axis=1)


def evaluated(model, samples, task="single_label", names=NAMES, **options):
    """(what is returned, the page, its pictures by section as (caption, size, color))."""
    report = Report()
    found = add_evaluation(report, model, samples, task, "made, test", names, **options)
    text = report.page("t")
    pictures = {}
    for heading in ("Worst predictions", "Best predictions"):
        section = text.partition(f"<h2>{heading}</h2>")[2].partition("</section>")[0]
        pictures[heading.split()[0]] = [
            (caption, *pixels(data))
            for data, caption in re.findall(r'base64,([^"]+)"[^>]*><figcaption>(.*?)</figcaption>', section)
        ]
    return found, text, pictures


def pixels(data):
    """The size of a picture, and its middle pixel."""
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return image.size, image.getpixel((image.width // 2, image.height // 2))


@pytest.fixture(scope="module")
def classified(model):
    """Classified samples, their colors, and what `evaluated` returns for them."""
    samples, colors = labeled("single_label", 31)
    return samples, colors, evaluated(model, samples, batch_size=8)


def test_scores_have_a_row_for_each_class_and_the_confusion_matrix_names_its_axes(classified):
    _, _, (_, text, _) = classified
    scores = text.partition("<h2>Scores</h2>")[2].partition("</section>")[0]
    assert all(html.escape(name) in scores for name in NAMES)
    assert "Rows are true classes, columns predicted ones." in text


@pytest.mark.slow
@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_worst_and_best_predictions_are_ordered_by_their_error(task, model, classified):
    samples, colors, found = classified
    if task != "single_label":
        samples, colors = labeled(task, 31)
        found = evaluated(model, samples, task)
    (result, images, labels), _, pictures = found
    assert evaluate(model, samples, 8, task).items() <= result.items() and result["drawn_from"] == 31
    errors, correct = errors_of(outputs_of(model, colors), np.array(samples.labels), task)
    order = np.argsort(-errors)
    best = [i for i in order[:11:-1] if correct[i]][:12]
    for name, expected in (("Worst", order[:12]), ("Best", best)):
        assert [picture[1:] for picture in pictures[name]] == [((16, 16), (*colors[i],)) for i in expected]
    expected = model.preprocessing([np.broadcast_to(colors[i], (16, 16, 3)) for i in order[:12]])
    np.testing.assert_allclose(images, expected, atol=1e-6)
    if task == "single_label":
        assert labels == [NAMES[samples.labels[i]] for i in order[:12]]


@pytest.mark.slow
def test_captions_have_the_prediction_and_the_truth_where_it_differs(model, classified):
    samples, colors, (_, _, pictures) = classified
    for caption, _, color in pictures["Worst"] + pictures["Best"]:
        (i,) = np.flatnonzero((colors == color).all(axis=1))
        ((index, probability), *_) = model.classify([np.broadcast_to(colors[i], (16, 16, 3))])[0]
        true, predicted = NAMES[samples.labels[i]], NAMES[int(index)]
        wrong = f"; is {true}" if true != predicted else ""
        assert html.unescape(caption) == f"{predicted} ({probability:.1%}){wrong}"


def test_the_most_frequent_errors_are_counted(model, classified):
    samples, colors, (_, text, _) = classified
    best, labels = outputs_of(model, colors).argmax(axis=1), np.array(samples.labels)
    pairs = collections.Counter((NAMES[t], NAMES[p]) for t, p in zip(labels, best) if t != p)
    section = text.partition("The most frequent errors")[2].partition("</table>")[0]
    cells = re.findall(r'"row">(.*?)</th><td>(.*?)</td><td class="number">(\d+)</td>', html.unescape(section))
    assert [int(count) for *_, count in cells] == [count for _, count in pairs.most_common(10)] != []
    assert all(pairs[true, predicted] == int(count) for true, predicted, count in cells)


@pytest.mark.parametrize(
    "task, label, words",
    some(
        [
            ("multi_label", (0.0, 1.0, 0.0, 0.0, 1.0), "bee, <eel>"),
            ("multi_label", (0.0,) * 5, "none"),
            ("regression", (0.5, 2.0, -1.0, 0.0, 1 / 3), "ant 0.5, bee 2, cat -1, dog 0, <eel> 0.3333"),
        ],
        3,
    ),
)
def test_labels_of_several_numbers_are_text(task, label, words, model):
    samples = Samples(encoded(2)[0], (label, (1.0,) * 5))
    images, labels = sample_images(model.preprocessing, samples, task, NAMES, 8)
    assert labels[0] == words and len(images) == 2


class _Source(list):
    """What an array record is: a sequence that gives several at once."""

    def __getitems__(self, indices):
        self.read = [*getattr(self, "read", ()), *indices]
        return [self[i] for i in indices]


@pytest.mark.slow
def test_a_large_split_is_sampled_and_other_images_are_not_read(model, monkeypatch):
    monkeypatch.setattr(evaluation_summary, "MAX_IMAGES", 20)
    monkeypatch.setattr(evaluation_summary, "MAX_PICTURES", 2)
    samples, _ = labeled("single_label", 200)
    source = _Source(samples.images)
    table = tf.constant(samples.labels)
    records = IndexedRecords(
        source, lambda r: (r, tf.gather(table, tf.argmax(tf.cast(tf.constant([*source]) == r, "int32"))))
    )
    known = {"samples": 200, "accuracy": 0.25}
    for split in (samples, records):
        (result, *_), text, _ = evaluated(model, split, scores=known)
        assert (result["samples"], result["drawn_from"]) == (20, 200)
        assert "200 images. Everything below the scores is computed on 20 sampled images." in text
        assert "Scores on made, test</caption>" in text and '<td class="number">0.2500</td>' in text
        assert "Confusion matrix of made, test (20 of 200 images sampled)" in text
    read = {*source.read}
    assert len(read) == 20 and len([i for i in read if i < 100]) in range(4, 17)


def test_masks_of_several_sizes_that_are_read_in_order_are_drawn():
    maps = [np.full(size, value, "uint8") for value, size in enumerate([(4, 6), (8, 4), (4, 4)])]
    parts = (MaskSamples((image_bytes(own),), (image_bytes(own),)) for own in maps)
    drawn = draw_samples(MixedSamples(tuple(Part("part", part) for part in parts)), 10)
    assert {mask.shape[:2]: mask.max() for _, mask in drawn} == {(4, 6): 0, (8, 4): 1, (4, 4): 2}


def test_depths_and_boxes_that_are_read_in_order_are_drawn():
    image = image_bytes(np.zeros((4, 6), "uint8"))
    maps = [np.full((4, 6, 1), value, "float32") for value in (1.5, np.nan, 3)]
    boxes = [np.zeros((count, 7), "float32") for count in (2, 0, 1)]
    for task, labels in (("depth", maps), ("detection", boxes)):
        parts = [Part("part", label_storages()[task].samples_of((image,), (label,))) for label in labels]
        drawn = [label for _, label in draw_samples(MixedSamples(tuple(parts)), 10)]
        for label in labels:
            assert any(np.array_equal(label, other, equal_nan=True) for other in drawn)


@pytest.mark.slow
def test_only_correct_predictions_are_best_and_there_may_be_none(model):
    samples, colors = labeled("single_label", 6)
    wrong = (outputs_of(model, colors).argmax(axis=1) + 1) % 5
    _, text, pictures = evaluated(model, Samples(samples.images, tuple(wrong.tolist())))
    assert len(pictures["Worst"]) == 3 and "Best predictions" not in text


@pytest.mark.slow
def test_pictures_and_errors_name_their_files_below_the_data_sets_folder(tmp_path, model):
    root = write_classes(tmp_path / "data", names=("a", "b"), count=4)
    outside = write_classes(tmp_path / "elsewhere", names=("c",), count=1)
    paths = [*sorted(root.rglob("*.png")), *outside.rglob("*.png")]
    samples = Samples(tuple(map(str, paths)), (0,) * 4 + (1,) * 5)
    (result, *_), text, _ = evaluated(model, samples, folder=root)
    known = {*(f"{name}/0{i}.png" for name in "ab" for i in range(4)), "00.png"}
    assert {*re.findall("<small>(.*?)</small>", text)} <= known and str(tmp_path) not in text
    errors = read_page(text).text.partition("The most frequent errors")[2].partition("Worst")[0]
    assert any(name in errors for name in known)


def test_of_many_classes_and_keypoints_the_worst_are_listed(monkeypatch):
    objects = random_predictions(np.random.default_rng(4))
    truth, box = np.array([[[10.0, 10.0, 2], [30.0, 30.0, 2]]]), np.array([[0.0, 0, 50, 50]])
    rows = np.ones(1), np.array([0]), truth, box, np.array([2500.0]), np.array([False]), np.array([0])
    points = KeypointPredictions(truth + [[[0.0, 0, 0], [9, 0, 0]]], *rows, (0.05, 0.05))
    monkeypatch.setattr(evaluation_summary, "MAX_ROWS", 1)
    for task, predictions, worst in (("detection", objects, "2"), ("keypoints", points, "1")):
        classes = get_task(task).per_class(predictions)
        text = evaluation_summary._class_table(classes, get_task(task).class_score)
        assert f"The 1 worst of {len(classes)} classes" in text and f'"row">{worst}</th>' in text


@pytest.mark.slow
def test_of_many_classes_the_worst_are_listed_and_no_matrix_is_drawn():
    names = tuple(str(i) for i in range(120))
    samples, _ = labeled("single_label", 150)
    samples = Samples(samples.images, tuple(i % 120 for i in range(150)))
    _, text, _ = evaluated(small(num_classes=120), samples, names=names)
    assert "Confusion matrix" not in text
    rows = text.partition("The 100 worst of 120 classes")[2].partition("</table>")[0]
    counts = '<td class="number">[0-9]+</td>' * 2
    accuracies = [float(cell) for cell in re.findall(f'{counts}<td class="number">([0-9.]+)</td>', rows)]
    assert len(accuracies) == 100 and accuracies == sorted(accuracies)


@pytest.mark.slow
def test_a_split_whose_pixels_are_all_ignored_has_no_examples_of_classes():
    files = (image_bytes(Image.new("L", (16, 16))),) * 3
    ignored = MaskSamples(files, files, values=(255,) * 256)
    segmenter = ImageSegmenter(small(num_classes=None), 5)
    report = Report()
    result, images, _ = add_evaluation(report, segmenter, ignored, "segmentation", "made, test", NAMES)
    assert result["samples"] == 3 and result["mean_iou"] is None
    assert not {"iou", "examples"} & {name.partition(".")[0] for name in report.figures} and len(images) == 2
