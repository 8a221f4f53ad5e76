"""Boxes of objects, of fixed classes or those that words describe."""
