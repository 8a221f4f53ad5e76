"""Object detection: an encoder's patch tokens → a box and class scores for each patch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.layers import GridToTokens, LayerNormalization
from keras_vit.layers.box_head import BoxHead, MergeClassToken
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import CLASSES, sharded
from keras_vit.models.detection.detecting import detect
from keras_vit.models.features import patch_grid
from keras_vit.models.headed_model import HeadedModel
from keras_vit.models.pretraining.encoder_model import as_encoder
from keras_vit.rules import boolean, integer

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

PRIOR = 0.01  # the probability of each class that a new head predicts


@keras.saving.register_keras_serializable("keras_vit")
class ObjectDetector(HeadedModel):
    """Object detection with a plain Vision Transformer: each patch predicts a class and a box.

    There is no decoder, no anchor and no suppression of overlapping boxes: in training each object is matched
    with one patch, and all others learn that they have none.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`. Its layers are shared, so
            training trains it. Or its constructor arguments.
        num_classes: Number of classes.
        merge_class_token: Whether to multiply the patch tokens by the class token, with a norm after it
            (OWL-ViT).
        class_names: One name per class, or None.
        split_seed: Seed of the split of the training data; None if unknown.
        dtype: A dtype policy for an encoder that is given by its arguments.
        name, trainable: As of any Keras model.

    Input: `images`, float32 (batch, height, width, in_channels), as for the encoder.
    Output: float32 (batch, patches, 4 + num_classes): the box of each patch, the center's x and y, the width
    and the height as fractions of the image's sides; then the logits of the classes, of which each is a
    probability of its own (sigmoid). `detect` makes objects of them.

    Raises:
        ValueError: for an encoder with layers after its tokens or without a Transformer, `merge_class_token`
            of one without a class token, or image sides that patches do not divide.

    Example:
        >>> detector = ObjectDetector(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), num_classes=4)
        >>> detector(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 16, 8])

    Source: Minderer et al. 2022 (OWL-ViT, arXiv 2205.06230), section 3.1, with classes in place of words; its
    code, `scenic/projects/owl_vit`.
    """

    kind = "detector"
    exported_stages = ("boxes",)
    task = "detection"
    without_head = "this model detects objects; use its `detect` method"
    rules = {"num_classes": integer(at_least=1), "merge_class_token": boolean}

    def __init__(
        self,
        encoder: VisionTransformer,
        num_classes: int,
        merge_class_token: bool = False,
        class_names: Sequence[str] | None = None,
        split_seed: int | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        encoder = as_encoder(encoder, dtype)
        self.store_arguments(locals())
        if merge_class_token and not encoder.class_token:
            raise ValueError("merge_class_token needs an encoder with a class token; got one without")

        policy, float32 = encoder.dtype_policy, encoder.dtype_policy.variable_dtype
        tokens = encoder._stages["tokens"]
        grid = patch_grid(encoder, tokens)
        patches = GridToTokens(name="patches")(grid)  # (b, n, d)
        if merge_class_token:
            patches = MergeClassToken(dtype=policy, name="merge_class_token")(tokens, patches)
            norm = LayerNormalization(encoder.norm_epsilon, dtype=policy, name="merge_norm")
            patches = norm(patches)
        head = Dense(
            num_classes,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(math.log(PRIOR / (1 - PRIOR))),
            dtype=float32,
            name="head",
        )
        logits = sharded(head, CLASSES)(patches)  # (b, n, k)
        activation = "gelu_erf" if encoder.activation == "silu" else encoder.activation
        boxes = BoxHead(activation, dtype=policy, name="box_head")(patches, grid)  # (b, n, 4)
        detections = ops.concatenate([boxes, logits], axis=-1)
        stages = {"boxes": boxes, "logits": logits}
        head_inputs = [tokens, encoder.get_layer("patch_embedding").output]
        super().__init__(encoder, detections, stages, head_inputs, name, trainable)

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        hidden = config["encoder"]["hidden_size"]
        return hidden * (2 * hidden + 4 + config["num_classes"])

    detect = detect
