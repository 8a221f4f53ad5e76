"""A student and its teachers."""
