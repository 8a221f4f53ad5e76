"""How each kind of model is stored: the classes whose files other projects read."""

import importlib

from keras_vit.models import ImageGPT, ImageTextModel, VisionTransformer
from keras_vit.models.backbones import inner_transformer
from keras_vit.models.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.weights.dense_heads import HEADED
from keras_vit.weights.image_text import TwoTowerParts
from keras_vit.weights.masked_autoencoder import DecoderParts
from keras_vit.weights.pixels import PaletteParts
from keras_vit.weights.stored_parts import StoredParts

PARTS = {
    VisionTransformer: StoredParts,
    ImageTextModel: TwoTowerParts,
    MaskedAutoencoder: DecoderParts,
    ImageGPT: PaletteParts,
    # The module of each kind of model with a head has its name.
    **{cls: importlib.import_module(f"keras_vit.weights.{kind}").Parts for kind, cls in HEADED.items()},
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
