"""Vision Transformers (Dosovitskiy et al. 2021) for Keras 3."""

from keras_vit import training as training
from keras_vit.lazy import lazy_names
from keras_vit.models.depth.depth_estimator import DepthEstimator as DepthEstimator
from keras_vit.models.detection.object_detector import ObjectDetector as ObjectDetector
from keras_vit.models.image_text.image_text_model import ImageTextModel as ImageTextModel
from keras_vit.models.image_text.text_transformer import TextTransformer as TextTransformer
from keras_vit.models.packed import PackedVisionTransformer as PackedVisionTransformer
from keras_vit.models.pixels.image_gpt import ImageGPT as ImageGPT
from keras_vit.models.pixels.pixel_transformer import PixelTransformer as PixelTransformer
from keras_vit.models.pretraining.dino import DINO as DINO
from keras_vit.models.pretraining.masked_autoencoder import MaskedAutoencoder as MaskedAutoencoder
from keras_vit.models.pretraining.masked_patch_predictor import MaskedPatchPredictor as MaskedPatchPredictor
from keras_vit.models.segmentation.image_segmenter import ImageSegmenter as ImageSegmenter
from keras_vit.models.vit.vision_transformer import VisionTransformer as VisionTransformer
from keras_vit.models.windows import dense_features as dense_features
from keras_vit.preprocessing import Preprocessing as Preprocessing
from keras_vit.preprocessing import TextPreprocessing as TextPreprocessing

__version__ = "0.2.0"

LAZY = {  # functions that a model does without, and the public submodules, of which some are imported above
    "from_pretrained": "weights.load",
    "list_models": "weights.catalogue",
    "push_to_hub": "weights.push",
    "save_weights": "weights.save",
    "data": None,
    "embeddings": None,
    "evaluation": None,
    "export": None,
    "inspection": None,
    "layers": None,
    "models": None,
    "preprocessing": None,
    "search": None,
    "training": None,
    "variants": None,
    "weights": None,
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
