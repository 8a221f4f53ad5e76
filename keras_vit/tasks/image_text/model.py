"""Image-text models: two towers whose vectors are close for an image and a text that describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_vit import preprocessing
from keras_vit.engine.adapting import copy_with_weights, plain_arrays
from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.labels import label_kind
from keras_vit.layers.dense import Dense, without_state
from keras_vit.layers.hints import FREE, sharded
from keras_vit.layers.logit_factors import OBJECTIVES, LogitFactors
from keras_vit.models.backbones import of_backbone
from keras_vit.models.classifying import check_finite, most_probable
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.vit.schema import INFERENCE
from keras_vit.models.vit.vision_transformer import VisionTransformer
from keras_vit.rules import boolean, integer, one_of, optional
from keras_vit.tasks.image_text.loss import pair_loss
from keras_vit.tasks.image_text.text_encoding import TextEncoding
from keras_vit.tasks.image_text.text_transformer import TEXT_INFERENCE, TextTransformer, min_text_parameters
from keras_vit.types import Images, Labels, Tensor

if TYPE_CHECKING:
    from keras_vit.preprocessing import TextPreprocessing

_SIZE = optional(integer(at_least=1))
_OPTIONS = ("objective", "image_projection", "text_projection", "projection_bias")


@keras.saving.register_keras_serializable("keras_vit")
class ImageTextModel(TextEncoding, ConfiguredModel):
    """Two towers, one for images and one for texts, as in SigLIP, CLIP and LiT.

    The vectors of both, of length 1, have a logit for each pair of an image and a text. `fit` takes pairs
    without labels, and compares each with all pairs of the global batch, on any number of devices. Sample
    weights weight the pairs in the mean of the loss; a pair of weight 0 is not compared with others. For a
    frozen image tower (LiT), set `model.image.trainable = False` and compile.

    Args:
        image: A VisionTransformer without a head, or its constructor arguments.
        text: A TextTransformer, or its constructor arguments.
        objective: "sigmoid" (SigLIP: each pair is a match or not) or "softmax" (CLIP: which text belongs to
            an image, and which image to a text).
        image_projection, text_projection: Size of a linear layer after the tower; None for none. The vectors
            of both must have one size.
        projection_bias: Whether these layers have biases (SigLIP and LiT; not CLIP).
        text_preprocessing: How texts become token ids, a `TextPreprocessing` or its arguments; None if
            callers make them.
        dtype: A dtype policy for towers that are given by their arguments. The embeddings are float32.
        name, trainable: As of any Keras model.

    Input: a dict of `images`, as for the image tower: float32 (batch, height, width, in_channels), or a dict
    with `max_num_patches`; and `ids`, int32 (batch, length) as for the text tower.
    Output: float32 (batch, 2, size), two vectors of each pair. output[:, 0] @ output[:, 1].T are the logits
    of all images with all texts of the batch (see `LogitFactors`).

    Raises:
        ValueError: for an unknown objective, an image tower with a head or without pooling, or vectors of two
            sizes.

    Example:
        >>> image = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> text = {"vocabulary_size": 100, "length": 8, "hidden_size": 12, "num_layers": 2}
        >>> text = {**text, "mlp_dim": 48, "num_heads": 3}
        >>> model = ImageTextModel(image, text, text_projection=24, projection_bias=True)
        >>> model.encode_text(np.ones((2, 8), "int32")).shape
        (2, 24)

    Source: Radford et al. 2021 (CLIP, arXiv 2103.00020); Zhai et al. 2023 (SigLIP, arXiv 2303.15343); Zhai et
    al. 2022 (LiT, arXiv 2111.07991).
    """

    kind = task = "image_text"
    backbone_argument = "image"
    takes_images = False
    needs_texts = True
    is_classifier = False
    without_head = "this model compares images with texts; use its `zero_shot` method"

    def __init__(
        self,
        image: VisionTransformer | Mapping[str, Any],
        text: TextTransformer | Mapping[str, Any],
        objective: str = "sigmoid",
        image_projection: int | None = None,
        text_projection: int | None = None,
        projection_bias: bool = False,
        text_preprocessing: TextPreprocessing | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        if not isinstance(image, VisionTransformer):
            image = VisionTransformer.from_config({"dtype": dtype, **image})
        if not isinstance(text, TextTransformer):
            text = TextTransformer.from_config({"dtype": dtype, **text})
        if image.num_classes is not None or image.pooling is None:
            raise ValueError(
                "expected an image tower without a head that pools its tokens; got num_classes="
                f"{image.num_classes} and pooling={image.pooling!r}"
            )
        self.objective = one_of(OBJECTIVES).check("objective", objective)
        self.image_projection = _SIZE.check("image_projection", image_projection)
        self.text_projection = _SIZE.check("text_projection", text_projection)
        self.projection_bias = boolean.check("projection_bias", projection_bias)
        if isinstance(text_preprocessing, Mapping):
            text_preprocessing = preprocessing.TextPreprocessing(**text_preprocessing)

        policy = image.dtype_policy
        float32 = policy.variable_dtype
        images = keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), image.input
        )  # (b, H, W, c), or a dict of packed patches and grids
        ids = keras.Input(text.input.shape[1:], dtype="int32", name="ids")  # (b, n)
        embeddings = []
        for side, x, size in (
            ("image", image(images), image_projection),
            ("text", text(ids), text_projection),
        ):
            if size is not None:
                projection = Dense(size, use_bias=projection_bias, dtype=policy, name=f"{side}_projection")
                x = sharded(projection, FREE)(x)
            embeddings.append(keras.layers.UnitNormalization(dtype=float32, name=f"{side}_embedding")(x))
        sizes = [x.shape[-1] for x in embeddings]
        if sizes[0] != sizes[1]:
            raise ValueError(f"expected vectors of one size of both towers; got {sizes[0]} and {sizes[1]}")
        pairs = LogitFactors(objective, dtype=float32, name="logit_factors")(*embeddings)
        super().__init__({"images": images, "ids": ids}, pairs, name=name, trainable=trainable)
        self.dtype_policy = policy
        self.text_preprocessing = text_preprocessing
        # Keras would take them for layers of this model, which has theirs already.
        vars(self)["image"], vars(self)["text"] = image, text
        vars(self)["image_encoder"] = DistributedModel(images, embeddings[0], name="image_encoder")
        vars(self)["text_encoder"] = DistributedModel(ids, embeddings[1], name="text_encoder")

    def compile(self, *args: Any, accumulation_steps: int = 1, **kwargs: Any) -> None:
        """Configure the model for training, as `DistributedModel.compile`.

        Raises:
            ValueError: as there, or for several micro-batches, whose pairs could not be compared with each
                other.
        """
        if accumulation_steps != 1:
            raise ValueError(
                f"expected accumulation_steps=1, since a batch's pairs are compared; got {accumulation_steps}"
            )
        super().compile(*args, accumulation_steps=1, **kwargs)

    def own_loss(self, x: Any, y_pred: Any, sample_weight: Tensor) -> Tensor:
        return pair_loss(y_pred, self.objective, weights=sample_weight)

    image_size = of_backbone("image_size", "(height, width) of the images in pixels, (None, None) for any.")
    preprocessing = of_backbone("preprocessing", "How images become model input.")

    def encode_images(
        self, images: Images, batch_size: int = 32, value_range: tuple[float, float] | None = None
    ) -> np.ndarray:
        """The vectors of images.

        Args:
            images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or
                a list.
            batch_size: Number of images that are read and computed at a time.
            value_range: (lowest, highest) possible value of float images; None for (0, 1).

        Returns:
            float32 array (images, size), each vector of length 1.

        Raises:
            ValueError: if an image cannot be read, or the model computes NaN.
        """
        vectors = []
        for batch in self.preprocessing.batches(images, batch_size, value_range):
            vectors.append(check_finite(np.asarray(self.image_encoder.predict_on_batch(batch))))
        return np.concatenate([*vectors, np.zeros((0, self.image_encoder.output.shape[-1]), "float32")])

    def similarity(self, images: Images, texts: str | Sequence[str]) -> np.ndarray:
        """The logits of all images with all texts.

        Args:
            images: As for `encode_images`; or vectors, such as its result or means of it: an array of floats
                (images, size), of any lengths above 0.
            texts: As for `encode_text`, or vectors as of images.

        Returns:
            float32 array (images, texts). With the objective "sigmoid" the sigmoid of a logit is the
            probability that the two match.

        Raises:
            ValueError: as `encode_images` and `encode_text`, or for a vector of length 0, NaN or infinity.
        """
        size = self.image_encoder.output.shape[-1]
        images = _normalized(images) if _are_vectors(images, size) else self.encode_images(images)
        texts = _normalized(texts) if _are_vectors(texts, size) else self.encode_text(texts)
        scale, bias = self._scale_and_bias()
        return (images @ texts.T * scale + bias).astype("float32")

    @property
    def _task_of_labels(self):
        """The task whose probabilities belong to the objective."""
        return "multi_label" if self.objective == "sigmoid" else "single_label"

    def _scale_and_bias(self):
        factors = self.get_layer("logit_factors")
        bias = 0.0 if factors.bias is None else float(ops.convert_to_numpy(factors.bias.value))
        return np.exp(ops.convert_to_numpy(factors.scale.value)), bias

    def zero_shot(
        self,
        images: Images,
        labels: Labels,
        top: int = 5,
        batch_size: int = 32,
        value_range: tuple[float, float] | None = None,
    ) -> list[list[tuple[str, float]]]:
        """Classify images by texts that describe the classes.

        Args:
            images: As for `encode_images`.
            labels: As for `class_vectors`: `["a cat", "a dog"]`, or `{"cat": ["a cat", "a photo of a cat"]}`.
            top: Number of classes per image.
            batch_size, value_range: As for `encode_images`.

        Returns:
            For each image a list of (label, probability), most probable first, as `classify` of a
            VisionTransformer. With the objective "sigmoid" each probability is that of the label alone; with
            "softmax" the probabilities of all labels sum to 1.

        Raises:
            ValueError: as `encode_images` and `class_vectors`.

        Source: Radford et al. 2021 (CLIP), section 3.1; ensembles of prompts: section 3.1.4.
        """
        names, vectors = self.class_vectors(labels)
        logits = self.similarity(self.encode_images(images, batch_size, value_range), vectors)
        label_type = label_kind(self._task_of_labels)
        return most_probable(label_type.probabilities(logits.astype("float64")), names, top)

    def vision_transformer(self, labels: Labels | None = None) -> VisionTransformer:
        """The image tower as a VisionTransformer, which needs no texts and is exported in every format.

        Args:
            labels: As for `class_vectors`: the classes of a classifier whose head has the vectors of their
                texts. None: the model outputs the vectors of images, as `encode_images`.

        Returns:
            A VisionTransformer, a copy for inference. The task of a classifier is "multi_label" with the
            objective "sigmoid", and "single_label" with "softmax".

        Raises:
            ValueError: as `class_vectors`, or if both the tower and this model project.

        Example:
            >>> image = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
            >>> text = {"vocabulary_size": 9, "length": 4, "hidden_size": 24, "num_layers": 1}
            >>> model = keras_vit.ImageTextModel(image, {**text, "mlp_dim": 48, "num_heads": 3})
            >>> model.text_preprocessing = lambda texts: np.array([[len(text) % 9] * 4 for text in texts])
            >>> classifier = model.vision_transformer(["cat", "mouse"])
            >>> classifier.class_names, classifier(np.zeros((1, 32, 32, 3))).shape
            (('cat', 'mouse'), TensorShape([1, 2]))

        Source: Radford et al. 2021 (CLIP), section 3.1.2: the text tower generates a linear classifier.
        """
        config = {**without_state(self.image.get_config()), **INFERENCE, "trainable": True}
        config["unit_representation"] = True
        arrays = plain_arrays(self)
        self.check_projections()
        if self.image_projection is not None:
            size = self.image_projection
            config |= {"representation_size": size, "representation_activation": None}
            arrays["pre_logits/kernel"] = arrays["image_projection/kernel"]
            arrays["pre_logits/bias"] = arrays.get("image_projection/bias", np.zeros(size))
        if labels is not None:
            names, vectors = self.class_vectors(labels)
            config |= {"num_classes": len(names), "class_names": names, "task": self._task_of_labels}
            scale, bias = self._scale_and_bias()
            arrays |= {"head/kernel": scale * vectors.T, "head/bias": np.full(len(names), bias)}
        return copy_with_weights(self.image, config, arrays)

    def with_labels(self, labels: Labels) -> VisionTransformer:
        """The classifier by these labels, as `vision_transformer`."""
        return self.vision_transformer(labels)

    def check_projections(self) -> None:
        """Raise ValueError if both the image tower and this model project, as no VisionTransformer does."""
        if self.image_projection is not None and self.image.representation_size is not None:
            raise ValueError(
                "a classifier by texts needs an image tower without representation_size, or a model without "
                f"image_projection; got {self.image.representation_size} and {self.image_projection}"
            )

    def finished(self, arrays: dict[str, np.ndarray] | None = None) -> ImageTextModel:
        """A copy of the model for inference, in float32 and without dropout, remat and frozen layers.

        Args:
            arrays: dict of the weights by path; None for the model's, with LoRA factors merged.
        """
        config = {**without_state(self.get_config()), "trainable": True}
        for tower, inference in (("image", INFERENCE), ("text", TEXT_INFERENCE)):
            config[tower] = {**without_state(config[tower]), **inference, "trainable": True}
        return copy_with_weights(self, config, arrays)

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        return min_text_parameters(config["text"])

    def get_config(self) -> dict[str, Any]:
        texts = self.text_preprocessing
        return {
            "image": self.image.get_config(),
            "text": self.text.get_config(),
            **{name: getattr(self, name) for name in _OPTIONS},
            "text_preprocessing": texts and texts.get_config(),
            **super().get_config(),
        }

    def _inner_models(self):
        return self.image, self.text


def _are_vectors(x, size):
    return isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim == 2 and x.shape[1] == size


def _normalized(vectors):
    """Vectors divided by their lengths."""
    vectors = vectors.astype("float32")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError("expected vectors of finite lengths above 0; got one of length 0, NaN or infinity")
    return vectors / lengths
