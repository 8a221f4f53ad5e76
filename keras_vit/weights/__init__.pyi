# Written by `make stubs`.
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
from keras_vit.weights.push import push_to_hub as push_to_hub
from keras_vit.weights.save import save_weights as save_weights
from keras_vit.weights.show import show_checkpoint as show_checkpoint
from keras_vit.weights.soups import average_models as average_models
from keras_vit.weights.soups import greedy_soup as greedy_soup
from keras_vit.weights.tokenizer import read_text_preprocessing as read_text_preprocessing
