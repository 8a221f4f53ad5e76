"""Models of pixels in checkpoints: their palette is stored as `clusters`."""

import re

from keras_vit.weights.stored_parts import PartsAround

_PALETTE = "patch_embedding/palette"


class PaletteParts(PartsAround):
    """The parts of an `ImageGPT`: the palette of its encoder is no weight in a file."""

    pattern = re.compile(_PALETTE)

    def split(self):
        arrays, config = super().split()
        return arrays, {**config, "clusters": self.others[_PALETTE]}

    def hub_words(self):
        task = "unconditional-image-generation"
        return task, "generation of images, pixel by pixel", ', kind="pretrainer"'
