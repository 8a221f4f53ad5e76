"""The outputs of an export with one row for each image; other kinds of outputs override what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from keras_vit.export import tolerance
from keras_vit.export.checks import cosines
from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, stem_stride
from keras_vit.types import Path, Tensor

if TYPE_CHECKING:
    from keras_vit.export.description import Description
    from keras_vit.export.exported_model import ExportedModel
    from keras_vit.preprocessing import Preprocessing

signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")

TOP = 5  # classes in the answer of `serving_bytes`
MAX_CHECKED = 4096  # values of an output that a web page knows

Stages: TypeAlias = Callable[[Tensor], Mapping[str, Tensor]]


class RowOutputs:
    """Class scores, values or a representation of each image.

    `stages` below is a function from float32 images (batch, height, width, channels) in [0, 1] to what
    `signatures.forward` returns. `outputs` is a dict of arrays that an export computed.

    Args:
        description: The model's `Description`.

    Attributes:
        task: The task of these outputs; None for several.
        attributes: Attributes of the live model that tasks read, arguments of its constructor.
        kind, model_class: The `kind` and the name of the class of a model around a `VisionTransformer` that
            has them; None for a `VisionTransformer`.
        exported: The class of the opened exports; None for `ExportedModel`.
        method, does: Its method for images, and what it does with them.
        colors: The color of each class on a web page, for maps and objects.
        in_float: Names of outputs whose end LiteRT's int8 computes in float32.
        resizing: How images become the model's input, for a model card; None: by its `preprocessing`.
        can_roll_out: Whether a web page can show attention rollout.
        page_script: The file that shows the outputs on a page, with its path or in `web/`.
        page_facts: What its script reads, by name, beside and in place of what all pages know.
        page_words: What a web page has done with a picture, and the label of the switch of its overlay.

    Example:
        >>> from keras_vit.export.description import describe
        >>> stages = lambda images: {"logits": 9 * tf.one_hot([7], 10)}
        >>> outputs = RowOutputs(describe(model))
        >>> sorted(outputs.of_images(tf.constant(images), stages))
        ['logits', 'probabilities']
        >>> png = tf.io.encode_png(tf.zeros((50, 40, 3), tf.uint8))
        >>> outputs.of_bytes(tf.stack([png]), stages)["classes"][:, :2].numpy()
        array([[b'7', b'0']], dtype=object)
    """

    task: str | None = None
    kind: str | None = None
    model_class: str = ""
    exported: type[ExportedModel] | None = None
    colors: list[list[int]] | None = None
    method, does = "classify", "classifies images"
    attributes: tuple[str, ...] = ()
    in_float: tuple[str, ...] = ()
    resizing: str | None = None
    can_roll_out = True
    page_script: Path = "rows.js"
    page_facts: Mapping[str, Any] = {}
    page_words = "classified", "Show the attention (rollout)"

    def __init__(self, description: Description) -> None:
        self.description = description

    @property
    def advice(self) -> str:
        """What an export of these outputs says where another method of it is called."""
        return f"this export {self.does}; use its `{self.method}` method"

    @property
    def preprocessing(self) -> Preprocessing:
        """The `Preprocessing` of pixels of any size, to images in [0, 1]."""
        return self.description.preprocessing

    @property
    def takes_bytes(self) -> bool:
        """Whether there is a signature for encoded images."""
        d = self.description
        has_rows = self.kind is None and d.architecture["pooling"] is not None
        return d.channels in (1, 3) and (has_rows or d.image_size != DYNAMIC_SIZE)

    @property
    def on_pages(self) -> bool:
        """Whether a web page can show the outputs."""
        return self.description.is_classifier

    def of_call(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Select the output of `stages` that the live model returns, for calls of a loaded SavedModel."""
        return outputs["representation" if self.description.output == "representation" else "logits"]

    def of_images(self, images: Tensor, stages: Stages) -> dict[str, Tensor]:
        """The outputs of `serving_default`.

        Args:
            images: float32 (batch, height, width, channels) in [0, 1].

        Returns:
            dict of tensors: `logits` and `probabilities` of a classifier, `values` of a regression,
            `representation` of a model without a head; and `rollout` if it was computed.
        """
        outputs, name = stages(images), self.description.output
        served = {name: self.of_call(outputs)}
        if name == "logits":
            activation = getattr(tf.nn, label_kind(self.description.task).activation)
            served["probabilities"] = activation(outputs["logits"])
        return served | ({"rollout": outputs["rollout"]} if "rollout" in outputs else {})

    def of_litert(self, images: Tensor, stages: Stages) -> dict[str, Tensor]:
        """The outputs of a LiteRT file, from the same images."""
        return self.of_images(images, stages)

    def of_uint8(self, images: Tensor, stages: Stages) -> dict[str, Tensor]:
        """The outputs of `serving_uint8`, from uint8 images of any one size, resized as for evaluation."""
        checks = [self._assert_divisible(images)] if self.description.image_size == DYNAMIC_SIZE else []
        with tf.control_dependencies(checks):
            return self.of_images(signatures.resized(images, self.preprocessing), stages)

    def of_bytes(self, image_bytes: Tensor, stages: Stages) -> dict[str, Tensor]:
        """The outputs of `serving_bytes`.

        Args:
            image_bytes: As for `signatures.from_bytes`.

        Returns:
            dict of tensors: `scores`, `class_ids` and `classes` of a classifier, best first; otherwise as
            `of_images` returns.

        Raises:
            tf.errors.InvalidArgumentError: as for `signatures.from_bytes`.
        """
        d = self.description
        if d.image_size == DYNAMIC_SIZE:
            outputs = self._of_each(image_bytes, stages)
        else:
            outputs = self.of_images(signatures.from_bytes(image_bytes, d), stages)
        if "probabilities" not in outputs:
            return outputs
        scores, ids = tf.math.top_k(outputs["probabilities"], min(TOP, len(d.labels)))
        return {"scores": scores, "class_ids": ids, "classes": tf.gather(tf.constant(d.labels), ids)}

    def _of_each(self, image_bytes: Tensor, stages: Stages) -> dict[str, Tensor]:
        """The outputs of a model of any size for encoded images, each computed alone at its own size."""
        spec = tf.TensorSpec((None, None, None, self.description.channels), tf.float32)
        compute = tf.function(
            lambda images: self.of_images(images, stages), input_signature=[spec], autograph=False
        )

        def compute_one(image: Tensor) -> dict[str, Tensor]:
            with tf.control_dependencies([self._assert_divisible(image)]):
                outputs = compute(signatures.resized(image, self.preprocessing))
            return tf.nest.map_structure(lambda x: x[0], outputs)

        batched = compute.get_concrete_function().structured_outputs
        single = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), batched)
        return signatures.map_encoded(compute_one, image_bytes, self.description.channels, single)

    def _assert_divisible(self, images: Tensor) -> Any:
        """Assert that the patch size divides the images' sides."""
        patch, stride = self.description.patch_size, stem_stride(self.description.resnet)
        sides = tf.shape(images)[1:3]
        message = tf.strings.format(
            f"images cannot be cut into patches: height and width are {{}}, but after a stride of {stride} "
            f"the patch of {patch} must divide them",
            sides,
        )
        return tf.debugging.Assert(tf.reduce_all(-(-sides // stride) % tf.constant(patch) == 0), [message])

    def compared(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The array that is compared with the live model's output."""
        return outputs[self.description.output]

    def as_live(self, output: np.ndarray) -> np.ndarray:
        """What `compared` returned, in place of the live model's output."""
        return output

    def differences(self, live: np.ndarray, outputs: np.ndarray) -> dict[str, float | None]:
        """Further measures of `Reference.compare`, by name, of the live model's outputs and an export's.

        Of representations it is their mean `cosine`.
        """
        if self.description.output != "representation":
            return {}
        return {"cosine": float(np.mean(cosines(live, outputs)))}

    def problem(
        self, bounds: tolerance.Tolerance, row: Mapping[str, Any], images: int, live: np.ndarray
    ) -> tuple[str | None, str | None]:
        """What is wrong with the outputs of an export, by its `Tolerance`.

        Args:
            bounds: `Tolerance`.
            row: The dict that `Reference.measure` returned.
            images: The number of images that it was measured on.
            live: The live model's outputs for them.

        Returns:
            (what is wrong or None, why it is not known or None).
        """
        return tolerance.problem_of_rows(bounds, row, images)

    def page_check(self, outputs: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """What a web page compares its own outputs with: by output, values of the first image.

        Those with `exact` are compared by the number of equal ones.
        """
        return {self.description.output: checked_values(self.compared(outputs)[0])}

    @property
    def head_words(self) -> str:
        """What follows the encoder, in words."""
        if around := self.description.around:
            return f"head {around['head']}"
        return f"pooling {self.description.architecture['pooling']}"

    @property
    def words(self) -> str:
        """The outputs in a sentence or more of Markdown, for a model card."""
        d = self.description
        if d.output != "logits":
            return f"`{d.output}`: {d.num_outputs:,} numbers."
        return (
            f"`logits` of {d.num_outputs:,} classes; {label_kind(d.task).activation} turns them into "
            "probabilities. `assets/labels.txt` names the classes in this order, one a line."
        )


def checked_values(output: np.ndarray) -> dict[str, Any]:
    """Every `step`-th value of an output, for a web page.

    >>> checked_values(np.float32([[0.1, 0.2]]))
    {'values': [0.1, 0.2], 'step': 1}
    """
    step = -(-output.size // MAX_CHECKED)
    values = output.ravel()[::step].tolist()
    return {"values": [float(f"{value:.7g}") for value in values], "step": step}
