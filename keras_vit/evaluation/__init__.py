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
from keras_vit.tasks.classes.multi_label import multi_label_classes as multi_label_classes
from keras_vit.tasks.classes.multi_label import multi_label_scores as multi_label_scores
from keras_vit.tasks.classes.regression import regression_scores as regression_scores
from keras_vit.tasks.classes.single_label import Predictions as Predictions
from keras_vit.tasks.classes.single_label import accuracy as accuracy
from keras_vit.tasks.classes.single_label import confusion_matrix as confusion_matrix
from keras_vit.tasks.classes.single_label import per_class as per_class
from keras_vit.tasks.depth.scores import DepthPredictions as DepthPredictions
from keras_vit.tasks.depth.scores import aligned as aligned
from keras_vit.tasks.depth.scores import depth_scores as depth_scores
from keras_vit.tasks.detection.scores import DetectionPredictions as DetectionPredictions
from keras_vit.tasks.detection.scores import box_iou as box_iou
from keras_vit.tasks.detection.scores import detection_classes as detection_classes
from keras_vit.tasks.detection.scores import detection_confusion as detection_confusion
from keras_vit.tasks.detection.scores import detection_scores as detection_scores
from keras_vit.tasks.detection.scores import precision_recall as precision_recall
from keras_vit.tasks.image_text.retrieval import recall as recall
from keras_vit.tasks.image_text.retrieval import retrieval as retrieval
from keras_vit.tasks.segmentation.instance_scores import MaskPredictions as MaskPredictions
from keras_vit.tasks.segmentation.instance_scores import TrueObjects as TrueObjects
from keras_vit.tasks.segmentation.instance_scores import mask_average_precision as mask_average_precision
from keras_vit.tasks.segmentation.instance_scores import mask_iou as mask_iou
from keras_vit.tasks.segmentation.panoptic import panoptic_counts as panoptic_counts
from keras_vit.tasks.segmentation.panoptic import panoptic_quality as panoptic_quality
from keras_vit.tasks.segmentation.scores import SegmentationPredictions as SegmentationPredictions
from keras_vit.tasks.segmentation.scores import boundary_f as boundary_f
from keras_vit.tasks.segmentation.scores import predict_maps as predict_maps
from keras_vit.tasks.segmentation.scores import segmentation_classes as segmentation_classes
from keras_vit.tasks.segmentation.scores import segmentation_scores as segmentation_scores

__getattr__, __dir__ = lazy_names(__name__)
