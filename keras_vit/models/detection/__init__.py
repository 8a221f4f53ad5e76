"""Detectors: objects, each with a class and a box."""
