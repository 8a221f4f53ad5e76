"""`keras-vit quickstart`: the whole way from images to deployed files, on scanned digits."""

import itertools
import json
import pathlib

import keras
import numpy as np

from keras_vit.cli.export import shown
from keras_vit.cli.source import open_model
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.export.folder import export_folder
from keras_vit.inspection import attention_rollout
from keras_vit.inspection.figures import attention_overlay, learning_curves, prediction_grid
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import RunConfig, train

# 16 pixels, so that a patch of 2×2 is one pixel of the 8×8 scans: 64 tokens.
MODEL = {
    "image_size": 16,
    "patch_size": 2,
    "hidden_size": 96,
    "num_layers": 2,
    "mlp_dim": 192,
    "num_heads": 6,
    "pooling": "gap",
}
PRECISIONS = ("float32", "dynamic_int8")  # of LiteRT: as trained, and the one for phones


def run(args):
    path = pathlib.Path(args.workdir) if args.workdir else _new_folder()
    config = RunConfig(dataset="digits", recipe=RECIPES["digits"], model=MODEL)
    print(f"Training a Vision Transformer on scikit-learn's scanned digits in {path}")
    workdir, result = train(config, path)
    if "saved_model" not in result:
        result = _finish(workdir, result)
    _print(result, path)


def _finish(workdir, record):
    """Draw, export, load back and compare; the finished result."""
    model = open_model(workdir.path)
    digits = load_dataset("digits", RECIPES["digits"].seed)
    samples = digits.split("test")
    images = np.concatenate([x for x, _ in evaluation_batches(samples, model.preprocessing, 64)])
    pixels = images * np.float32(model.preprocessing.std) + np.float32(model.preprocessing.mean)

    print("\nDrawing")
    figures = _draw(workdir, model, images, pixels, samples.labels)
    print("Exporting to SavedModel and LiteRT, loading all back")
    folder = workdir.path / "export"
    if not folder.exists():
        export_folder(model, folder, precisions=PRECISIONS, dataset=digits, images=len(samples))
    exported = json.loads((folder / "verification.json").read_text())
    result = {
        **record,
        "saved_model": exported["formats"]["saved_model"]["path"],
        "tflite": exported["formats"]["tflite_float32"]["path"],
        "figures": figures,
        "export": exported,
    }
    workdir.write_result(result)
    return result


def _draw(workdir, model, images, pixels, labels):
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(model.predict(images, verbose=0)))
    predicted = [model.class_names[i] for i in probabilities.argmax(-1)]
    truth = [model.class_names[i] for i in labels]
    # The surest mistakes first, then the least sure of the others: what there is to look at.
    confidence = probabilities.max(-1)
    right = np.asarray(predicted) == np.asarray(truth)
    order = np.lexsort((np.where(right, confidence, -confidence), right))[:25]
    pick = order.tolist()
    maps = attention_rollout(model, images[pick[:8]])
    accuracy = f"{right.mean():.1%} of {len(right)} right"
    drawn = {
        "curves": learning_curves(workdir.metrics(), "Training on scanned digits"),
        "predictions": prediction_grid(
            pixels[pick],
            [predicted[i] for i in pick],
            confidence[pick],
            [truth[i] for i in pick],
            f"The hardest test digits ({accuracy}): what the model says and how sure it is",
        ),
        "attention": attention_overlay(
            pixels[pick[:8]], maps, [truth[i] for i in pick[:8]], "Attention rolled out to the image"
        ),
    }
    paths = []
    for name, figure in drawn.items():
        file = workdir.figures / f"{name}.png"
        figure.savefig(file, dpi=120)
        paths.append(str(file))
    return paths


def _print(result, path):
    print(f"\n{shown(result['export'])}")
    print(
        f"\n{result['test_samples']} test digits, {result['parameters']:,} parameters, "
        f"{result['train_seconds']:.0f} s of training"
    )
    for file in (*result["figures"], path / "result.json"):
        print(f"  {file}")


def _new_folder():
    """The first runs/quickstart-N that is not there."""
    return next(
        path
        for path in (pathlib.Path("runs") / f"quickstart-{n}" for n in itertools.count(1))
        if not path.exists()
    )
