"""An index of images on disk, searched by vectors."""

from keras_vit.lazy import lazy_names
from keras_vit.search.duplicates import near_duplicates as near_duplicates
from keras_vit.search.image_index import ImageIndex as ImageIndex
from keras_vit.search.image_index import locked as locked
from keras_vit.search.image_index import open_index as open_index

__getattr__, __dir__ = lazy_names(__name__)
