"""The tasks that only runs have: pairs of images and texts, and tasks without labels."""
