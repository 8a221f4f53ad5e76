"""What outputs for each pixel of an image share."""

from __future__ import annotations

from keras_vit.export.outputs.rows import RowOutputs, Stages
from keras_vit.lazy import LazyModule
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, patch_pixels
from keras_vit.models.windows import resized_outputs
from keras_vit.types import Tensor

signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")


class MapOutputs(RowOutputs):
    """Numbers for each pixel, also at the images' own sizes.

    A model with one image size computes each image as a whole, resized, as the live model's method does with
    `whole=True`; a model for any size pads it to whole patches.
    """

    on_pages, can_roll_out = True, False

    @property
    def takes_bytes(self) -> bool:
        return self.description.channels in (1, 3)

    def values(self, images: Tensor, stages: Stages) -> Tensor:
        """The live model's output (batch, height, width, outputs) for its input."""
        d = self.description
        # The graph of some models knows no shape if it takes images of any size.
        return tf.ensure_shape(stages(images)["logits"], (None, *d.image_size, d.num_outputs))

    def whole_values(self, images: Tensor, stages: Stages) -> Tensor:
        """The same of whole images (batch, height, width, channels) in 0…255, at the images' own size."""
        height, width = tf.unstack(tf.shape(images)[1:3])
        prepared = signatures.resized(images, self.preprocessing)
        if self.description.image_size == DYNAMIC_SIZE:
            return self.values(self._padded(prepared), stages)[:, :height, :width]
        return resized_outputs(self.values(prepared, stages), (height, width))

    def _padded(self, images: Tensor) -> Tensor:
        """Images padded at the bottom and right to whole patches, by the mean color."""
        sides = zip(tf.unstack(tf.shape(images)[1:3]), patch_pixels(self.description))
        paddings = [(0, 0), *((0, -side % patch) for side, patch in sides), (0, 0)]
        mean = tf.constant(self.description.mean)
        return tf.pad(images - mean, paddings) + mean
