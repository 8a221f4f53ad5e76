"""Whole models."""

from keras_vit.models.vit import VisionTransformer as VisionTransformer
