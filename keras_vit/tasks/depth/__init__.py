"""Depth, disparity and other numbers of pixels."""
