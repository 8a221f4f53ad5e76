"""Keypoint estimation: an encoder's patch tokens → a decoder → a heat map for each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.layers.convolution import Conv2D
from keras_vit.layers.enlargement import Enlargement
from keras_vit.layers.hints import CLASSES, FREE, sharded
from keras_vit.layers.segmentation_head import batch_norm
from keras_vit.models.encoder_model import as_encoder
from keras_vit.models.features import grids_of_blocks
from keras_vit.models.headed_model import HeadedModel
from keras_vit.models.vit.geometry import patch_pixels
from keras_vit.rules import integer, items, number, one_of, optional
from keras_vit.tasks.keypoints.estimating import estimate_keypoints
from keras_vit.tasks.keypoints.names import are_same_points, mirrored_by_name
from keras_vit.tasks.keypoints.reader import checked_points

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

HEADS = ("classic", "simple")
SCALE = 4  # pixels of a heat map for each patch, in each direction
_POSITIVE = integer(at_least=1)
_NATURAL = integer(at_least=0)


@keras.saving.register_keras_serializable("keras_vit")
class KeypointEstimator(HeadedModel):
    """Keypoint estimation with a plain Vision Transformer: where the named points of one object are.

    The image is a part of a larger one around the object, or shows one object. The heads enlarge the grid of
    patches four times:

    * "classic": two transposed convolutions of 4 × 4 pixels, each with a batch norm and a ReLU, and a 1 × 1
      convolution;
    * "simple": a ReLU, bilinear interpolation and a 3 × 3 convolution.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`. Its layers are shared, so
            training trains it. Or its constructor arguments.
        num_classes: Number of points.
        head: "classic" or "simple".
        decoder_width: Channels of the transposed convolutions of "classic".
        flip_index: For each point the number of the one that takes its place in a mirrored image, such as the
            right eye for the left one; None: by `class_names`, such as `left_eye` and `right_eye`.
        skeleton: Pairs of numbers of points between which a line is drawn.
        sigmas: A number for each point by which distances are judged in
            `keras_vit.evaluation.keypoint_scores`; None: those of the data, of COCO for its 17 points, or
            0.05.
        class_names: One name per point, or None.
        split_seed: Seed of the split of the training data; None if unknown.
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Input: `images`, float32 (batch, height, width, in_channels), as for the encoder.
    Output: float32 (batch, rows, columns, num_classes), heat maps of four rows and columns for each patch,
    whose largest values are near 1.

    Raises:
        ValueError: for an unknown head, numbers that do not fit the points, an encoder with layers after its
            tokens, without a Transformer or with patches that are no squares, or image sides that patches do
            not divide; by `compile` for micro-batches of "classic".

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> estimator = keras_vit.KeypointEstimator(encoder, num_classes=5, decoder_width=16)
        >>> estimator(np.zeros((1, 32, 32, 3))).shape, estimator.stride
        (TensorShape([1, 16, 16, 5]), 2.0)

    Source: Xu et al. 2022 (ViTPose, arXiv 2204.12484), section 3.1.
    """

    kind = "keypoint_estimator"
    head_reads_images = False
    exported_stages = ()
    task = "keypoints"
    other_norm = None
    head_layers = r"(deconvolution|norm)_\d+|head"
    class_layers = ("head",)
    head_options = ("head",)
    without_head = "this model estimates keypoints; use its `estimate_keypoints` method"
    rules = {
        "num_classes": _POSITIVE,
        "head": one_of(HEADS),
        "decoder_width": _POSITIVE,
        "flip_index": optional(items(_NATURAL)),
        "skeleton": optional(items(items(_NATURAL, 2))),
        "sigmas": optional(items(number(above=0))),
    }

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        num_classes: int = 17,
        head: str = "classic",
        decoder_width: int = 256,
        flip_index: Sequence[int] | None = None,
        skeleton: Sequence[tuple[int, int]] | None = None,
        sigmas: Sequence[float] | None = None,
        class_names: Sequence[str] | None = None,
        split_seed: int | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        encoder = as_encoder(encoder, dtype)
        self.store_arguments(locals())
        if flip_index is None and class_names:
            flip_index = mirrored_by_name(class_names)
        checked = checked_points(num_classes, flip_index, skeleton, sigmas)
        self.flip_index, self.skeleton, self.sigmas = checked
        encoder.check_one_size("a grid of patches")
        if len({*encoder.patch_size}) > 1:
            raise ValueError(f"expected patches that are squares; got a patch_size of {encoder.patch_size}")
        [x] = grids_of_blocks(encoder, [encoder.num_layers - 1])
        policy = encoder.dtype_policy
        if head == "classic":
            for number_of_layer in range(2):
                x = _doubled(x, decoder_width, policy, number_of_layer)
        else:
            x = keras.layers.ReLU(dtype=policy)(x)
            x = Enlargement(SCALE, dtype=policy, name="resize")(x)
        maps = sharded(
            Conv2D(
                num_classes,
                1 if head == "classic" else 3,
                padding="same",
                kernel_initializer=keras.initializers.RandomNormal(stddev=0.001),
                dtype=policy.variable_dtype,
                name="head",
            ),
            CLASSES,
        )(x)
        maps = keras.layers.Identity(dtype=policy.variable_dtype, name="logits")(maps)
        # Features of whole images would not be those of the parts around objects.
        super().__init__(encoder, maps, {"logits": maps}, None, name, trainable)

    @classmethod
    def with_stored(cls, stored: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        names = options.get("class_names")
        count = options.get("num_classes", len(names) if names else stored["num_classes"])
        known = stored.get("class_names")
        are_same = count == stored["num_classes"] and (not (names and known) or are_same_points(names, known))
        dropped = () if are_same else ("class_names", "flip_index", "skeleton", "sigmas")
        kept = {name: x for name, x in stored.items() if name not in (*dropped, "split_seed")}
        return {**kept, "num_classes": count, **options}

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        hidden, points = config["encoder"]["hidden_size"], config.get("num_classes", 17)
        if config.get("head", "classic") == "simple":
            return 9 * hidden * points
        width = config.get("decoder_width", 256)
        return width * (16 * (hidden + width) + points)

    estimate_keypoints = estimate_keypoints

    @property
    def stride(self) -> float:
        """The pixels of the image for each pixel of a heat map, in each direction."""
        return patch_pixels(self.encoder)[0] / SCALE

    def _config(self):
        names = ("flip_index", "skeleton", "sigmas")
        return {**super()._config(), **{name: getattr(self, name) for name in names}}


def _doubled(x, width, policy, number_of_layer):
    """A grid of twice the resolution."""
    options = {"padding": "same", "use_bias": False, "data_format": "channels_last", "dtype": policy}
    transposed = keras.layers.Conv2DTranspose(width, 4, 2, name=f"deconvolution_{number_of_layer}", **options)
    x = sharded(transposed, FREE)(x)
    x = batch_norm(policy, f"norm_{number_of_layer}")(x)
    return keras.layers.ReLU(dtype=policy)(x)
