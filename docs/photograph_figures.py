"""Draws the pictures of photographs for README and the manual's home into docs/images: `make docs-figures`.

They need the trained DINOv2 ViT-S/14 and the photographs of requirements-peers.txt; the page also needs
Chromium and playwright. The segmenter is trained by the commands of README, and kept in runs/coins for the
next time.
"""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
from figures import FOLDER, used
from made.trained import photograph, weights_folder
from matplotlib.figure import Figure
from PIL import Image

import keras_vit
from keras_vit import inspection
from keras_vit.cli.source import open_live
from keras_vit.inspection.figures import head_figure, similarity_figure
from keras_vit.inspection.norms import ARTIFACT_NORM
from keras_vit.inspection.similarity import patch_features
from keras_vit.reports.model_views import whole_inputs

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))
from coins import coins

PHOTOGRAPHS = ("cat", "astronaut", "coffee", "china")
RUN, DATA = pathlib.Path("runs/coins"), pathlib.Path("runs/coins_data")
SCALE, TILE = 2, 252  # of the photograph of coins, whose patches are then 7 pixels; pixels of a tile
STEPS = 60
PHONE = (390, 640)  # pixels


def main():
    model = keras_vit.from_pretrained(weights_folder(), image_size=(None, None))
    images, _ = whole_inputs(model, [photograph(name) for name in PHOTOGRAPHS])
    colors = [model.preprocessing.colors(image) for image in images]
    features = [patch_features(model, image[np.newaxis])[0] for image in images]
    save(components_figure(colors, features), FOLDER / "components.jpg")
    similarity = inspection.patch_similarity(model, images[0][np.newaxis])[0]
    title = "Patches similar to an eye and the nose"
    figure = similarity_figure(colors[0], similarity, [(9, 11), (16, 18)], title)
    save(figure, FOLDER / "similarity.jpg")
    maps = inspection.attention_maps(model, images[2][np.newaxis])[0]
    artifacts = inspection.patch_norms(model, images[2][np.newaxis])[0] > ARTIFACT_NORM
    figure = head_figure(colors[2], maps, "Attention of the class token in each head", artifacts)
    save(figure, FOLDER / "heads.jpg")
    segmenter = trained_segmenter()
    save(coins_figure(segmenter), FOLDER / "coins.jpg")
    page = RUN / "page"
    if not page.exists():
        formats = ("--formats", "web", "--precisions", "dynamic_int8", "--single_file")
        command("export", "--model", RUN, "--dataset", f"folder:{DATA}", *formats, "--output", page)
    photographed(page / "web" / "index.html", FOLDER / "coins_phone.png")


def components_figure(images, features):
    """Photographs and, beside each, the first three principal components of its patches."""
    height = sum(image.shape[0] / image.shape[1] for image in images)
    figure = Figure(figsize=(5, 2.5 * height + 0.1 * len(images)), layout="constrained")
    ratios = [image.shape[0] / image.shape[1] for image in images]
    for axes, image, grid in zip(figure.subplots(len(images), 2, height_ratios=ratios), images, features):
        for panel, picture in zip(axes, (image, inspection.feature_pca(grid))):
            panel.imshow(picture, interpolation="nearest", aspect="auto")
            panel.axis("off")
    return figure


def enlarged_coins():
    """The photograph of coins and its class map, enlarged: uint8 (height, width, 3) and (height, width)."""
    pixels = photograph("coins")
    classes = (coins(pixels[..., 0]) > 0).astype("uint8")
    size = tuple(SCALE * side for side in classes.shape[::-1])
    sampled = (Image.Resampling.BICUBIC, Image.Resampling.NEAREST)
    return [np.asarray(Image.fromarray(x).resize(size, how)) for x, how in zip((pixels, classes), sampled)]


def write_tiles():
    """Write tiles of the photograph of coins, of its left half for training and its right half for tests."""
    shutil.rmtree(DATA, ignore_errors=True)
    pixels, classes = enlarged_coins()
    half = pixels.shape[1] // 2
    for split, start in (("train", 0), ("test", half)):
        for kind, values in (("images", pixels), ("masks", classes)):
            folder = DATA / split / kind
            folder.mkdir(parents=True)
            for top in range(0, pixels.shape[0] - TILE + 1, (pixels.shape[0] - TILE) // 3):
                for left in range(start, start + half - TILE + 1, (half - TILE) // 2):
                    tile = Image.fromarray(values[top : top + TILE, left : left + TILE])
                    tile.save(folder / f"{top:03}_{left:03}.png")
    (DATA / "classes.txt").write_text("background\ncoin\n")


def trained_segmenter():
    """A linear head on the frozen backbone, trained on twelve tiles."""
    if not (RUN / "result.json").exists():
        write_tiles()
        start = ("--recipe", "segment_linear", "--weights", weights_folder(), "--dataset", f"folder:{DATA}")
        length = ("--total_steps", STEPS, "--batch_size", 4, "--image_size", TILE)
        command("finetune", *start, "--workdir", RUN, *length)
    return open_live(RUN)


def coins_figure(segmenter):
    """The right half of the photograph, no tile of which was trained on, and its predicted coins."""
    pixels, _ = enlarged_coins()
    pixels = pixels[:, pixels.shape[1] // 2 :]
    [classes] = segmenter.segment([pixels])
    figure = Figure(figsize=(5, 4), layout="constrained")
    pictures = (pixels, inspection.class_overlay(pixels, classes))
    for panel, picture in zip(figure.subplots(1, 2), pictures):
        panel.imshow(picture)
        panel.axis("off")
    return figure


def save(figure, path):
    """Write a figure as a small JPEG file."""
    figure.savefig(path, dpi=110, bbox_inches="tight", pil_kwargs={"quality": 85, "optimize": True})


def command(*arguments):
    subprocess.run([sys.executable, "-m", "keras_vit", *map(str, arguments)], check=True)


def photographed(page, path):
    """Write an image of an exported page on a phone, which was given a tile of the right half."""
    tile = sorted((DATA / "test" / "images").iterdir())[0]
    with used(page, path, PHONE) as tab:
        tab.set_input_files("#file", tile)


if __name__ == "__main__":
    main()
