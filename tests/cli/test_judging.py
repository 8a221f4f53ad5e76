import io

import numpy as np
import pytest
import tensorflow as tf
from made.folders import write_classes
from made.pages import read_page
from PIL import Image
from reference.small import NO_TRANSFORMER, small

from keras_vit.cli.judging import PICTURES, drawn_images, judge, judged_sections
from keras_vit.cli.page import page
from keras_vit.data.samples import IndexedRecords, Samples
from keras_vit.evaluation import evaluate
from keras_vit.tasks import TASKS

NAMES = ("ant", "bee", "cat", "dog", "<eel>")


def encoded(count):
    """PNG files of one colour each, and these colours."""
    colors = np.random.default_rng(0).integers(0, 256, (count, 3), "uint8")
    files = []
    for color in colors:
        file = io.BytesIO()
        Image.fromarray(np.broadcast_to(color, (16, 16, 3))).save(file, "PNG")
        files.append(file.getvalue())
    return tuple(files), colors


def labelled(task, count):
    rng = np.random.default_rng(1)
    numbers = {
        "single_label": lambda: tuple(rng.integers(0, 5, count).tolist()),
        "multi_label": lambda: tuple(tuple(map(float, row)) for row in rng.integers(0, 2, (count, 5))),
        "regression": lambda: tuple(tuple(map(float, row)) for row in rng.normal(size=(count, 5))),
    }[task]()
    files, colors = encoded(count)
    return Samples(files, numbers), colors


def losses_of(model, colors, labels, task):
    """How far the model is from each label, computed here."""
    images = np.broadcast_to(colors[:, np.newaxis, np.newaxis], (len(colors), 16, 16, 3))
    outputs = np.asarray(model(model.preprocessing(images)), "float64")
    if task == "single_label":
        shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        return -np.log(shares[np.arange(len(labels)), labels])
    said = outputs if task == "regression" else 1 / (1 + np.exp(-outputs))
    return np.abs(said - labels).mean(axis=1)


def are_correct(model, colors, labels, task):
    images = np.broadcast_to(colors[:, np.newaxis, np.newaxis], (len(colors), 16, 16, 3))
    outputs = np.asarray(model(model.preprocessing(images)))
    if task == "single_label":
        return outputs.argmax(axis=1) == labels
    return ((outputs > 0) == labels).all(axis=1) | (task == "regression")


@pytest.mark.parametrize("task", TASKS)
def test_the_worst_and_the_best_are_told_by_how_far_the_model_is_from_the_truth(task):
    model = small()
    samples, colors = labelled(task, 31)
    judged = judge(model, samples, task, NAMES, batch_size=8)
    assert judged.scores == evaluate(model, samples, 8, task) and judged.total == 31
    labels = np.array(samples.labels)
    order = np.argsort(-losses_of(model, colors, labels, task))
    correct = are_correct(model, colors, labels, task)
    best = [i for i in order[:11:-1] if correct[i]][:PICTURES]
    assert len(judged.worst) == PICTURES
    for pictures, wanted in ((judged.worst, order[:12]), (judged.best, best)):
        for picture, i in zip(pictures, wanted, strict=True):
            with Image.open(io.BytesIO(picture.png)) as image:
                assert image.size == (96, 96) and image.getpixel((50, 50)) == (*colors[i],)
    expected = model.preprocessing([np.broadcast_to(colors[i], (16, 16, 3)) for i in order[:12]])
    np.testing.assert_allclose(judged.images, expected, atol=1e-6)


def test_captions_say_what_the_model_says_and_what_is_true():
    model = small(num_classes=2, class_names=("a", "b"))
    samples, colors = labelled("single_label", 6)
    samples = Samples(samples.images, (0, 1, 0, 1, 0, 1))
    judged = judge(model, samples, "single_label", ("a", "b"))
    assert len(judged.worst) == 3 and len(judged.best) <= 3  # none of six is both
    assert not any("; is " in picture.caption for picture in judged.best)
    assert judged.confusion.sum() == 6 and [row["name"] for row in judged.classes] == ["a", "b"]
    for picture in (*judged.worst, *judged.best):
        with Image.open(io.BytesIO(picture.png)) as image:
            (number,) = np.flatnonzero((colors == image.getpixel((0, 0))).all(axis=1))
        image = np.broadcast_to(colors[number], (16, 16, 3))
        ((said, sure), _) = model.classify([image])[0]
        true = "ab"[number % 2]
        assert picture.caption == f"{said} ({sure:.1%})" + f"; is {true}" * (said != true)
        assert picture.alt == f"An image of {true}"


@pytest.mark.parametrize(
    "task, label, words",
    [
        ("multi_label", (0.0, 1.0, 0.0, 0.0, 1.0), "bee, <eel>"),
        ("multi_label", (0.0,) * 5, "none"),
        ("regression", (0.5, 2.0, -1.0, 0.0, 1 / 3), "ant 0.5, bee 2, cat -1, dog 0, <eel> 0.3333"),
    ],
)
def test_labels_of_several_numbers_are_told_in_words(task, label, words):
    model = small()
    samples = Samples(encoded(2)[0], (label, (1.0,) * 5))
    judged = judge(model, samples.take([0]), task, NAMES)
    assert judged.worst[0].alt == f"An image of {words}"
    images, told = drawn_images(model, samples, task, NAMES, 8)
    assert told[0] == words and len(images) == 2
    page(task, [], judged_sections(judged, "made, test")[0])


class _Source(list):
    """What an array record is: a sequence that gives several at once."""

    def __getitems__(self, indices):
        self.read = [*getattr(self, "read", ()), *indices]
        return [self[i] for i in indices]


def test_of_a_large_split_some_are_drawn_from_all_of_it_and_no_others_are_read():
    model = small()
    samples, _ = labelled("single_label", 200)
    labels = dict(zip(samples.images, samples.labels))
    source = _Source(samples.images)
    table = tf.constant([labels[image] for image in samples.images])
    records = IndexedRecords(
        source, lambda r: (r, tf.gather(table, tf.argmax(tf.cast(tf.constant([*source]) == r, "int32"))))
    )
    for given in (samples, records):
        judged = judge(model, given, "single_label", NAMES, most=20)
        assert (judged.scores["samples"], judged.total) == (20, 200)
        assert judged.scores == judge(model, given, "single_label", NAMES, most=20).scores
    once = {*source.read}
    assert len(once) == 20 and len([i for i in once if i < 100]) in range(4, 17)
    (section, matrix, *_), _ = judged_sections(judged, "made, test", {"samples": 200, "accuracy": 0.25})
    assert section.words == ("made, test: 200 images. What follows the scores is of 20 drawn from them.",)
    assert section.tables[0].title == "Scores on made, test" and ("accuracy", 0.25) in section.tables[0].rows
    assert matrix.figures[0].alt == "Confusion matrix of made, test (20 of 200 images drawn)"
    (section, *_), _ = judged_sections(judged, "made, test")
    assert section.words == ("made, test: 200 images. All that follows is of 20 drawn from them.",)
    assert section.tables[0].title == "Scores on made, test (20 of 200 images drawn)"
    assert ("samples", 20) in section.tables[0].rows


def test_of_few_images_the_best_are_correct_ones_and_there_may_be_none():
    model = small(num_classes=2)
    samples, colors = labelled("single_label", 6)
    said = model.predict(model.preprocessing([np.broadcast_to(c, (16, 16, 3)) for c in colors]), verbose=0)
    right = said.argmax(axis=1)
    for labels, best in ((1 - right, 0), (right, 3)):
        judged = judge(model, Samples(samples.images, tuple(labels.tolist())), "single_label")
        assert (len(judged.worst), len(judged.best)) == (3, best)
        headings = [section.heading for section in judged_sections(judged, "made, test")[0]]
        assert ("Best predictions" in headings) == bool(best)


def test_best_worst_and_most_confused_images_are_named_by_their_files_below_the_folder(tmp_path):
    root = write_classes(tmp_path / "data", names=("a", "b"), count=4)
    outside = write_classes(tmp_path / "elsewhere", names=("c",), count=1)
    paths = [*sorted(root.rglob("*.png")), *outside.rglob("*.png")]
    samples = Samples(tuple(map(str, paths)), (0,) * 4 + (1,) * 4 + (1,))
    judged = judge(small(num_classes=2), samples, "single_label", ("a", "b"), folder=root)
    files = {picture.file for picture in (*judged.worst, *judged.best)}
    assert files <= {*(f"{name}/0{i}.png" for name in "ab" for i in range(4)), "00.png"} and "" not in files
    for true, said, count, named in judged.mixed_up:
        assert len(named.split(", ")) == min(count, 4) and (true, said) in (("a", "b"), ("b", "a"))
        assert named.startswith((f"{true}/", "00.png")) and named.endswith("…") == (count > 3)
    text = page("t", [], judged_sections(judged, "made, test")[0])
    assert judged.mixed_up and str(tmp_path) not in text and f"<small>{judged.worst[0].file}</small>" in text
    few = judge(small(num_classes=2), samples, "single_label", ("a", "b"), most=5, folder=root)
    assert all(picture.file for picture in few.worst)


def test_scores_have_one_number_of_decimals():
    judged = judge(small(), labelled("single_label", 8)[0], "single_label", NAMES)
    scores = {"samples": 8, "accuracy": 1.0, "top5_accuracy": None, "loss": 0.12918}
    text = page("t", [], judged_sections(judged, "made, test", scores)[0])
    for cell in ("8", "1.0000", "–", "0.1292"):
        assert f'<td class="number">{cell}</td>' in text


def test_the_most_frequent_errors_are_counted():
    samples, _ = labelled("single_label", 31)
    judged = judge(small(), samples, "single_label", NAMES)
    counts = judged.confusion - np.diag(np.diag(judged.confusion))
    assert [count for _, _, count in judged.mixed_up] == sorted(counts[counts > 0], reverse=True)[:10]
    for true, said, count in judged.mixed_up:
        assert counts[NAMES.index(true), NAMES.index(said)] == count
    (_, section, *_), _ = judged_sections(judged, "made, test")
    assert section.tables[0].rows == judged.mixed_up and len(section.figures) == 1


def test_of_many_classes_the_least_known_are_listed_and_no_matrix_is_drawn():
    names = tuple(str(i) for i in range(120))
    model = small(num_classes=120)
    samples, _ = labelled("single_label", 150)
    samples = Samples(samples.images, tuple(i % 120 for i in range(150)))
    judged = judge(model, samples, "single_label", names)
    sections, files = judged_sections(judged, "made, test")
    assert judged.confusion is None and files == {}
    table = sections[0].tables[1]
    assert table.title == "The 100 least known of 120 classes" and len(table.rows) == 100
    accuracies = [row[table.columns.index("accuracy")] for row in table.rows]
    assert accuracies == sorted(accuracies)
    found = read_page(page("t", [], sections))
    mixed_up = ["Scores", "Confusions", "Worst predictions", "Best predictions"]
    assert found.headings == mixed_up and len(found.pictures()) == 12 + len(judged.best)


@pytest.mark.parametrize(
    "size, wanted", [((8, 16), (48, 96)), ((100, 50), (100, 50)), ((40, 400), (19, 192))]
)
def test_small_pictures_have_a_size_to_be_looked_at(size, wanted):
    model = small(image_size=(None, None), patch_size=1, **NO_TRANSFORMER)
    file = io.BytesIO()
    Image.new("RGB", size[::-1], "red").save(file, "PNG")
    judged = judge(model, Samples((file.getvalue(),), (0,)), "single_label", NAMES)
    (picture,) = judged.worst
    with Image.open(io.BytesIO(picture.png)) as image:
        assert image.size[::-1] == wanted


def test_labels_that_are_not_the_models_are_refused():
    samples = Samples(encoded(1)[0], (7,))
    with pytest.raises(ValueError, match="labels up to 7, but the model has 5 classes"):
        judge(small(), samples, "single_label", NAMES)
