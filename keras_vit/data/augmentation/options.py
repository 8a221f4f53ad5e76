"""The options of image augmentation. Imports no TensorFlow, as recipes have these options too."""

from __future__ import annotations

import dataclasses
import functools
import json

import keras

from keras_vit.rules import Rule, area, boolean, check_fields, field, items, number, optional

IMAGES_ONLY = ("randaugment", "layers", "random_erasing", "mixup", "cutmix")
_PROBABILITY = number(0, 1)
_PAIR = items(number(), 2)

CROP_AREA = optional(area)
RANDAUGMENT = optional(
    Rule(
        "(number of layers, magnitude in (0, 1])",
        lambda v: _PAIR.accepts(v) and isinstance(v[0], int) and v[0] > 0 and 0 < v[1] <= 1,
    )
)
SCALE_JITTER = optional(
    Rule("(smallest, largest) above 0", lambda scale: _PAIR.accepts(scale) and 0 < scale[0] <= scale[1])
)
MOSAIC = optional(
    Rule(
        "three probabilities, of 1, 4 and 9 images, with a positive sum",
        lambda values: items(number(0), 3).accepts(values) and sum(values) > 0,
    )
)
LAYERS = Rule("a tuple of Keras layers", lambda value: isinstance(value, tuple | list))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of training images; by default none.

    Changes of single images are applied in the order of the fields, on pixels in [0, 255]. What they sample
    depends only on the seed and on the image's position in the run. `mixup` and `cutmix` then blend each
    image and its label with another of the batch; if both are set, each batch gets one of them with equal
    probability.

    Args:
        crop_area: Smallest and largest fraction of the image that a random crop covers; None: no crop.
        scale_jitter: Smallest and largest factor by which the image is resized before a random crop of the
            model's size, which it just covers at 1; what it does not cover has the mean color. None: no such
            crop.
        shift: Largest random shift, as a fraction of each side, in [0, 1].
        rotate: Of keypoints: half of the images are turned by a random angle of at most so many degrees, in
            [0, 180].
        flip: Whether to mirror half of the images.
        photometric: The probability of each of four random changes of brightness, contrast, saturation and
            hue, the last two of colors only, by at most 32 of 255, ×0.5 to ×1.5, the same, and 18°.
        randaugment: (layers, magnitude) of `keras.layers.RandAugment`: the number of operations per image and
            their largest strength, its `factor` in (0, 1]. The paper and AugReg use another scale, up to 10
            and beyond. None: no RandAugment.
        layers: Keras layers that take images (batch, height, width, channels), such as those of
            `keras_cv.layers`, or their configurations by `keras.saving.serialize_keras_object`, which are
            what is stored.
        random_erasing: The probability of replacing a random rectangle by noise.
        mixup: The parameter of MixUp's Beta distribution; 0: no MixUp.
        cutmix: The parameter of CutMix's Beta distribution; 0: no CutMix.
        mosaic: Of boxes: the probabilities that a training image is 1, 4 or 9 images of its batch side by
            side; None: always 1.

    Raises:
        ValueError: for a value out of range, or a layer that cannot be rebuilt from its configuration.

    Example:
        >>> Augmentation(crop_area=(0.05, 1.0), flip=True, mixup=0.2).is_exact
        True
        >>> Augmentation(layers=[keras.layers.RandomBrightness(0.2)]).layers[0]["class_name"]
        'RandomBrightness'

    Masks, other maps and boxes are cropped, resized, shifted and mirrored like their image. Pixels of a map
    outside of the image are ignored, and boxes of which a change leaves less than a quarter in the image are
    left out. The values of maps change only as `LabelKind.zoomed` of their kind says.

    Source: `vit_jax/input_pipeline.py` for crop and flip; arXiv:1706.05587 (scale jitter), 1512.02325
    (photometric), 1909.13719 (RandAugment), 1708.04896 (erasing), 1710.09412 (MixUp), 1905.04899 (CutMix).
    """

    crop_area: tuple[float, float] | None = field(CROP_AREA, default=None)
    scale_jitter: tuple[float, float] | None = field(SCALE_JITTER, default=None)
    shift: float = field(_PROBABILITY, default=0.0)
    flip: bool = field(boolean, default=False)
    photometric: float = field(_PROBABILITY, default=0.0)
    randaugment: tuple[int, float] | None = field(RANDAUGMENT, default=None)
    layers: tuple[dict, ...] = field(LAYERS, default=())
    random_erasing: float = field(_PROBABILITY, default=0.0)
    mixup: float = field(_PROBABILITY, default=0.0)
    cutmix: float = field(_PROBABILITY, default=0.0)
    mosaic: tuple[float, ...] | None = field(MOSAIC, default=None)
    rotate: float = field(number(0, 180), default=0.0, kw_only=True)

    def __post_init__(self):
        check_fields(self)
        for name in ("crop_area", "scale_jitter", "randaugment", "mosaic"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "layers", tuple(map(_serialized, self.layers)))
        if self.crop_area and self.scale_jitter:
            raise ValueError("expected crop_area or scale_jitter; got both")

    @property
    def mixes(self) -> bool:
        """Whether images are blended with others, which needs labels of one number per class."""
        return bool(self.mixup or self.cutmix)

    @property
    def changes_images(self) -> bool:
        """Whether there is any random change."""
        return any(getattr(self, each.name) != each.default for each in dataclasses.fields(Augmentation))

    def check_moves_labels(self) -> None:
        """Raise ValueError for a change that would leave a mask or a box as it is, or blend labels."""
        if names := [name for name in IMAGES_ONLY if getattr(self, name)]:
            raise ValueError(
                "for maps and boxes expected crop_area, scale_jitter, shift, flip or photometric, with "
                f"which they move; got {', '.join(names)}"
            )

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether all random numbers come from the seed, so that a resumed run gets the same batches.

        Only `layers` may have random state of their own.
        """
        from keras_vit.data.augmentation.keras_layers import is_exact  # imports TensorFlow

        return all(is_exact(keras.saving.deserialize_keras_object(config)) for config in self.layers)


def _serialized(layer):
    """The configuration of a layer; ValueError if the layer cannot be rebuilt from it."""
    try:
        config = keras.saving.serialize_keras_object(layer) if isinstance(layer, keras.Layer) else layer
        config = json.loads(json.dumps(config))
        layer = keras.saving.deserialize_keras_object(config)
    except (TypeError, ValueError, KeyError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            "layers must be Keras layers that keras.saving can rebuild from their configuration (register "
            f"your own with @keras.saving.register_keras_serializable()); got {layer!r}: {reason}"
        ) from None
    if not isinstance(layer, keras.Layer):
        raise ValueError(f"layers must be Keras layers; got {config!r}")
    # On other backends only Keras's layers for tf.data compute TensorFlow's tensors, which have this method.
    if keras.backend.backend() != "tensorflow" and not hasattr(layer, "_get_seed_generator"):
        raise ValueError(
            "layers must be preprocessing layers of Keras, which tf.data computes, with KERAS_BACKEND="
            f"{keras.backend.backend()}; got {type(layer).__name__}"
        )
    if isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
        raise ValueError(f"set mixup or cutmix instead of the layer {layer.name}, which changes labels")
    if layer.weights:
        raise ValueError(f"layer {layer.name!r} has weights, which its configuration lacks")
    return config
