"""Models."""

from keras_vit.engine.distributed_model import DistributedModel as DistributedModel
from keras_vit.lazy import lazy_names
from keras_vit.models.packed import PackedVisionTransformer as PackedVisionTransformer
from keras_vit.models.pixels.image_gpt import ImageGPT as ImageGPT
from keras_vit.models.pixels.pixel_transformer import PixelTransformer as PixelTransformer
from keras_vit.models.vit.vision_transformer import VisionTransformer as VisionTransformer
from keras_vit.tasks.depth.model import DepthEstimator as DepthEstimator
from keras_vit.tasks.depth.point_cloud import point_cloud as point_cloud
from keras_vit.tasks.depth.point_cloud import write_ply as write_ply
from keras_vit.tasks.detection.detecting import Detections as Detections
from keras_vit.tasks.detection.model import ObjectDetector as ObjectDetector
from keras_vit.tasks.distillation.model import DistillationModel as DistillationModel
from keras_vit.tasks.image_text import pair_scores  # noqa: F401 - registers its metric
from keras_vit.tasks.image_text.model import ImageTextModel as ImageTextModel
from keras_vit.tasks.image_text.text_transformer import TextTransformer as TextTransformer
from keras_vit.tasks.keypoints.model import KeypointEstimator as KeypointEstimator
from keras_vit.tasks.pretraining.dino import DINO as DINO
from keras_vit.tasks.pretraining.masked_autoencoder import MaskedAutoencoder as MaskedAutoencoder
from keras_vit.tasks.pretraining.masked_patch_predictor import MaskedPatchPredictor as MaskedPatchPredictor
from keras_vit.tasks.segmentation.instances import Instances as Instances
from keras_vit.tasks.segmentation.model import ImageSegmenter as ImageSegmenter

# The models, which `keras_vit` has, too.
__all__ = sorted(
    name
    for name, of in globals().items()
    if isinstance(of, type) and issubclass(of, DistributedModel) and of is not DistributedModel
)
__getattr__, __dir__ = lazy_names(__name__)
