"""`keras-vit quickstart`: from images to deployed files, on scanned digits."""

import itertools
import json
import pathlib

import keras_vit
from keras_vit.cli.export import summary

# With 16 pixels, a patch of 2×2 is one pixel of the 8×8 scans: 64 tokens.
MODEL = {
    **{"image_size": 16, "patch_size": 2, "hidden_size": 96, "num_layers": 2, "mlp_dim": 192, "num_heads": 6},
    "pooling": "gap",
}
FORMATS = ("saved_model", "tflite", "web")
PRECISIONS = ("float32", "dynamic_int8")  # of LiteRT: as trained, and small for phones
SCAN = 8  # pixels a side


def add_arguments(add):
    add("--workdir", help="folder of the run (default: runs/quickstart-N); an unfinished one is continued")


def run(args):
    from keras_vit.reports.run_report import REPORT

    training = keras_vit.training
    path = pathlib.Path(args.workdir) if args.workdir else _new_folder()
    config = training.RunConfig(dataset="digits", recipe=training.RECIPES["digits"], model=MODEL)
    print(f"Training a Vision Transformer on scikit-learn's scanned digits in {path}")
    workdir, result = training.train(config, path)
    if "saved_model" not in result or not (workdir.path / REPORT).exists():
        result = _finish(config, workdir, result)
    print(f"\n{summary(result['export'])}")
    print(
        f"\n{result['test_samples']} test digits, {result['parameters']:,} parameters, "
        f"{result['train_seconds']:.0f} s of training"
    )
    for file in (path / REPORT, *result["figures"], path / "result.json"):
        print(f"  {file}")


def _finish(config, workdir, record):
    """Draw, export, load back and compare; return the finished result."""
    from keras_vit.cli.source import open_live
    from keras_vit.reports.run_report import write_run_report

    print("\nPlotting")
    figures = write_run_report(config, workdir, record)
    print("Exporting to SavedModel, LiteRT and a web page, and loading them again")
    folder = workdir.path / "export"
    if not folder.exists():
        digits = keras_vit.data.load_dataset("digits", config.recipe.held_out_seed)
        images = len(digits.split("test"))
        export_options = {"precisions": PRECISIONS, "dataset": digits, "images": images}
        page = {"name": "digits", "single_file": True, "drawing": SCAN, "attention": True}
        model = open_live(workdir.path)
        keras_vit.export.export_folder(model, folder, FORMATS, **export_options, **page)
    exported = json.loads((folder / "verification.json").read_text())
    if exported["failed"]:
        raise ValueError("; ".join(exported["failed"].values()))
    paths = {name: exported["formats"][key]["path"] for name, key in FILES.items()}
    result = {**record, **paths, "figures": figures, "export": exported}
    workdir.write_result(result)
    return result


FILES = {"saved_model": "saved_model", "tflite": "tflite_float32", "web": "web"}  # in result.json: the format


def _new_folder():
    """Return the first runs/quickstart-N that does not exist."""
    folders = (pathlib.Path("runs") / f"quickstart-{n}" for n in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())
