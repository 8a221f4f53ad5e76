"""Nearest photographs among crops by the trained model; a part of real.py."""

import pathlib
import tempfile

import numpy as np
from distillation import interval
from real_distillation import features

SEEDS = 0, 1, 2
SIDE, STORED, QUERIES = 112, 4, 5  # pixels, and crops of each photograph
TITLE = "Search"
TEXT = f"""\
An index holds {STORED} crops of each of the 16 photographs, at {SIDE} pixels. Precision at 1 is the fraction
of {16 * QUERIES} other crops whose nearest picture is of the same photograph. These are of any place; of any
place, mirrored and in gray; and of the right halves, for an index of left ones. Few objects lie in both."""
COLUMNS = "model", "any crop, %", "mirrored and in gray, %", "the other half, %"


def rows():
    """A row for the trained weights and one for random weights."""
    import keras
    from made import trained

    import keras_vit

    folder = trained.weights_folder()
    keras.utils.set_random_seed(0)
    random = keras_vit.VisionTransformer.from_variant("S/14", image_size=SIDE, num_classes=None)
    models = {"S/14": keras_vit.from_pretrained(folder, image_size=SIDE), "S/14, random weights": random}
    lines = []
    for name, model in models.items():
        precisions = np.transpose([_precisions(model, seed) for seed in SEEDS])
        means = (interval(100 * of_seeds) for of_seeds in precisions)
        lines.append((name, *(f"{mean:.1f} ± {half:.1f}" for mean, half in means)))
    return lines


def _precisions(model, seed):
    """The precision at 1 of each kind of queries."""
    from made import trained

    def crops(part, count):
        images, labels = trained.crops(part, count, SIDE, seed)
        return images.reshape(-1, count, SIDE, SIDE, 3), labels.reshape(-1, count)

    images, labels = crops("any", STORED + QUERIES)
    stored = images[:, :STORED], labels[:, :STORED]
    queries, labels = images[:, STORED:], labels[:, STORED:]
    gray = np.broadcast_to(queries[..., ::-1, :].mean(-1, keepdims=True), queries.shape).astype("uint8")
    halves = crops("train", STORED), crops("test", QUERIES)
    return [
        _precision(model, *pair) for pair in ((stored, (queries, labels)), (stored, (gray, labels)), halves)
    ]


def _precision(model, stored, queries):
    from keras_vit.search import ImageIndex

    vectors, asked = (features(model, images.reshape(-1, SIDE, SIDE, 3)) for images, _ in (stored, queries))
    labels, expected = (labels.ravel() for _, labels in (stored, queries))
    with tempfile.TemporaryDirectory() as folder:
        index = ImageIndex(pathlib.Path(folder, "index"), "S/14", digest="", size=vectors.shape[1])
        index.add({f"{label}/{n}": (None, None) for n, label in enumerate(labels)}, vectors)
        nearest = [index.query(vector, top=1)[0][0] for vector in asked]
    return np.mean([int(path.partition("/")[0]) == label for path, label in zip(nearest, expected)])
