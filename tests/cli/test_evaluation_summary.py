import base64
import io
import re

import numpy as np
import pytest
import tensorflow as tf
from made.folders import write_classes
from made.pages import read_page
from PIL import Image
from reference.small import small

from keras_vit.cli.evaluation_summary import MAX_PICTURES, sample_images, summarize, summary_sections
from keras_vit.cli.page import page
from keras_vit.data.samples import IndexedRecords, Samples
from keras_vit.evaluation import evaluate
from keras_vit.tasks import TASKS


@pytest.fixture(scope="module")
def model():
    """A model of five classes, which is traced once."""
    return small()


NAMES = ("ant", "bee", "cat", "dog", "<eel>")


def encoded(count):
    """PNG files of one colour each, and these colours."""
    colors, files = np.random.default_rng(0).integers(0, 256, (count, 3), "uint8"), []
    for color in colors:
        file = io.BytesIO()
        Image.fromarray(np.broadcast_to(color, (16, 16, 3))).save(file, "PNG")
        files.append(file.getvalue())
    return tuple(files), colors


def labelled(task, count):
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


def pixels(picture):
    """The middle pixel of a picture in HTML, by its data."""
    data = re.search(r"base64,([^\"]+)", picture)[1]
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return image.size, image.getpixel((image.width // 2, image.height // 2))


@pytest.mark.parametrize(
    "task", [task if task != "regression" else pytest.param(task, marks=pytest.mark.slow) for task in TASKS]
)
def test_worst_and_best_predictions_are_ordered_by_their_error(task, model):
    samples, colors = labelled(task, 31)
    found = summarize(model, samples, task, NAMES, batch_size=8)
    assert found.scores == evaluate(model, samples, 8, task) and found.total == 31
    errors, correct = errors_of(outputs_of(model, colors), np.array(samples.labels), task)
    order = np.argsort(-errors)
    best = [i for i in order[:11:-1] if correct[i]][:MAX_PICTURES]
    for pictures, expected in ((found.worst, order[:12]), (found.best, best)):
        assert [pixels(picture) for picture in pictures] == [((16, 16), (*colors[i],)) for i in expected]
    expected = model.preprocessing([np.broadcast_to(colors[i], (16, 16, 3)) for i in order[:12]])
    np.testing.assert_allclose(found.images, expected, atol=1e-6)


def test_captions_have_the_prediction_and_the_truth_where_it_differs():
    model = small(num_classes=2, class_names=("a", "b"))
    samples, colors = labelled("single_label", 6)
    found = summarize(model, Samples(samples.images, (0, 1, 0, 1, 0, 1)), "single_label", ("a", "b"))
    assert len(found.worst) == 3 and len(found.best) <= 3  # of six images, none is both
    assert not any("; is " in picture for picture in found.best)
    assert found.confusion.sum() == 6 and [row["name"] for row in found.classes] == ["a", "b"]
    for picture in (*found.worst, *found.best):
        (number,) = np.flatnonzero((colors == pixels(picture)[1]).all(axis=1))
        ((predicted, probability), _) = model.classify([np.broadcast_to(colors[number], (16, 16, 3))])[0]
        true = "ab"[number % 2]
        wrong = f"; is {true}" * (predicted != true)
        assert f"<figcaption>{predicted} ({probability:.1%}){wrong}</figcaption>" in picture
        assert f'alt="An image of {true}"' in picture


@pytest.mark.parametrize(
    "task, label, words",
    [
        ("multi_label", (0.0, 1.0, 0.0, 0.0, 1.0), "bee, <eel>"),
        ("multi_label", (0.0,) * 5, "none"),
        ("regression", (0.5, 2.0, -1.0, 0.0, 1 / 3), "ant 0.5, bee 2, cat -1, dog 0, <eel> 0.3333"),
    ],
)
def test_labels_of_several_numbers_are_text(task, label, words, model):
    samples = Samples(encoded(2)[0], (label, (1.0,) * 5))
    images, labels = sample_images(model, samples, task, NAMES, 8)
    assert labels[0] == words and len(images) == 2


class _Source(list):
    """What an array record is: a sequence that gives several at once."""

    def __getitems__(self, indices):
        self.read = [*getattr(self, "read", ()), *indices]
        return [self[i] for i in indices]


def test_a_large_split_is_sampled_and_other_images_are_not_read(model):
    samples, _ = labelled("single_label", 200)
    source = _Source(samples.images)
    table = tf.constant(samples.labels)
    records = IndexedRecords(
        source, lambda r: (r, tf.gather(table, tf.argmax(tf.cast(tf.constant([*source]) == r, "int32"))))
    )
    for split in (samples, records):
        found = summarize(model, split, "single_label", NAMES, max_images=20)
        assert (found.scores["samples"], found.total) == (20, 200)
    read = {*source.read}
    assert len(read) == 20 and len([i for i in read if i < 100]) in range(4, 17)
    text = page("t", [], summary_sections(found, "made, test", {"samples": 200, "accuracy": 0.25})[0])
    assert "200 images. Everything below the scores is computed on 20 sampled images." in text
    assert "Scores on made, test</caption>" in text and '<td class="number">0.2500</td>' in text
    assert "Confusion matrix of made, test (20 of 200 images sampled)" in text
    text = page("t", [], summary_sections(found, "made, test")[0])
    assert "Everything below is computed on 20 sampled images." in text
    assert "Scores on made, test (20 of 200 images sampled)</caption>" in text


def test_only_correct_predictions_are_best_and_there_may_be_none(model):
    samples, colors = labelled("single_label", 6)
    right = outputs_of(model, colors).argmax(axis=1)
    for labels, best in (((right + 1) % 5, 0), (right, 3)):
        found = summarize(model, Samples(samples.images, tuple(labels.tolist())), "single_label")
        assert (len(found.worst), len(found.best)) == (3, best)
        assert ("Best predictions" in summary_sections(found, "made, test")[0]) == bool(best)


def test_pictures_name_their_files_below_the_data_sets_folder(tmp_path, model):
    root = write_classes(tmp_path / "data", names=("a", "b"), count=4)
    outside = write_classes(tmp_path / "elsewhere", names=("c",), count=1)
    paths = [*sorted(root.rglob("*.png")), *outside.rglob("*.png")]
    samples = Samples(tuple(map(str, paths)), (0,) * 4 + (1,) * 5)
    found = summarize(model, samples, "single_label", max_images=5, folder=root)
    files = {re.search("<small>(.*)</small>", picture)[1] for picture in (*found.worst, *found.best)}
    assert files <= {*(f"{name}/0{i}.png" for name in "ab" for i in range(4)), "00.png"}
    assert str(tmp_path) not in page("t", [], summary_sections(found, "made, test")[0])


def test_the_most_frequent_errors_are_counted(model):
    samples, _ = labelled("single_label", 31)
    found = summarize(model, samples, "single_label", NAMES)
    counts = found.confusion - np.diag(np.diag(found.confusion))
    assert [count for _, _, count in found.errors] == sorted(counts[counts > 0], reverse=True)[:10]
    for true, predicted, count in found.errors:
        assert counts[NAMES.index(true), NAMES.index(predicted)] == count


@pytest.mark.slow
def test_of_many_classes_the_worst_are_listed_and_no_matrix_is_drawn():
    names = tuple(str(i) for i in range(120))
    samples, _ = labelled("single_label", 150)
    samples = Samples(samples.images, tuple(i % 120 for i in range(150)))
    found = summarize(small(num_classes=120), samples, "single_label", names)
    sections, files = summary_sections(found, "made, test")
    assert found.confusion is None and files == {}
    text = page("t", [], sections)
    rows = text.partition("The 100 worst of 120 classes")[2].partition("</table>")[0]
    counts = '<td class="number">[0-9]+</td>' * 2
    accuracies = [float(cell) for cell in re.findall(f'{counts}<td class="number">([0-9.]+)</td>', rows)]
    assert len(accuracies) == 100 and accuracies == sorted(accuracies)
    headings = ["Scores", "Confusions", "Worst predictions", *["Best predictions"] * bool(found.best)]
    assert read_page(text).headings == headings


def test_labels_that_do_not_fit_the_model_are_refused(model):
    with pytest.raises(ValueError, match="labels up to 7, but the model has 5 classes"):
        summarize(model, Samples(encoded(1)[0], (7,)), "single_label", NAMES)
