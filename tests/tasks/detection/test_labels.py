import numpy as np
import pytest
from made.tables import by_table

from keras_vit.labels import label_kind
from keras_vit.labels.box_rows import encode_boxes

KIND = label_kind("detection")
ROWS = np.array(
    [[[0, 0, 0.5, 1, 2, 0, 0.5], [0, 0, 0.2, 0.2, 1, 1, 0.04], [0, 0, 0, 0, -1, 0, 0]]], "float32"
)


def test_rows_of_known_classes_and_padding_are_accepted():
    KIND.check(ROWS, 3)
    KIND.check(ROWS[:, :0], 3)


@by_table(
    "labels, message",
    [
        (ROWS[..., :5], r"expected boxes \(boxes, 7\) per sample, with the columns left, .* \(3, 5\)"),
        (ROWS[0], "got labels of shape"),
        (ROWS + np.eye(7)[4], "expected boxes of classes below 3; got class 3"),
        (ROWS - np.eye(7)[4], "expected boxes of classes below 3; got class -2"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        KIND.check(labels, 3)


def test_objects_are_counted_by_class_without_crowds_and_padding():
    names = ["cat", "dog", "bird"]
    assert KIND.format(ROWS[0], names) == "1 bird" and KIND.format(ROWS[0, :0], names) == "none"
    assert KIND.format(np.concatenate([ROWS[0], ROWS[0] - np.eye(7)[4]]), names) == "1 bird, 1 dog"


def test_the_areas_of_boxes_are_fractions_of_their_image_without_crowds():
    rows = np.zeros((4, 7))
    rows[:, 2:4] = [[0.5, 0.5], [0.1, 0.5], [1.0, 1.0], [1.0, 0.9]]
    rows[2, 5] = 1
    assert KIND.counts([encode_boxes(rows)], ["cat"])["box_areas"] == pytest.approx([0.05, 0.25, 0.9])
    assert KIND.counts([], ["cat"])["box_areas"] == []


def test_images_with_more_objects_than_a_step_takes_are_counted():
    labels = [encode_boxes(np.zeros((count, 7))) for count in (100, 101, 0, 130)]
    crowds = np.zeros((200, 7))
    crowds[99:, 5] = 1
    counts = KIND.counts([*labels, encode_boxes(crowds)], ["cat"])
    assert counts["many_objects"] == [2, 130]


def test_a_stored_label_has_the_names_of_classes():
    stored = KIND.stored(encode_boxes(ROWS[0, :1]), ["cat", "dog", "bird"])
    assert stored == [["bird", 0.0, 0.0, 0.5, 1.0, 0.0, 0.5]]


def test_a_table_holds_no_boxes():
    with pytest.raises(ValueError, match="^expected boxes, which a table cannot hold; got '1'$"):
        KIND.parse("1")
