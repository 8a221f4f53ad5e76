"""Classes of whole images, one or several of each, and numbers."""
