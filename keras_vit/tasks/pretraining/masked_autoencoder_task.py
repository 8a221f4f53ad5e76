"""Masked autoencoder (MAE): the pixels of masked patches from the visible ones."""

from keras_vit import data
from keras_vit.tasks.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.tasks.pretraining.pictures import Pictures, Pretraining


class ReconstructionTask(Pretraining):
    """The pixels of masked patches, by a `MaskedAutoencoder` whose arguments are the recipe's `pretrainer`.

    Source: He et al. 2022 (MAE, arXiv 2111.06377).
    """

    name = "mae"
    model = MaskedAutoencoder

    def batches(self, batches, model, source, **place):
        return data.random_order_batches(batches, model.num_patches, **place)

    def figures(self, model, images):
        text = (
            f"Test images, their visible patches ({model.num_visible} of {model.num_patches}), and the "
            "images with the predicted pixels of the other patches."
        )
        if model.normalize_targets:
            text += " Each predicted patch has the mean and the contrast of the true one."
        return [Pictures("Reconstructions", text, model.reconstruct(images))]
