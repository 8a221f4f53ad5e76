"""Checkpoint files to models, and back."""

from keras_vit.weights.load import from_pretrained as from_pretrained
from keras_vit.weights.save import save_weights as save_weights
