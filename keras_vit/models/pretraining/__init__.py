"""Models that are trained without labels around an encoder."""
