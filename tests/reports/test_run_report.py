import os
import shutil

import numpy as np
import pytest
from made.folders import write_classes, write_table
from made.pages import read_page
from made.tables import by_table
from PIL import Image
from reference.small import small

from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation import evaluate
from keras_vit.reports.model_views import seen_gray
from keras_vit.reports.run_report import name_of, write_run_report
from keras_vit.tasks.pretraining.pictures import Pictures
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run_config import RunConfig
from keras_vit.training.workdir import Workdir, save_model

pytestmark = pytest.mark.usefixtures("eager", "undrawn")

SEEN, CURVES = "What the model saw", "Training"
EVALUATED = ["Scores", "Confusions", "Worst predictions", "Best predictions"]
VIEWS = ["Attention rollout", "Patch filters", "Position embeddings"]
END = ["Configuration", "What next"]
ROWS = [
    {"step": step, "loss": 2 / step, "val_loss": 3 / step, "seconds": 1.0, "learning_rate": 0.1}
    for step in (1, 2, 3)
]


def finished(path, dataset, model, **options):
    """A finished run's configuration, folder and record, as `train` leaves them, without the training."""
    task = options.pop("task", "single_label")
    recipe = RECIPES["finetune"].with_changes(total_steps=3, warmup_steps=1, batch_size=4, task=task)
    config = RunConfig(dataset, recipe, model={"image_size": 16, "patch_size": 8}, **options)
    workdir = Workdir(path, config.as_json())
    workdir.make()
    workdir.write_metrics(ROWS)
    save_model(model, workdir.model)
    record = {"steps": 3, "train_seconds": 3.0, "best_step": 3, "replicas": 1, "bad_images": []}
    record["compiled_by_xla"] = True
    record["data"] = "4 images"
    if config.objective == "classify":
        found = evaluate(model, load_dataset(dataset, task=task).split("test"), 4, task)
        record |= {f"test_{name}": value for name, value in found.items()}
    workdir.write_result(record)
    return config, workdir, record


def table_of(path, lines):
    return write_table(path, *lines, images=[f"{i}.png" for i in range(20)])


def single(path):
    root = write_classes(path / "<b>flowers", names=("<script>alert(1)</script>", "$dog$"))
    return f"folder:{root}", small(num_classes=2), {}


def several(path):
    lines = ["file,split,smile,hat", *(f"{i}.png,{_split(i)},{i % 2},1" for i in range(20))]
    return f"folder:{table_of(path / 'faces', lines)}", small(num_classes=2), {"task": "multi_label"}


def number(path):
    lines = ["file,split,age", *(f"{i}.png,{_split(i)},{i / 10}" for i in range(20))]
    return f"folder:{table_of(path / 'faces', lines)}", small(num_classes=1), {"task": "regression"}


def masked(path):
    root = write_classes(path / "flowers")
    return f"folder:{root}", small(num_classes=None), {"objective": "masked_patch"}


def _split(i):
    return ("train", "train", "val", "test")[i % 4]


SECTIONS = {
    single: [*EVALUATED, SEEN, CURVES, *VIEWS, *END],
    several: [EVALUATED[0], EVALUATED[2], SEEN, CURVES, *VIEWS, *END],  # no image has all its labels right
    number: [EVALUATED[0], *EVALUATED[2:], SEEN, CURVES, *VIEWS, *END],
    masked: [SEEN, CURVES, *VIEWS[1:], *END],
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [single, several, number, masked])
def test_every_task_has_its_sections(make, tmp_path):
    dataset, model, options = make(tmp_path)
    config, workdir, record = finished(tmp_path / "run", dataset, model, **options)
    record |= {"bad_images": ["/home/x.png"]} | ({"test_accuracy": 0.125} if make is single else {})
    before = {*workdir.path.rglob("*")}
    figures = write_run_report(config, workdir, record)
    text = (workdir.path / "report.html").read_text(encoding="utf-8")
    page = read_page(text)
    assert page.headings == SECTIONS[make]
    assert str(tmp_path) not in text and "/home" not in text
    added = {*map(str, {*workdir.path.rglob("*")} - before)}
    assert added == {str(workdir.path / "report.html"), *figures}
    assert {str(workdir.figures / f"curves-{name}.png") for name in ("loss", "learning_rate")} <= {*figures}
    folded = [tag for tag, _ in page.tags if tag in ("h2", "details")]
    assert folded[-6:] == ["h2", *4 * ["details"], "h2"]
    for file in figures:
        with Image.open(file) as figure:
            figure.verify()
    assert f"A Vision Transformer on {os.path.basename(dataset)}" in page.text
    for words in ("base_lr 0.03", "hidden_size 12", "skipped unreadable images 1", "after 3 steps in 3 s."):
        assert words in page.text
    if make is single:
        assert "accuracy 0.125" in page.text and "Test accuracy 0.1250 on 4 images" in page.text


@pytest.mark.slow
def test_an_objective_without_labels_adds_its_pictures_of_test_images(tmp_path, monkeypatch):
    dataset, model, options = masked(tmp_path)
    config, workdir, record = finished(tmp_path / "run", dataset, model, **options)
    whole = config.task.model(model)
    save_model(whole, workdir.pretrainer)

    def figures(found, images):
        assert type(found) is type(whole) and images.shape == (4, 16, 16, 3)
        return [Pictures("Images twice", "As they are.", {"one": images / 2 + 0.5, "two": images / 2 + 0.5})]

    monkeypatch.setattr(config.task, "figures", figures)
    files = write_run_report(config, workdir, record)
    page = read_page((workdir.path / "report.html").read_text())
    assert page.headings == ["Images twice", SEEN, CURVES, *VIEWS[1:], *END] and "As they are." in page.text
    assert str(workdir.figures / "images-twice.png") in files
    shutil.rmtree(dataset.partition(":")[2])
    write_run_report(config, workdir, record)
    assert "Images twice" not in read_page((workdir.path / "report.html").read_text()).headings


@pytest.mark.slow
def test_filters_of_a_run_from_scratch_on_gray_images_are_not_drawn(tmp_path):
    dataset, model, _ = single(tmp_path)
    for file in (tmp_path / "<b>flowers").rglob("*.png"):
        Image.open(file).convert("L").save(file)
    config, workdir, record = finished(tmp_path / "run", dataset, model)
    assert "filters.png" not in {os.path.basename(file) for file in write_run_report(config, workdir, record)}
    assert "Not shown: the images are gray" in read_page((workdir.path / "report.html").read_text()).text


@pytest.mark.parametrize(
    "weights, color, expected", [(None, 1, True), (None, 0.9, False), ("vit.npz", 1, False)]
)
def test_a_run_from_scratch_on_images_of_equal_channels_has_seen_gray_alone(weights, color, expected):
    image = np.full((16, 16, 3), 0.5, "float32") * [1, 1, color]
    assert seen_gray({"weights": weights}, small(), [image]) is expected
    assert not seen_gray({"weights": weights}, small(), [])


@pytest.mark.slow
def test_a_run_whose_data_are_gone_keeps_its_scores(tmp_path, capsys):
    dataset, model, _ = single(tmp_path)
    config, workdir, record = finished(tmp_path / "run", dataset, model)
    shutil.rmtree(dataset.partition(":")[2])
    write_run_report(config, workdir, record)
    page = read_page((workdir.path / "report.html").read_text())
    assert page.headings == [EVALUATED[0], CURVES, *VIEWS[1:], *END]
    assert "The images cannot be read any more" in page.text and str(tmp_path) not in page.text
    assert "no images in report.html: no such folder" in capsys.readouterr().out
    assert f"loss {record['test_loss']:.4g}" in page.text


@by_table(
    "source, name",
    [
        ("gs://vit_models/imagenet21k/ViT-B_16.npz", "ViT-B_16.npz"),
        ("runs/cats/", "cats"),
        ("https://host/vit.npz?key=secret", "vit.npz"),
        ("model.keras", "cats"),
    ],
)
def test_a_source_is_named_without_its_folder_or_host(source, name, monkeypatch, tmp_path):
    (tmp_path / "cats").mkdir()
    monkeypatch.chdir(tmp_path / "cats")
    assert name_of(source) == name
