"""Models of pixels in checkpoints."""

from keras_vit.weights.stored_parts import StoredParts


class PaletteParts(StoredParts):
    """The parts of an `ImageGPT`."""

    form = "image_gpt"
    missing = "a palette"

    def hub_words(self):
        task = "unconditional-image-generation"
        return task, "generation of images, pixel by pixel", ', kind="pretrainer"'
