"""Vision Transformers (Dosovitskiy et al. 2021) for Keras 3."""

from keras_vit import training as training
from keras_vit.lazy import lazy_names
from keras_vit.models import *  # noqa: F403 - the models in its `__all__`
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
