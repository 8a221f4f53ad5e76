"""Images with their labels."""

import numpy as np

from keras_vit.inspection import class_colors
from keras_vit.inspection.label_pictures import label_sheet, labeled_picture
from keras_vit.labels import label_kind
from keras_vit.tasks.depth.pictures import COLORS

IMAGE = np.full((40, 60, 3), 0.5)


def test_boxes_are_drawn_in_the_colors_of_their_classes():
    rows = np.array([[0.25, 0.25, 0.5, 0.75, 1, 0, 0.1], [0, 0, 0, 0, -1, 0, 0]])
    drawn = labeled_picture(IMAGE, rows, "detection")
    np.testing.assert_allclose(drawn[10, 15:31], np.tile(class_colors(3)[2] / 255, (16, 1)), atol=1e-6)
    np.testing.assert_allclose(drawn[12:28, 17:28], 0.5, atol=0.01)
    np.testing.assert_allclose(drawn[0, 0], 0.5, atol=0.01)


def test_a_class_map_is_drawn_over_the_image():
    classes = np.zeros((40, 60), int)
    classes[:, 30:] = 2
    drawn = labeled_picture(IMAGE, classes, "segmentation")
    np.testing.assert_allclose(drawn[0, 0], 0.5)
    np.testing.assert_allclose(drawn[0, 59], 0.25 + class_colors(3)[2] / 510, atol=1e-6)


def test_a_depth_map_is_drawn_beside_the_image():
    depths = np.repeat(np.linspace(1, 2, 60), 40).reshape(60, 40).T[..., np.newaxis]
    drawn = labeled_picture(IMAGE, depths, "depth")
    assert drawn.shape == (40, 120, 3)
    np.testing.assert_allclose(drawn[:, :60], IMAGE)
    np.testing.assert_allclose(drawn[0, [60, -1]], np.array([COLORS[0], COLORS[-1]]) / 255, atol=1e-6)


def legend_of(labels, task, names):
    sheet = label_sheet([IMAGE] * len(labels), labels, [""] * len(labels), label_kind(task), names, "A sheet")
    return {text.get_text() for legend in sheet.legends for text in legend.get_texts()}


def test_a_sheet_has_the_colors_of_the_classes_in_its_pictures():
    box = np.array([[0.25, 0.25, 0.5, 0.75, 1, 0, 0.1], [0, 0, 0, 0, -1, 0, 0]])
    assert legend_of([box, box[1:]], "detection", ["cat", "dog", "owl"]) == {"dog"}
    classes = np.zeros((40, 60), int)
    classes[:, 30:], classes[0, 0] = 2, 255
    assert legend_of([classes], "segmentation", ["road", "car", "tree"]) == {"tree"}
    assert legend_of([np.ones((40, 60, 1))], "depth", ["depth"]) == set()
