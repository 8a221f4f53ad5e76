"""Models."""

from keras_vit.engine.distributed_model import DistributedModel as DistributedModel
from keras_vit.lazy import lazy_names
from keras_vit.models.dino import DINO as DINO
from keras_vit.models.image_gpt import ImageGPT as ImageGPT
from keras_vit.models.image_text import ImageTextModel as ImageTextModel
from keras_vit.models.masked_patch import MaskedPatchPredictor as MaskedPatchPredictor
from keras_vit.models.segmentation import ImageSegmenter as ImageSegmenter
from keras_vit.models.text import TextTransformer as TextTransformer
from keras_vit.models.vit import VisionTransformer as VisionTransformer

__getattr__, __dir__ = lazy_names(__name__)
