# Written by `make stubs`.
from . import data as data
from . import embeddings as embeddings
from . import evaluation as evaluation
from . import export as export
from . import inspection as inspection
from . import layers as layers
from . import models as models
from . import preprocessing as preprocessing
from . import search as search
from . import training as training
from . import variants as variants
from . import weights as weights
from keras_vit.models.packed import PackedVisionTransformer as PackedVisionTransformer
from keras_vit.models.pixels.image_gpt import ImageGPT as ImageGPT
from keras_vit.models.pixels.pixel_transformer import PixelTransformer as PixelTransformer
from keras_vit.models.vit.vision_transformer import VisionTransformer as VisionTransformer
from keras_vit.models.windows import dense_features as dense_features
from keras_vit.preprocessing import Preprocessing as Preprocessing
from keras_vit.preprocessing import TextPreprocessing as TextPreprocessing
from keras_vit.tasks.depth.model import DepthEstimator as DepthEstimator
from keras_vit.tasks.detection.model import ObjectDetector as ObjectDetector
from keras_vit.tasks.distillation.model import DistillationModel as DistillationModel
from keras_vit.tasks.image_text.model import ImageTextModel as ImageTextModel
from keras_vit.tasks.image_text.text_transformer import TextTransformer as TextTransformer
from keras_vit.tasks.keypoints.model import KeypointEstimator as KeypointEstimator
from keras_vit.tasks.pretraining.dino import DINO as DINO
from keras_vit.tasks.pretraining.masked_autoencoder import MaskedAutoencoder as MaskedAutoencoder
from keras_vit.tasks.pretraining.masked_patch_predictor import MaskedPatchPredictor as MaskedPatchPredictor
from keras_vit.tasks.segmentation.model import ImageSegmenter as ImageSegmenter
from keras_vit.weights.catalogue import list_models as list_models
from keras_vit.weights.load import from_pretrained as from_pretrained
from keras_vit.weights.push import push_to_hub as push_to_hub
from keras_vit.weights.save import save_weights as save_weights

__version__: str
