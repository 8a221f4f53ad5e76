import numpy as np

from keras_vit.inspection import box_overlay, class_colors
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
