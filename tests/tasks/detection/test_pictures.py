import numpy as np

from keras_vit.inspection import box_overlay, class_colors, detection_figure
from keras_vit.models import Detections, Instances

NAMES = ["cat", "dog"]


def test_boxes_have_the_colors_of_their_classes():
    image = np.full((90, 120, 3), 200, "uint8")
    boxes = np.array([[10, 20, 100, 80], [20, 30, 60, 70]], "float32")
    found = Detections(boxes, np.array([0.9, 0.8]), np.array([1, 0]))
    drawn = box_overlay(image, found, NAMES)
    colors = class_colors(3)
    assert drawn[80, 100].tolist() == colors[2].tolist() and drawn[70, 60].tolist() == colors[1].tolist()
    assert (drawn[50, 90] == 200).all() and (image == 200).all()


def test_masks_of_one_class_have_other_colors_and_the_best_is_in_front():
    image = np.full((90, 120, 3), 200, "uint8")
    masks = np.zeros((2, 90, 120), bool)
    masks[0, 20:80, 10:60] = masks[1, 30:85, 40:110] = True
    boxes = np.array([[10, 20, 60, 80], [40, 30, 110, 85]], "float32")
    found = Instances(boxes, np.array([0.9, 0.8]), np.array([1, 1]), masks)
    drawn = box_overlay(image, found, NAMES, opacity=0.25)
    first, second = (0.75 * 200 + 0.25 * color for color in class_colors(3)[1:])
    np.testing.assert_allclose(drawn[75, 30], first, atol=0.5)
    np.testing.assert_allclose(drawn[75, 90], second, atol=0.5)
    np.testing.assert_allclose(drawn[75, 50], 0.75 * second + 0.25 * class_colors(2)[1], atol=1)
    assert (drawn[85:89, :9] == 200).all() and (image == 200).all()
    empty = Instances(boxes[:0], np.zeros(0), np.zeros(0, int), masks[:0])
    np.testing.assert_array_equal(box_overlay(image, empty, NAMES), image)


def test_labels_stand_beside_their_boxes_and_inside_the_image():
    image = np.zeros((300, 400, 3), "uint8")
    boxes = np.array([[10, 100, 60, 200], [370, 100, 400, 200], [100, 0, 200, 60]], "float32")
    drawn = box_overlay(image, Detections(boxes, np.array([0.9, 0.8, 0.7]), np.zeros(3, int)), NAMES)
    color = class_colors(2)[1]
    label = (drawn == color).all(-1)
    # The insides of the first two boxes are seen: their labels are above them, the second moved to the left.
    assert (drawn[105:195, 15:55] == 0).all() and (drawn[105:195, 375:395] == 0).all()
    assert label[88:99, 10:45].mean() > 0.3 and label[88:99, 365:399].mean() > 0.3
    # Above the third there is no room.
    assert label[2:12, 100:135].mean() > 0.3
    # The right and the lower edge are inside the image.
    assert (drawn[101:199, 399] == color).all()


def test_labels_are_larger_in_larger_images():
    rows = []
    for size in (300, 1200):
        image, box = np.zeros((size, size, 3), "uint8"), np.array([[0.3, 0.5, 0.9, 0.9]]) * size
        drawn = box_overlay(image, Detections(box, np.array([0.9]), np.zeros(1, int)), NAMES)
        rows.append(int((drawn[: size // 2] != 0).any((1, 2)).sum()))
    assert rows[1] > 1.8 * rows[0] > 18


def test_boxes_of_a_figure_are_around_their_pixels():
    """Matplotlib has the center of the first pixel at 0."""
    found = Detections(np.float32([[2, 1, 6, 4]]), np.array([0.9]), np.array([0]))
    truth = np.array([[0.25, 0.25, 0.75, 1, 1, 1, 0], [0, 0, 0, 0, -1, 0, 0]])
    figure = detection_figure([np.zeros((4, 8, 3))], [found], [truth], ["photo"], NAMES, "Cats")
    boxes = [axes.patches[0].get_bbox().extents.tolist() for axes in figure.axes]
    assert boxes == [[1.5, 0.5, 5.5, 3.5]] * 2
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["cat 90%", "dog (crowd)"]
