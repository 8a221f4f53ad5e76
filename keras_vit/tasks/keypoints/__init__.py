"""Keypoint estimation: named points of the object in a box, or in the whole image."""
