"""Encoded images to model input in TensorFlow graphs."""
