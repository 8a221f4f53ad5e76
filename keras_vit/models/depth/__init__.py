"""Depth estimators: a value, or several, for each pixel."""
