"""iGPT: the color of each pixel from the pixels before it."""

import keras
import numpy as np

from keras_vit.engine.sharding import whole
from keras_vit.losses import MEAN
from keras_vit.models.pixels.image_gpt import ImageGPT, color_ids
from keras_vit.tasks.pretraining.pictures import Pictures, Pretraining


class PixelTask(Pretraining):
    """The next pixel's color, of a palette of the training images' colors or of the weights' palette.

    Source: Chen et al. 2020, "Generative Pretraining from Pixels".
    """

    name = "igpt"
    model = ImageGPT

    def loss(self, recipe, model):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN)

    def prepare(self, model, samples, recipe):
        if self.config.weights is None:
            from keras_vit.data.color_palette import fit_palette  # needs TensorFlow

            colors = model.encoder.palette
            palette = fit_palette(samples, model.encoder.preprocessing, colors, recipe.seed)
            model.encoder.get_layer("patch_embedding").palette.assign(palette)

    def batches(self, batches, model, source, **place):
        import tensorflow as tf

        from keras_vit.data.samples import not_converted

        palette = whole(model.encoder.get_layer("patch_embedding").palette)

        @not_converted
        def with_colors(images, *labels):
            ids = color_ids(images, palette)
            return images, ids, tf.ones_like(ids, tf.float32)  # a weight for each pixel's loss

        return batches.map(with_colors, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def figures(self, model, images):
        preprocessing, rows = model.encoder.preprocessing, model.encoder.image_size[0] // 2
        pixels = preprocessing.colors(images)
        begun = pixels.copy()
        begun[:, rows:] = 0.5
        drawn = {
            "The upper half": begun,
            **{f"Completion {n}": model.complete(pixels, rows, seed=n) / np.float32(255) for n in (1, 2, 3)},
            "The image": pixels,
        }
        text = "The lower half of test images is sampled pixel by pixel, three times."
        sampled = {"Samples": model.sample(len(images)) / np.float32(255)}
        return [
            Pictures("Completions", text, drawn),
            Pictures("Samples", "New images, sampled pixel by pixel from the first one.", sampled),
        ]
