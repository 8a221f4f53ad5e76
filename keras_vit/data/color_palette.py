"""A palette of the colors of training images, by k-means."""

import numpy as np

from keras_vit.data.batches import training_batches

IMAGES, PIXELS = 1024, 64  # images, and pixels of each


def fit_palette(samples, preprocessing, colors, seed):
    """The colors of k-means of training pixels: at most 64 random pixels of each of 1,024 random images.

    Args:
        samples: A split of a `Dataset`.
        preprocessing: `Preprocessing`, whose output has the palette's units.
        colors: The number of colors; they repeat, if there are fewer different pixels.
        seed: An int.

    Returns:
        float32 (colors, channels), ordered by the first channel.

    Raises:
        ValueError: if there are no samples.

    Example:
        >>> fit_palette(load_dataset("digits").split("train"), Preprocessing(8), 17, seed=0).shape
        (17, 3)

    Source: Chen et al. 2020 (iGPT), section 3.2: k-means with k = 512 of the pixels of ImageNet.
    """
    from sklearn.cluster import KMeans  # Its import takes long.

    batches = training_batches(samples, preprocessing, 64, seed=seed, steps=IMAGES // 64)
    rng, pixels = np.random.default_rng(seed), []
    for images, _ in batches.as_numpy_iterator():
        flat = images.reshape(len(images), -1, images.shape[-1])
        pixels += [rng.permutation(image)[:PIXELS] for image in flat]
    # Sums of float64 hide in which order the threads of k-means add.
    palette, counts = np.unique(np.concatenate(pixels).astype("float64"), axis=0, return_counts=True)
    if len(palette) > colors:
        means = KMeans(colors, n_init=1, random_state=seed).fit(palette, sample_weight=counts)
        palette = means.cluster_centers_
    palette = palette[np.lexsort(palette.T[::-1])]
    return np.resize(palette, (colors, palette.shape[1])).astype("float32")
