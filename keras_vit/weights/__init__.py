"""Checkpoint files to models, and back."""

from keras_vit.lazy import lazy_names
from keras_vit.weights.array_files import read_arrays as read_arrays
from keras_vit.weights.cache import cache_folder as cache_folder
from keras_vit.weights.catalogue import Checkpoint as Checkpoint
from keras_vit.weights.catalogue import find as find
from keras_vit.weights.catalogue import list_models as list_models
from keras_vit.weights.class_names import class_names as class_names
from keras_vit.weights.class_names import prompt_templates as prompt_templates
from keras_vit.weights.fetch import fetch as fetch
from keras_vit.weights.fetch import is_cached as is_cached
from keras_vit.weights.load import from_pretrained as from_pretrained

LAZY = {  # what loading a model of images does without
    "average_models": "soups",
    "greedy_soup": "soups",
    "push_to_hub": "push",
    "read_text_preprocessing": "tokenizer",
    "save_weights": "save",
    "show_checkpoint": "show",
}
__getattr__, __dir__ = lazy_names(__name__, LAZY)
