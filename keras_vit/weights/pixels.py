"""Models of pixels in checkpoints: their palette is stored as `clusters`."""

from keras_vit.weights.stored_parts import StoredParts


class PaletteParts(StoredParts):
    """The parts of an `ImageGPT`: the palette of its encoder is no weight there."""

    is_in_timm = has_pipeline = False

    def split(self):
        arrays, config = super().split()
        return arrays, {**config, "clusters": arrays.pop("patch_embedding/palette")}

    def head(self):
        return {"num_classes": self.model.encoder.num_classes, "class_names": self.model.encoder.class_names}

    def hub_words(self):
        return (
            "unconditional-image-generation",
            "generation of images, pixel by pixel",
            ', kind="pretrainer"',
        )
