"""Checkpoint files to models."""

from keras_vit.weights.load import from_pretrained as from_pretrained
