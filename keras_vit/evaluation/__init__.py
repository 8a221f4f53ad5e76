"""Scores of a model on a data set."""

from keras_vit.evaluation.few_shot import few_shot as few_shot
from keras_vit.evaluation.few_shot import few_shot_of_vectors as few_shot_of_vectors
from keras_vit.evaluation.few_shot import probe_blocks as probe_blocks
from keras_vit.evaluation.few_shot import probe_vectors as probe_vectors
from keras_vit.evaluation.nearest import knn as knn
from keras_vit.evaluation.nearest import knn_accuracy as knn_accuracy
from keras_vit.evaluation.nearest import neighbor_difference as neighbor_difference
from keras_vit.evaluation.predicting import evaluate as evaluate
from keras_vit.evaluation.predicting import predict as predict
from keras_vit.evaluation.real_labels import read_real_labels as read_real_labels
from keras_vit.evaluation.real_labels import real_accuracy as real_accuracy
from keras_vit.evaluation.real_labels import real_labels_of as real_labels_of
from keras_vit.evaluation.representations import representations as representations
from keras_vit.lazy import lazy_names

LAZY = {  # what tasks have
    "DepthPredictions": "keras_vit.tasks.depth.scores",
    "DetectionPredictions": "keras_vit.tasks.detection.scores",
    "KeypointPredictions": "keras_vit.tasks.keypoints.scores",
    "MaskPredictions": "keras_vit.tasks.segmentation.instance_scores",
    "Predictions": "keras_vit.tasks.classes.single_label",
    "SegmentationPredictions": "keras_vit.tasks.segmentation.scores",
    "TrueObjects": "keras_vit.tasks.segmentation.instance_scores",
    "accuracy": "keras_vit.tasks.classes.single_label",
    "aligned": "keras_vit.tasks.depth.scores",
    "boundary_f": "keras_vit.tasks.segmentation.scores",
    "box_iou": "keras_vit.tasks.detection.scores",
    "confusion_matrix": "keras_vit.tasks.classes.single_label",
    "depth_scores": "keras_vit.tasks.depth.scores",
    "detection_classes": "keras_vit.tasks.detection.scores",
    "detection_confusion": "keras_vit.tasks.detection.scores",
    "detection_scores": "keras_vit.tasks.detection.scores",
    "keypoint_scores": "keras_vit.tasks.keypoints.scores",
    "keypoint_table": "keras_vit.tasks.keypoints.scores",
    "mask_average_precision": "keras_vit.tasks.segmentation.instance_scores",
    "mask_iou": "keras_vit.tasks.segmentation.instance_scores",
    "multi_label_classes": "keras_vit.tasks.classes.multi_label",
    "multi_label_scores": "keras_vit.tasks.classes.multi_label",
    "object_keypoint_similarity": "keras_vit.tasks.keypoints.scores",
    "panoptic_counts": "keras_vit.tasks.segmentation.panoptic",
    "panoptic_quality": "keras_vit.tasks.segmentation.panoptic",
    "per_class": "keras_vit.tasks.classes.single_label",
    "precision_recall": "keras_vit.tasks.detection.scores",
    "predict_maps": "keras_vit.tasks.segmentation.scores",
    "recall": "keras_vit.tasks.image_text.retrieval",
    "regression_scores": "keras_vit.tasks.classes.regression",
    "retrieval": "keras_vit.tasks.image_text.retrieval",
    "segmentation_classes": "keras_vit.tasks.segmentation.scores",
    "segmentation_scores": "keras_vit.tasks.segmentation.scores",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
