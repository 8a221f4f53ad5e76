import numpy as np
import pytest
from made.tables import by_table

from keras_vit import ImageSegmenter, VisionTransformer
from keras_vit.evaluation import SegmentationPredictions, panoptic_counts
from keras_vit.losses import SegmentationCrossEntropy
from keras_vit.metrics import MeanIoU
from keras_vit.tasks.segmentation.labels import KIND
from keras_vit.tasks.segmentation.loss import query_loss

MAP = np.full((1, 2, 2), 255)


def query_segmenter(count):
    encoder = VisionTransformer(16, 8, 24, 2, 48, 3)
    return ImageSegmenter(encoder, count, head="mask", query_blocks=1, num_queries=4)


# What takes 255 for pixels without a label, by the number of classes.
USERS = {
    "cross-entropy": lambda count: SegmentationCrossEntropy()(MAP, np.zeros((1, 2, 2, count))),
    "mask loss": lambda count: query_loss(
        np.zeros((1, 2, 2, 4)), np.zeros((1, 4, count + 1)), MAP, num_points=4
    ),
    "metric": MeanIoU,
    "labels": lambda count: KIND.check(MAP, count),
    "scores": lambda count: SegmentationPredictions.of_maps(MAP % 255, MAP, count),
    "panoptic counts": lambda count: panoptic_counts(
        np.zeros((2, 2, 2), int), np.zeros((2, 2, 2), int), count
    ),
    "panoptic": lambda count: query_segmenter(count).panoptic(np.zeros((1, 16, 16, 3), "uint8")),
}


@by_table("user", USERS)
def test_a_class_has_not_the_number_of_ignored_pixels(user):
    USERS[user](255)
    with pytest.raises(ValueError, match="^expected at most 255 classes, since 255 marks .*; got 256$"):
        USERS[user](256)


def test_more_classes_are_trained_where_another_number_is_ignored():
    logits = np.zeros((1, 2, 2, 300))
    assert float(SegmentationCrossEntropy(ignore=-1)(MAP, logits)) == pytest.approx(np.log(300), rel=1e-5)
    assert float(MeanIoU(300, ignore=-1)(MAP, logits)) == 0
