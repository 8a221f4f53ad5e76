"""Exports of the trained model in few bits; a part of real.py."""

import pathlib
import tempfile

TITLE = "Exports in few bits"
TEXT = """\
The class token's features of 192 crops of 224 pixels train a head of 16 classes by logistic regression; the
same crops calibrate `int8` and `full_int8`. The model is exported in every format, and each file computes 320
test crops. Decided are the crops whose two best logits of the live model differ by more than 0.5; the
agreement is with the live model's predictions. Milliseconds are medians for one image. Ratios are to
`float32` of the same runtime. The bound of the package is 99 % of the decided crops."""
COLUMNS = (
    *("file", "MiB", "of float32", "accuracy", "agreement", "agreement of decided", "largest difference"),
    *("ms", "of float32"),
)
FORMATS = "tflite", "onnx", "openvino"
PRECISIONS = "float32", "bfloat16", "dynamic_int8", "int8", "full_int8"


def rows():
    from made import probes

    from keras_vit.export.folder import export_folder

    data = probes.photographs()
    model = probes.classifier(data)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "export")
        report = export_folder(model, path, FORMATS, precisions=PRECISIONS, dataset=data)
    formats, live = report["formats"], report["live"]
    of_live = f"{live['score']:.2%}", "", f"{live['decided']} of {report['images']}", ""
    found = [("live model", "", "", *of_live, f"{live['ms_batch_1']:.1f}", "")]
    for name, row in formats.items():
        exact = formats[f"{name.partition('_')[0]}_float32"]
        size, ms = row["bytes"], row["ms_batch_1"]
        found.append(
            (
                *(f"`{name}`", f"{size / 2**20:.1f}", f"{size / exact['bytes']:.2f}", f"{row['score']:.2%}"),
                *(f"{row['agreement']:.2%}", f"{row['decided_agreement']:.2%}"),
                *(f"{row['max_logit_difference']:.1e}", f"{ms:.1f}", f"{ms / exact['ms_batch_1']:.2f}"),
            )
        )
    empty = [""] * (len(COLUMNS) - 2)
    return found + [(f"`{name}`", reason, *empty) for name, reason in report["failed"].items()]
