"""How each kind of model is stored: the classes whose files other projects read."""

from keras_vit import tasks
from keras_vit.models import ImageGPT, VisionTransformer
from keras_vit.models.backbones import inner_transformer
from keras_vit.weights.stored_parts import PaletteParts, StoredParts


def stored_classes():
    """The `StoredParts` of each class of models."""
    return {VisionTransformer: StoredParts, ImageGPT: PaletteParts, **tasks.stored_parts()}


def parts_of(model):
    """The `StoredParts` of a model.

    Raises:
        ValueError: for a model of another class.

    Example:
        >>> parts_of(model).hub_words()[1]
        'classification into 10 classes'
    """
    parts = stored_classes()
    for cls in type(model).__mro__:
        if cls in parts:
            return parts[cls](model)
    is_around = inner_transformer(model) is not model
    advice = f", whose `{model.backbone_argument}` can be saved" if is_around else ""
    raise ValueError(f"expected a VisionTransformer; got a {type(model).__name__}{advice}")
