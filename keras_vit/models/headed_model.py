"""Models with an encoder and a head of classes on its tokens: segmenters and detectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.labels import label_kind
from keras_vit.models.backbones import backbone, of_backbone
from keras_vit.models.encoder_model import EncoderModel
from keras_vit.models.features import feature_extractor
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer
    from keras_vit.preprocessing import Preprocessing


class HeadedModel(EncoderModel):
    """A model of images whose head gives several class scores for each image.

    The constructor of a subclass has the arguments `num_classes`, `class_names` and `split_seed`.

    Args:
        encoder: The VisionTransformer, without layers after its tokens.
        outputs: The model's output, a symbolic tensor.
        stages: dict of the head's stages for `feature_extractor`, by name.
        head_inputs: The tensors that the head reads; None if it cannot be computed without the encoder.
        name, trainable: As of any Keras model.
    """

    is_classifier = False
    other_norm: str | None = None  # the `head_norm` in place of "batch", for micro-batches
    head_layers = ""  # a pattern of the names of all layers that any of its heads has
    class_layers: tuple[str, ...] = ("head",)  # the names of those whose shapes depend on the classes
    # The attributes by which heads of the same layers differ.
    head_options: tuple[str, ...] = ("head", "blocks")
    class_options: tuple[str, ...] = ()  # the attributes by which the same classes mean something else

    def __init__(
        self,
        encoder: VisionTransformer,
        outputs: Tensor,
        stages: Mapping[str, Tensor],
        head_inputs: Sequence[Tensor] | None,
        name: str | None,
        trainable: bool,
    ) -> None:
        super().__init__(encoder.input, outputs, name=name, trainable=trainable)
        self.dtype_policy = encoder.dtype_policy
        self.input_spec = keras.InputSpec(shape=encoder.input.shape)
        # Keras would take them for layers of this model, which has theirs already.
        self.__dict__["encoder"] = encoder
        self.__dict__["_stages"] = {**encoder._stages, **stages}
        self.__dict__["head_inputs"] = head_inputs
        for layer in self.own_layers():
            layer.is_head = True

    @classmethod
    def with_stored(cls, stored: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a new head for a file of this class, some of which may be the file's.

        Args:
            stored: dict of the arguments of the file's model.
            options: dict of those that are given.
        """
        return options

    def store_arguments(self, arguments: Mapping[str, Any]) -> None:
        super().store_arguments(arguments)
        class_names, num_classes = arguments["class_names"], arguments["num_classes"]
        self.class_names = class_names and tuple(class_names)
        self.split_seed = arguments["split_seed"]
        if class_names and len(class_names) != num_classes:
            raise ValueError(f"class_names must hold num_classes={num_classes} names; got {len(class_names)}")

    def compile(self, *args: Any, accumulation_steps: int = 1, **kwargs: Any) -> None:
        norms = (isinstance(layer, keras.layers.BatchNormalization) for layer in self._flatten_layers())
        if accumulation_steps > 1 and any(norms):
            raise ValueError(
                "head_norm='batch' needs the whole batch at once, accumulation_steps=1 or "
                f"head_norm={self.other_norm!r}; got accumulation_steps={accumulation_steps}"
            )
        super().compile(*args, accumulation_steps=accumulation_steps, **kwargs)

    feature_extractor = feature_extractor

    image_size = of_backbone("image_size", "(height, width) of the images in pixels, (None, None) for any.")
    patch_size = of_backbone("patch_size", "(height, width) of a patch.")
    in_channels = of_backbone("in_channels", "Number of the images' channels.")
    resnet = of_backbone("resnet", "As of the encoder.")

    @property
    def preprocessing(self) -> Preprocessing:
        """How images become model input: for a map the whole image, as each pixel has an output."""
        preprocessing = backbone(self).preprocessing
        is_map = label_kind(self.task).is_map
        return dataclasses.replace(preprocessing, resize="squash") if is_map else preprocessing

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "class_names": self.class_names, "split_seed": self.split_seed}
