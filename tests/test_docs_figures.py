"""The manual's figures: plotted for a small model, and as stored in docs/images."""

import pathlib
import re

import pytest
from made.scripts import script
from PIL import Image
from reference.small import small

from keras_vit.data.datasets import load_dataset
from keras_vit.training.workdir import Workdir

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PHOTOGRAPHS = {"components", "similarity", "heads", "coins", "coins_phone"}  # by docs/photograph_figures.py
IMAGES = {path.stem: path for path in (DOCS / "images").iterdir()}


@pytest.fixture(scope="module")
def figures():
    return script("docs/figures.py")


@pytest.mark.slow
def test_the_command_plots_each_figure_but_the_screenshots(figures, tmp_path):
    workdir = Workdir(tmp_path / "run", {})
    workdir.make()
    workdir.write_metrics([{"step": 2, "loss": 1.0, "val_loss": 1.5, "learning_rate": 0.1}])
    workdir.write_steps([{"step": 1, "loss": 2.0, "learning_rate": 0.2}])
    found = {"images": 355, "formats": {"saved_model": {"bytes": 2048, "max_logit_difference": 1e-6}}}
    samples = load_dataset("digits").split("test").take(range(30))
    drawn = figures.plot_figures(small(num_classes=10), samples, workdir, found)
    assert {*drawn, "report", "page"} | PHOTOGRAPHS == {*IMAGES}
    figures.save(drawn["formats"], tmp_path / "formats.png")
    with Image.open(tmp_path / "formats.png") as image:
        assert (image.format, image.mode) == ("PNG", "RGB")


def test_without_a_browser_there_is_no_screenshot(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(figures.shutil, "which", lambda name: None)
    assert figures.screenshot(tmp_path / "report.html", tmp_path / "report.png") is False
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_browser_takes_the_screenshot(figures, tmp_path):
    (tmp_path / "page.html").write_text("<h1>A report</h1>")
    assert figures.screenshot(tmp_path / "page.html", tmp_path / "page.png", size=(400, 300))
    with Image.open(tmp_path / "page.png") as image:
        assert image.size == (500, 375) and len(image.getcolors()) > 1


def test_the_images_are_small_and_used():
    shown = "".join(page.read_text() for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"))
    sizes = {name: path.stat().st_size for name, path in IMAGES.items()}
    assert max(sizes.values()) < 200 * 1024 and sum(sizes.values()) < 1000 * 1024, sizes
    assert {*IMAGES} == {*re.findall(r"(?:\]\(|docs/)images/(\w+)\.(?:png|jpg)", shown)}


@pytest.mark.slow
@pytest.mark.tensorflow_only("the drawing is of a call there")
def test_the_drawing_of_the_packages_is_that_of_the_code():
    rooms = script("docs/rooms.py")
    order = rooms.way()
    assert order[0] == "models" and {"preprocessing", "labels"} < {*order}
    drawing = rooms.picture(rooms.arrows(), order)
    assert drawing == (DOCS / "assets" / "rooms.svg").read_text(), "run `python docs/rooms.py`"
