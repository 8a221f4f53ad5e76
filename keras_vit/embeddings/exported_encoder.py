"""An `Encoder` that computes with an exported file of the model."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import shutil

import numpy as np

from keras_vit.engine.distributed_model import filled
from keras_vit.export.checks import cosines
from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.formats import FORMATS, SAVED_MODEL, ExportJob
from keras_vit.export.verify import normalize_as_exports_do
from keras_vit.labels import labels_of
from keras_vit.models.backbones import backbone
from keras_vit.models.classifying import check_finite
from keras_vit.rules import one_of
from keras_vit.writing import atomic_path

FOLDER = "model"  # of the file, in the folder of embeddings
FASTEST = {  # on CPUs, by format
    "tflite": "tflite_dynamic_int8",
    "onnx": "onnx_dynamic_int8",
    "openvino": "openvino_bfloat16",
}
# Other precisions need images to calibrate them.
EXPORT_FORMATS = {row.name: row for row in FORMATS if row.option in FASTEST and not row.is_calibrated}


def export_format(name):
    """The name of a format with its precision, which is the fastest where a name has none.

    Raises:
        ValueError: for another name.

    Example:
        >>> from keras_vit.embeddings.exported_encoder import export_format
        >>> export_format("openvino"), export_format("tflite_float32")
        ('openvino_bfloat16', 'tflite_float32')
    """
    return one_of(EXPORT_FORMATS).check("format", FASTEST.get(name, name))


class ExportedEncoder:
    """As `Encoder`, by a file of the model in the folder of embeddings, which the first process exports.

    Args:
        live: The model's `Encoder`, for the outputs and their shapes.
        model: The model.
        outputs: Either "pooled" alone, or some of "logits" and "classes".
        batch_size: The largest number of images in a batch.
        folder: The folder of embeddings.
        name: A name in `EXPORT_FORMATS`.

    Attributes:
        shapes, preprocessing: As for `Encoder`; the pixels are in [0, 1].

    Raises:
        ValueError: for other outputs, or a model that cannot be exported in the format.
    """

    def __init__(self, live, model, outputs, batch_size, folder, name):
        self.live, self.shapes, self._batch_size = live, live.shapes, batch_size
        is_pooled = outputs == ("pooled",)
        if not is_pooled and {*outputs} - {"logits", "classes"}:
            raise ValueError(
                f"an exported file computes either pooled, or logits and classes; got {', '.join(outputs)}"
            )
        if is_pair := model.image_encoder is not None:
            model = model.vision_transformer()
        if backbone(model) is not model:
            raise ValueError(
                f"expected a VisionTransformer or an ImageTextModel for {name}; got {type(model).__name__}"
            )
        if not live.preprocessing.has_fixed_shape or live.preprocessing.packs:
            raise ValueError(f"expected a model for images of one size for {name}; give it an image_size")
        if is_pooled and model.pooling is None:
            raise ValueError(f"expected a model with pooling for {name}; got pooling=None")
        self._label, self._is_pooled = labels_of(model), is_pooled
        self._folder, self._format = pathlib.Path(folder).expanduser() / FOLDER, EXPORT_FORMATS[name]
        self.preprocessing = describe(model).preprocessing
        self._job = ExportJob(model, representation=is_pooled and not is_pair, batch_size=batch_size)
        self._format.check(self._job)

    def __call__(self, inputs):
        """See `Encoder`."""
        images = filled(inputs, self._batch_size)
        output = check_finite(np.asarray(self._exported.main_output(images), "float32"))[: len(inputs)]
        if self._is_pooled:
            return {"pooled": output}
        values = {"logits": output}
        if "classes" in self.shapes:
            values["classes"] = self._label.probabilities(output).astype("float32")
        return {name: values[name] for name in self.shapes}

    def cosines(self, inputs):
        """The cosine between the first output here and the model's own in float32, for each image."""
        (name, *_) = self.shapes
        here = self(inputs)[name]
        there = self.live(normalize_as_exports_do(self.live, inputs))[name]
        return cosines(there, here)

    @functools.cached_property
    def _exported(self):
        path = self._format.target(self._folder, self._job)
        if not path.exists():
            try:
                with atomic_path(self._folder, overwrite=False) as folder:
                    self._export(folder)
            except ValueError:  # Another process may have written it now.
                if not path.exists():
                    raise
        return open_exported(path)

    def _export(self, folder):
        saved, path = (row.target(folder, self._job) for row in (SAVED_MODEL, self._format))
        SAVED_MODEL.write(self._job, saved)
        path.parent.mkdir(exist_ok=True)
        self._format.write(dataclasses.replace(self._job, saved_model=saved), path)
        shutil.rmtree(saved.parent)
