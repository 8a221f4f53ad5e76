"""An export folder: the model in each format, verified before it appears under its name."""

import json
import pathlib

from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.verify import FLOAT32_BOUND, compare, run_live, run_saved_model, run_tflite
from keras_vit.export.writing import new_path


def export_folder(model, path, images):
    """Write `saved_model/1/`, `model_float32.tflite` and `verification.json`, and check both.

    Args:
        model: A `VisionTransformer` on the TensorFlow backend.
        path: Folder to write; it must not exist.
        images: Float32 images in [0, 1], of the model's size, to compare the logits on.

    Returns:
        dict by format of `path`, `bytes`, `max_logit_difference` and `top1_agreement`.

    Raises:
        ValueError: if the folder exists, the model does not compute in float32, or an export's logits
            are further from the live model's than 1e-5 of the largest. Nothing is left under its name
            then.

    Example:
        >>> report = export_folder(model, "export", images)
        >>> report["tflite"]["max_logit_difference"] < 1e-5
        True
    """
    path = pathlib.Path(path)
    if model.dtype_policy.compute_dtype != "float32":
        raise ValueError(
            f"LiteRT takes float32 models; this one computes in {model.dtype_policy.compute_dtype}: build "
            'it anew with dtype="float32" and set its weights'
        )
    with new_path(path) as temporary:
        files = {
            "saved_model": export_saved_model(model, temporary / "saved_model" / "1"),
            "tflite": export_tflite(temporary / "saved_model" / "1", temporary / "model_float32.tflite"),
        }
        live = run_live(model, images)
        logits = {
            "saved_model": run_saved_model(files["saved_model"], images),
            "tflite": run_tflite(files["tflite"], images),
        }
        report = {
            name: {
                "path": str(path / file.relative_to(temporary)),
                "bytes": _size(file),
                **compare(live, logits[name]),
            }
            for name, file in files.items()
        }
        for name, row in report.items():
            if not row["max_logit_difference"] <= FLOAT32_BOUND:
                raise ValueError(
                    f"the exported {name} differs from the live model by {row['max_logit_difference']:.1e} "
                    f"of its largest logit; the bound is {FLOAT32_BOUND:.0e}, so it is not kept"
                )
        (temporary / "verification.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _size(path):
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
