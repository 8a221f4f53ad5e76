"""Cosines of pictures that show the same and of others, by the trained model; a part of real.py."""

import io

import numpy as np
from PIL import Image
from real_distillation import features

SIDE, COUNT = 224, 3  # pixels, and pictures of each half of a photograph
THRESHOLDS = 0.8, 0.9, 0.95, 0.98
TITLE = "Duplicates"
TEXT = f"""\
Cosines of class tokens at {SIDE} pixels of pairs of pictures: {COUNT} crops of the left half of each of the
16 photographs with changed copies of themselves, with one another, which overlap, with crops of the right
half, and with those of other photographs. The last columns are the percentage of pairs that reach a
threshold. Brick, grass, gravel, galaxies and the moon look the same everywhere, and have their own row."""
COLUMNS = ("pair", "pairs", "lowest", "5 %", "median", "95 %", *(f"≥ {value}, %" for value in THRESHOLDS))
UNIFORM = "brick", "grass", "gravel", "galaxies", "moon"


def rows():
    """A row for each relation of two pictures."""
    from made import trained

    import keras_vit

    model = keras_vit.from_pretrained(trained.weights_folder(), image_size=SIDE)
    left, labels = trained.crops("train", COUNT, SIDE)
    right, _ = trained.crops("test", COUNT, SIDE)
    vectors = _unit(features(model, left))
    found = {}
    for name, change in CHANGES.items():
        changed = np.stack(
            [np.asarray(change(Image.fromarray(image)).resize((SIDE, SIDE))) for image in left]
        )
        found[f"a copy {name}"] = (vectors * _unit(features(model, changed))).sum(-1)
    halves, places = vectors @ _unit(features(model, right)).T, vectors @ vectors.T
    is_same, is_later = labels[:, None] == labels, np.triu(np.ones(places.shape, bool), 1)
    is_uniform = np.isin(np.array([*trained.PHOTOGRAPHS])[labels], UNIFORM)[:, None]
    found["overlapping crops"] = places[is_same & is_later & ~is_uniform]
    found["the other half"] = halves[is_same & ~is_uniform]
    found["another place of a uniform photograph"] = halves[is_same & is_uniform]
    found["another photograph"] = halves[~is_same]
    return [(name, *_numbers(cosines)) for name, cosines in found.items()]


def _reencoded(quality):
    def change(image):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return change


def _resized(fraction):
    return lambda image: image.resize([round(fraction * side) for side in image.size])


def _cropped(fraction):
    def change(image):
        margin = round((1 - fraction) / 2 * SIDE)
        return image.crop((margin, margin, SIDE - margin, SIDE - margin))

    return change


def _brighter(image):
    return image.point(lambda value: min(255, round(1.2 * value)))


CHANGES = {
    "as JPEG of quality 90": _reencoded(90),
    "as JPEG of quality 50": _reencoded(50),
    "as JPEG of quality 20": _reencoded(20),
    "of half the size": _resized(0.5),
    "of a quarter of the size": _resized(0.25),
    "without a margin of 2.5 %": _cropped(0.95),
    "without a margin of 5 %": _cropped(0.9),
    "20 % brighter": _brighter,
    "in gray": lambda image: image.convert("L").convert("RGB"),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def _unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _numbers(cosines):
    """The number of cosines, and texts of their quantiles and of the percentage at each threshold."""
    quantiles = (f"{value:.3f}" for value in np.quantile(cosines, (0, 0.05, 0.5, 0.95)))
    return (len(cosines), *quantiles, *(f"{100 * np.mean(cosines >= value):.0f}" for value in THRESHOLDS))
