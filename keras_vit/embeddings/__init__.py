"""Vectors of all images of a data set, in Parquet files."""

from keras_vit.embeddings.computing import Embedder as Embedder
from keras_vit.embeddings.computing import embed as embed
from keras_vit.embeddings.computing import embed_part as embed_part
from keras_vit.embeddings.computing import plan_embeddings as plan_embeddings
from keras_vit.embeddings.indexing import open_for_embeddings as open_for_embeddings
from keras_vit.embeddings.indexing import update_index as update_index
from keras_vit.embeddings.labeled import LabeledVectors as LabeledVectors
from keras_vit.embeddings.labeled import read_labeled as read_labeled
from keras_vit.embeddings.parts import read_embeddings as read_embeddings
from keras_vit.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
