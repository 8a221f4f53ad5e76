"""Images and labels: data sets, decoding, augmentation, batches. Knows nothing of the models."""
