"""How each kind of model is stored: the classes whose files other projects read."""

from keras_vit.models import (
    DepthEstimator,
    ImageGPT,
    ImageSegmenter,
    ImageTextModel,
    ObjectDetector,
    VisionTransformer,
)
from keras_vit.models.backbones import inner_transformer
from keras_vit.models.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.weights.depth_estimator import DepthEstimatorParts
from keras_vit.weights.detector import DetectorParts
from keras_vit.weights.image_text import TwoTowerParts
from keras_vit.weights.masked_autoencoder import DecoderParts
from keras_vit.weights.pixels import PaletteParts
from keras_vit.weights.segmenter import SegmenterParts
from keras_vit.weights.stored_parts import StoredParts

PARTS = {
    VisionTransformer: StoredParts,
    ImageTextModel: TwoTowerParts,
    MaskedAutoencoder: DecoderParts,
    ImageGPT: PaletteParts,
    ImageSegmenter: SegmenterParts,
    ObjectDetector: DetectorParts,
    DepthEstimator: DepthEstimatorParts,
}


def parts_of(model):
    """The `StoredParts` of a model.

    Raises:
        ValueError: for a model of another class.

    Example:
        >>> parts_of(model).hub_words()[1]
        'classification into 10 classes'
    """
    for cls in type(model).__mro__:
        if cls in PARTS:
            return PARTS[cls](model)
    is_around = inner_transformer(model) is not model
    advice = f", whose `{model.backbone_argument}` can be saved" if is_around else ""
    raise ValueError(f"expected a VisionTransformer; got a {type(model).__name__}{advice}")
