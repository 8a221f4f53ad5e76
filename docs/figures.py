"""Plots the manual's figures into docs/images: `make docs-figures`.

They show a run of quickstart's model on the digits, which is kept in runs/figures for the next time. The
screenshots need Chromium, that of the web page playwright, too.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from keras_vit import inspection
from keras_vit.cli.quickstart import MODEL, SCAN
from keras_vit.cli.source import open_live
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.export.folder import export_folder
from keras_vit.inspection import figures
from keras_vit.reports.run_report import REPORT, write_run_report
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig

FOLDER = pathlib.Path(__file__).parent / "images"
RUN = pathlib.Path("runs/figures")
PRECISIONS = ("float32", "float16", "dynamic_int8", "int8", "full_int8")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COLUMNS = 6  # images of the rollout
FIVE = [(0.7, 0.16), (0.36, 0.16), (0.33, 0.46), (0.45, 0.41), (0.6, 0.44), (0.69, 0.54), (0.7, 0.68)]
FIVE += [(0.63, 0.8), (0.5, 0.86), (0.37, 0.83), (0.3, 0.75)]  # a stroke, in fractions of the drawing field


def main():
    config = RunConfig("digits", RECIPES["digits"], model=MODEL)
    workdir, record = train(config, RUN)
    if not (workdir.path / REPORT).exists():
        write_run_report(config, workdir, record)
    model, digits = open_live(workdir.path), load_dataset("digits", config.recipe.seed)
    exported = workdir.path / "export"
    if not exported.exists():
        export_folder(model, exported, precisions=PRECISIONS, dataset=digits, images=512)
    found = json.loads((exported / "verification.json").read_text())
    for name, figure in plot_figures(model, digits.split("test"), workdir, found).items():
        save(figure, FOLDER / f"{name}.png")
    page = workdir.path / "page"
    if not page.exists():
        given = {"precisions": ("dynamic_int8",), "name": "digits", "single_file": True, "drawing": SCAN}
        given["attention"] = True
        export_folder(model, page, ("web",), dataset=digits, images=512, **given)
    if screenshot(workdir.path / REPORT, FOLDER / "report.png"):
        drawn_on(page / "web" / "index.html", FOLDER / "page.png")
    else:
        print(f"The screenshots are unchanged: none of {', '.join(BROWSERS)} is installed")


def plot_figures(model, samples, workdir, found):
    """The figures by name.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split with the model's classes.
        workdir: `Workdir` of its run.
        found: What `export_folder` returned for it.
    """
    batches = evaluation_batches(samples, model.preprocessing, 64)
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches))
    classes, first = np.unique(labels, return_index=True)
    names, images = [str(name) for name in classes], images[first]
    colors, maps = model.preprocessing.colors(images), inspection.attention_rollout(model, images)
    distances = inspection.attention_distance(model, images)
    similarity, shown = inspection.position_similarity(model), slice(COLUMNS)
    return {
        "rollout": figures.attention_overlay(colors[shown], maps[shown], names[shown], "Attention rollout"),
        "distances": figures.distance_figure(distances, "Mean attention distance of each head"),
        "positions": figures.position_figure(similarity, "Cosine similarity of the position embeddings"),
        "curves": figures.learning_curves(workdir.metrics(), "Digits, from scratch", workdir.steps()),
        "formats": formats_figure(found),
    }


def formats_figure(found):
    """Size of each exported format, and its largest difference from the live model."""
    rows = found["formats"]
    figure = Figure(figsize=(9, 0.45 * len(rows) + 1.1), layout="constrained")
    figure.suptitle(f"Verified against the live model on {found['images']} images")
    sizes, differences = figure.subplots(1, 2, sharey=True)
    for axes, values, form in (
        (sizes, [row["bytes"] / 2**10 for row in rows.values()], "{:,.0f}"),
        (differences, [row["max_logit_difference"] for row in rows.values()], "{:.1e}"),
    ):
        axes.bar_label(axes.barh([*rows], values, color=figures.BLUE), fmt=form, padding=3)
        axes.spines[["top", "right"]].set_visible(False)
    sizes.set(xlabel="KiB")
    sizes.margins(x=0.15)
    sizes.invert_yaxis()
    differences.set(xlabel="largest difference / largest logit", xscale="log", xlim=(1e-8, 1))
    return figure


def save(figure, path):
    """Write a figure as a small PNG file."""
    figure.savefig(path, dpi=110, bbox_inches="tight")
    with Image.open(path) as image:
        image.convert("RGB").save(path, optimize=True)


def screenshot(report, path, size=(1024, 1100)):
    """Write an image of the top of a page; False without a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return False
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-device-scale-factor=1.25",
    ]
    with tempfile.TemporaryDirectory() as profile:
        to = [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", f"--screenshot={path}"]
        subprocess.run([browser, *options, *to, report.resolve().as_uri()], check=True, capture_output=True)
    with Image.open(path) as image:  # 256 colors are enough for text.
        image.convert("RGB").quantize(256).save(path, optimize=True)
    return True


def drawn_on(page, path, size=(1024, 640)):
    """Write an image of a page of `export_web` on which a five has been drawn."""
    with used(page, path, size) as tab:
        box = tab.locator("#drawing").bounding_box()
        first, *others = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in FIVE]
        tab.mouse.move(*first)
        tab.mouse.down()
        for point in others:
            tab.mouse.move(*point)
        tab.mouse.up()


@contextlib.contextmanager
def used(page, path, size):
    """A browser's tab with a page of `export_web`, of which an image is written after its use."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        executable = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        viewport = dict(zip(("width", "height"), size))
        tab = browser.new_page(viewport=viewport, device_scale_factor=1.25)
        tab.goto(page.resolve().as_uri())
        tab.evaluate("ready")
        yield tab
        tab.evaluate("last")
        tab.screenshot(path=path)
        browser.close()
    with Image.open(path) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
