"""Segmenters: a class for each pixel."""
