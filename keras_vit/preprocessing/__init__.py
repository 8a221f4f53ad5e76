"""Images, paths or texts to model input."""

from keras_vit.lazy import lazy_names
from keras_vit.preprocessing.bounds import MAX_BYTES as MAX_BYTES
from keras_vit.preprocessing.bounds import MAX_PIXELS as MAX_PIXELS
from keras_vit.preprocessing.image_files import read_image as read_image
from keras_vit.preprocessing.image_preprocessing import Preprocessing as Preprocessing
from keras_vit.preprocessing.image_preprocessing import is_float32 as is_float32
from keras_vit.preprocessing.preprocessing_layer import PreprocessingLayer as PreprocessingLayer
from keras_vit.preprocessing.text_preprocessing import TextPreprocessing as TextPreprocessing

__getattr__, __dir__ = lazy_names(__name__)
