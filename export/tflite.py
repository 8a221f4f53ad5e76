"""A SavedModel as a LiteRT (`.tflite`) file of built-in operations."""

import os
import pathlib

import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema

from keras_vit.export.writing import new_path

_OPERATOR = schema.BuiltinOperator


def export_tflite(saved_model, path):
    """Convert the `serving_default` signature of a SavedModel to float32 LiteRT.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        path: File to write, ending in .tflite; it must not exist.

    Returns:
        pathlib.Path of the file. Images go in as float32 in [0, 1], in batches of any size.

    Raises:
        ValueError: if the file exists, or the model needs operations that LiteRT does not have
            built in. Nothing is left under its name if converting fails.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> export_tflite(folder, "export/model_float32.tflite").name
        'model_float32.tflite'

    Source: LiteRT's conversion guide.
    """
    path = pathlib.Path(path)
    if path.suffix != ".tflite":
        raise ValueError(f"a LiteRT file ends in .tflite; got {os.fspath(path)!r}")
    with new_path(path) as temporary:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            os.fspath(saved_model), signature_keys=["serving_default"]
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        temporary.write_bytes(_checked(converter.convert()))
    return path


def _checked(content):
    """The file's bytes, if all its operations are LiteRT's own.

    The converter succeeds where a variable is left unresolved; such a file computes NaN.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    used = {max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes}
    refused = [name for name in ("CUSTOM", "VAR_HANDLE", "CALL_ONCE") if getattr(_OPERATOR, name) in used]
    if refused:
        raise ValueError(f"the LiteRT file would hold operations that do not run: {', '.join(refused)}")
    return content
