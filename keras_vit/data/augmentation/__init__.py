"""Random changes of training images, as functions of a seed."""
