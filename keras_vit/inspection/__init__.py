"""What a model has learned and what it attends to, as NumPy arrays and figures."""

from keras_vit.inspection.attention import attention_maps as attention_maps
from keras_vit.inspection.attention import attention_rollout as attention_rollout
from keras_vit.inspection.attention import attention_weights as attention_weights
from keras_vit.inspection.class_colors import class_colors as class_colors
from keras_vit.inspection.distance import attention_distance as attention_distance
from keras_vit.inspection.feature_pca import feature_pca as feature_pca
from keras_vit.inspection.feature_pca import foreground as foreground
from keras_vit.inspection.filters import filter_components as filter_components
from keras_vit.inspection.norms import patch_norms as patch_norms
from keras_vit.inspection.positions import position_similarity as position_similarity
from keras_vit.inspection.similarity import patch_similarity as patch_similarity
from keras_vit.lazy import lazy_names

LAZY = {  # what tasks have, and figures, which import matplotlib
    "box_overlay": "keras_vit.tasks.detection.pictures",
    "class_example_figure": "keras_vit.tasks.segmentation.figures",
    "class_overlay": "keras_vit.tasks.segmentation.pictures",
    "depth_figure": "keras_vit.tasks.depth.figures",
    "detection_figure": "keras_vit.tasks.detection.figures",
    "figures": None,
    "iou_figure": "keras_vit.tasks.segmentation.figures",
    "palette_png": "keras_vit.tasks.segmentation.pictures",
    "precision_recall_figure": "keras_vit.tasks.detection.figures",
    "segmentation_figure": "keras_vit.tasks.segmentation.figures",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
