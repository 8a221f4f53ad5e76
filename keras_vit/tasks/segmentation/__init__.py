"""Classes of pixels, and the instances and panoptic segments of queries."""
