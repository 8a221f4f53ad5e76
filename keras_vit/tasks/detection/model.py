"""Object detection: an encoder's patch tokens → a box and class scores for each patch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit import preprocessing
from keras_vit.engine.adapting import plain_arrays
from keras_vit.layers import GridToTokens, LayerNormalization
from keras_vit.layers.box_head import BoxHead, ConcatenateDetections, MergeClassToken, PatchMlp
from keras_vit.layers.class_queries import ClassQueries, WordQueries
from keras_vit.layers.dense import Dense, without_state
from keras_vit.layers.hints import CLASSES, FREE, never_trained, sharded
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.models.classifying import check_finite
from keras_vit.models.encoder_model import as_encoder
from keras_vit.models.features import patch_grid
from keras_vit.models.headed_model import HeadedModel
from keras_vit.rules import boolean, integer, number, one_of, optional
from keras_vit.tasks.detection.detecting import detect
from keras_vit.tasks.detection.words import ids_of_classes, most_distinct, text_encoder_of, text_tower
from keras_vit.tasks.image_text.text_encoding import TextEncoding
from keras_vit.tasks.image_text.text_transformer import (
    TEXT_INFERENCE,
    TextTransformer,
    min_text_parameters,
)
from keras_vit.types import Images, Labels

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer
    from keras_vit.preprocessing import TextPreprocessing

PRIOR = 0.01  # the probability of each class that a new head predicts


@keras.saving.register_keras_serializable("keras_vit")
class ObjectDetector(TextEncoding, HeadedModel):
    """Object detection with a plain Vision Transformer: each patch predicts a class and a box.

    There is no decoder, no anchor and no suppression of overlapping boxes: in training each object is matched
    with one patch, and all others learn that they have none.

    With `query_size` the classes have vectors, with which those of the patches are compared. With `text`
    these are the vectors of texts, so that the model detects what any words say (OWL-ViT): `with_labels`
    returns the detector for other words.

    Args:
        encoder: A VisionTransformer without layers after its tokens: no `num_classes`,
            `representation_size`, "map" pooling or `norm_after_pooling`. Its layers are shared, so
            training trains it. Or its constructor arguments.
        num_classes: Number of classes; with `text` None for that of `class_ids` or `class_names`.
        merge_class_token: Whether to multiply the patch tokens by the class token, with a norm after it
            (OWL-ViT).
        merge_norm_epsilon: Epsilon of that norm; None for the encoder's.
        head_activation: Activation of the MLP of the boxes, as in `MlpBlock`; None for the encoder's, or
            "gelu_erf" if that is "silu".
        query_size: Size of the classes' vectors; None for a linear layer of the classes.
        objectness: Whether each patch has a logit that it has an object of any class (OWLv2). It is no
            output of the model, but a stage of `feature_extractor`, and is not trained.
        text: A `TextTransformer` whose output a linear layer projects to `query_size`, or its constructor
            arguments; None for classes without texts.
        train_text: Whether training changes the text tower, too.
        class_ids: int array (num_classes, length), the token ids of each class; None for those of
            `class_names`, or for padding, with which nothing is detected, without names.
        text_preprocessing: How texts become token ids, a `TextPreprocessing` or its arguments, or None.
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
            of one without a class token, image sides that patches do not divide, `text` without `query_size`,
            `class_names` with `text` and neither ids nor a tokenizer, or `class_ids` of another shape.

    Example:
        >>> detector = ObjectDetector(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), num_classes=4)
        >>> detector(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 16, 8])

    Source: Minderer et al. 2022 (OWL-ViT, arXiv 2205.06230), section 3.1; Minderer et al. 2023 (OWLv2, arXiv
    2306.09683), section 3.2; their code, `scenic/projects/owl_vit`.
    """

    kind = "detector"
    head_layers = (
        r"(box_|objectness_)?head|merge_norm|class_(projection|shift|scale|queries)|text(_projection)?"
    )
    class_layers = ("head", "class_queries")
    exported_stages = ("boxes",)
    task = "detection"
    matches = True
    without_head = "this model detects objects; use its `detect` method"
    rules = {
        "num_classes": integer(at_least=1),
        "merge_class_token": boolean,
        "merge_norm_epsilon": optional(number(above=0)),
        "head_activation": optional(one_of(ACTIVATIONS)),
        "query_size": optional(integer(at_least=1)),
        "objectness": boolean,
        "train_text": boolean,
    }

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        num_classes: int | None = None,
        merge_class_token: bool = False,
        merge_norm_epsilon: float | None = None,
        head_activation: str | None = None,
        query_size: int | None = None,
        objectness: bool = False,
        text: TextTransformer | Mapping[str, Any] | None = None,
        train_text: bool = False,
        class_ids: Any = None,
        text_preprocessing: TextPreprocessing | None = None,
        class_names: Sequence[str] | None = None,
        split_seed: int | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        encoder = as_encoder(encoder, dtype)
        if isinstance(text_preprocessing, Mapping):
            text_preprocessing = preprocessing.TextPreprocessing(**text_preprocessing)
        if text is not None:
            text = text_tower(text, encoder)
            class_ids = ids_of_classes(class_ids, num_classes, class_names, text.length, text_preprocessing)
            num_classes = num_classes or len(class_ids)
        self.store_arguments(locals())
        if merge_class_token and not encoder.class_token:
            raise ValueError("merge_class_token needs an encoder with a class token; got one without")
        if text is not None and (len(class_ids) != num_classes or query_size is None):
            raise ValueError(
                "a text tower needs query_size, and class_ids of all classes; got "
                f"query_size={query_size}, num_classes={num_classes} and ids of {len(class_ids)}"
            )

        policy, float32 = encoder.dtype_policy, encoder.dtype_policy.variable_dtype
        tokens = encoder._stages["tokens"]
        grid = patch_grid(encoder, tokens)
        patches = GridToTokens(name="patches")(grid)  # (b, n, d)
        if merge_class_token:
            patches = MergeClassToken(dtype=policy, name="merge_class_token")(tokens, patches)
            norm = LayerNormalization(
                merge_norm_epsilon or encoder.norm_epsilon, dtype=policy, name="merge_norm"
            )
            patches = norm(patches)
        rare = keras.initializers.Constant(math.log(PRIOR / (1 - PRIOR)))
        stages, text_encoder = {}, None
        if query_size is None:
            head = Dense(
                num_classes, kernel_initializer="zeros", bias_initializer=rare, dtype=float32, name="head"
            )
            logits = sharded(head, CLASSES)(patches)  # (b, n, k)
        else:
            projection = Dense(query_size, dtype=float32, name="class_projection")
            stages["class_vectors"] = vectors = sharded(projection, FREE)(patches)  # (b, n, q)
            shift = Dense(1, bias_initializer=rare, dtype=float32, name="class_shift")
            scale = Dense(1, dtype=float32, name="class_scale")
            if text is None:
                queries = ClassQueries(num_classes, query_size, dtype=float32, name="class_queries")
            else:
                text_encoder = text_encoder_of(text, query_size)
                queries = WordQueries(class_ids, text_encoder, dtype=float32, name="class_queries")
            logits = queries(vectors, sharded(shift, FREE)(patches), sharded(scale, FREE)(patches))
        activation = head_activation or encoder.activation
        activation = "gelu_erf" if activation == "silu" else activation
        boxes = BoxHead(activation, dtype=policy, name="box_head")(patches, grid)  # (b, n, 4)
        stages |= {"boxes": boxes, "logits": logits}
        if objectness:
            head = PatchMlp(1, activation, dtype=policy, name="objectness_head")
            stages["objectness"] = head(patches)  # (b, n, 1)
        concatenate = ConcatenateDetections(dtype=float32, name="detections")
        detections = concatenate(boxes, logits, stages.get("objectness"))
        head_inputs = [tokens, encoder.get_layer("patch_embedding").output]
        super().__init__(encoder, detections, stages, head_inputs, name, trainable)
        if objectness:
            never_trained(head)
        if text is not None and not train_text:
            never_trained(text_encoder)
            queries.is_head = False
        self.text_preprocessing = text_preprocessing
        self.class_ids = class_ids
        # Keras would take them for layers of this model, which has theirs already.
        vars(self)["text"], vars(self)["text_encoder"] = text, text_encoder

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        hidden, vector = config["encoder"]["hidden_size"], config.get("query_size")
        head = hidden * (2 * hidden + 4 + (vector or config["num_classes"]))
        return head + (min_text_parameters(config["text"]) if config.get("text") else 0)

    detect = detect

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configure the model for training, as `DistributedModel.compile`.

        Raises:
            ValueError: as there, or for a model with a text tower and without classes.
        """
        if self.needs_texts:
            raise ValueError("this model has no classes yet; give it `class_names` or `class_ids`")
        super().compile(*args, **kwargs)

    def with_labels(self, labels: Labels) -> ObjectDetector:
        """The detector of what texts describe, without a text tower: it is exported in every format.

        Args:
            labels: As for `class_vectors`: `["a cat", "a dog"]`, or `{"cat": ["a cat", "a photo of a cat"]}`.

        Returns:
            An `ObjectDetector`, a copy for inference.

        Raises:
            ValueError: for a detector without a text tower, or as `class_vectors`.

        Example:
            >>> text = {"vocabulary_size": 9, "length": 4, "hidden_size": 12, "num_layers": 1}
            >>> text |= {"mlp_dim": 24, "num_heads": 3}
            >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
            >>> model = keras_vit.ObjectDetector(encoder, query_size=12, text=text)
            >>> model.text_preprocessing = lambda texts: np.array([[len(text) % 9] * 4 for text in texts])
            >>> cats = model.with_labels(["cat", "mouse"])
            >>> cats.class_names, cats(np.zeros((1, 32, 32, 3))).shape
            (('cat', 'mouse'), TensorShape([1, 16, 6]))

        Source: Minderer et al. 2022 (OWL-ViT), section 3.1: the text tower gives the classes' weights.
        """
        if self.text is None:
            raise ValueError("with_labels needs a detector with a text tower, such as OWL-ViT")
        return self.with_queries(*self.class_vectors(labels))

    def with_queries(self, names: Sequence[str], vectors: np.ndarray) -> ObjectDetector:
        """The detector of classes with these vectors, such as those of `image_queries`.

        Args:
            names: The names of the classes.
            vectors: float array (classes, query_size).

        Returns:
            An `ObjectDetector`, a copy for inference.

        Raises:
            ValueError: for a detector without `query_size`, or vectors of another shape.
        """
        vectors = np.asarray(vectors, "float32")
        check_finite(vectors)
        if self.query_size is None or vectors.shape != (len(names), self.query_size):
            raise ValueError(
                f"expected a detector with query_size, and {len(names)} vectors of this size; got "
                f"query_size={self.query_size} and vectors of the shape {vectors.shape}"
            )
        changes = {"num_classes": len(names), "class_names": tuple(names), "objectness": False}
        changes |= dict.fromkeys(("text", "class_ids", "text_preprocessing"))
        arrays = plain_arrays(self) | {"class_queries/queries": vectors}
        return super().finished(arrays, **changes)

    def image_queries(
        self, images: Images, batch_size: int = 8, value_range: tuple[float, float] | None = None
    ) -> np.ndarray:
        """A vector of the object that fills most of each image, for `with_queries`.

        Args:
            images, batch_size, value_range: As for `detect`.

        Returns:
            float32 array (images, query_size): the vector of the patch with the highest objectness; without
            objectness that of `most_distinct`.

        Raises:
            ValueError: for a detector without `query_size`, or as `detect`.

        Source: `embed_image_query` of transformers' `modeling_owlv2.py` and `modeling_owlvit.py`.
        """
        if self.query_size is None:
            raise ValueError("image queries need a detector whose classes have vectors, with query_size")
        guide = "objectness" if self.objectness else "boxes"
        extractor, queries = self.feature_extractor([guide, "class_vectors"]), []
        for batch in self.preprocessing.batches(images, batch_size, value_range):
            stages = extractor.predict_on_batch(batch)
            guides, vectors = (check_finite(np.asarray(stages[name])) for name in (guide, "class_vectors"))
            for values, of_image in zip(guides, vectors):
                patch = np.argmax(values) if self.objectness else most_distinct(values, of_image)
                queries.append(of_image[patch])
        return np.stack(queries) if queries else np.zeros((0, self.query_size), "float32")

    def finished(self, arrays: dict[str, np.ndarray] | None = None, **changes: Any) -> ObjectDetector:
        if self.text is not None:
            changes["text"] = {**without_state(self.text.get_config()), **TEXT_INFERENCE}
        return super().finished(arrays, **changes)

    @property
    def needs_texts(self) -> bool:
        """Whether it has a text tower, and no classes but padding."""
        return self.text is not None and not any(ids[0] for ids in self.class_ids)

    def exported(self) -> ObjectDetector:
        """The model for exports: with the vectors of its texts, and without its text tower."""
        if self.text is None:
            return self.finished()
        if self.needs_texts:
            raise ValueError("this model has no classes yet; give it some with `with_labels`")
        names = self.class_names or [*map(str, range(self.num_classes))]
        return self.with_queries(names, self.encode_text(self.class_ids))

    def _config(self):
        text = self.text and self.text.get_config()
        options = {name: getattr(self, name) for name in ("class_ids", "text_preprocessing")}
        return {**super()._config(), "text": text, **options}

    def get_config(self) -> dict[str, Any]:
        texts = self.text_preprocessing
        return {**super().get_config(), "text_preprocessing": texts and texts.get_config()}
