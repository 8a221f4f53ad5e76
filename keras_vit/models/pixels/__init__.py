"""Models of pixels: an image as a sequence of colors."""
