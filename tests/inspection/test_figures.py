import numpy as np
import pytest
from PIL import Image

from keras_vit.inspection.figures import attention_overlay, confusion_figure, learning_curves, prediction_grid

ROWS = [
    {"step": step, "loss": 1 / step, "accuracy": 0.5, "val_loss": 2 / step, "val_accuracy": step / 40}
    for step in (10, 20, 30)
]


def pictures(count, rng):
    return rng.uniform(size=(count, 16, 24, 3)).astype("float32")


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def title(figure):
    return figure.get_suptitle()


def assert_is_png(figure, path):
    figure.savefig(path, dpi=80)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert np.asarray(image.convert("L")).std() > 5  # not one colour
        assert min(image.size) > 100


def test_curves_show_loss_and_accuracy_with_labelled_axes(tmp_path):
    figure = learning_curves(ROWS, "A run")
    assert title(figure) == "A run"
    loss, accuracy = figure.axes
    assert (loss.get_xlabel(), loss.get_ylabel()) == ("step", "loss")
    assert (accuracy.get_xlabel(), accuracy.get_ylabel()) == ("step", "accuracy")
    for axes, names in ((loss, ("loss", "val_loss")), (accuracy, ("accuracy", "val_accuracy"))):
        for line, name in zip(axes.lines, names, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), [10, 20, 30])
            np.testing.assert_array_equal(line.get_ydata(), [row[name] for row in ROWS])
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["training", "validation"]
    assert_is_png(figure, tmp_path / "curves.png")


@pytest.mark.parametrize("count", [1, 2, 7, 25])
def test_each_image_has_a_panel_with_prediction_confidence_and_truth(count, rng, tmp_path):
    images = pictures(count, rng)
    said = [f"said{i}" for i in range(count)]
    true = [name if i % 2 == 0 else f"true{i}" for i, name in enumerate(said)]
    figure = prediction_grid(images, said, np.linspace(0.5, 0.99, count), true, "Digits")
    assert title(figure) == "Digits"
    assert len(panels(figure)) == count
    for i, (axes, sure) in enumerate(zip(panels(figure), np.linspace(0.5, 0.99, count))):
        np.testing.assert_allclose(axes.images[0].get_array(), images[i])
        wrong = f"\nis true{i}" if i % 2 else ""
        assert axes.get_title() == f"said{i} ({sure:.0%}){wrong}"
    assert not any(axes.axison for axes in figure.axes)  # the empty places of the grid too
    assert_is_png(figure, tmp_path / "grid.png")


@pytest.mark.parametrize("count", [1, 4])
def test_each_image_stands_above_where_the_model_looks(count, rng, tmp_path):
    images, maps = pictures(count, rng), rng.uniform(size=(count, 2, 3))
    maps /= maps.sum((1, 2), keepdims=True)
    figure = attention_overlay(images, maps, [f"name{i}" for i in range(count)], "Attention")
    assert title(figure) == "Attention"
    *shown, scale = figure.axes
    assert len(shown) == 2 * count
    for i, (above, below) in enumerate(zip(shown[:count], shown[count:])):
        assert above.get_title() == f"name{i}"
        np.testing.assert_allclose(above.images[0].get_array(), images[i])
        heat = below.images[1]
        np.testing.assert_allclose(heat.get_array(), 6 * maps[i])
        assert heat.get_extent() == [-0.5, 23.5, 15.5, -0.5]  # over the whole image
        assert heat.get_clim() == shown[count].images[1].get_clim()  # one scale for all
    assert scale.get_ylabel() == "attention / mean"
    assert_is_png(figure, tmp_path / "attention.png")


def test_a_confusion_figure_has_shares_counts_and_names(tmp_path):
    figure = confusion_figure([[9, 1, 0], [2, 2, 0], [0, 0, 0]], ["a", "b", "c"], "Confused")
    assert title(figure) == "Confused"
    axes, scale = figure.axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.9, 0.1, 0], [0.5, 0.5, 0], [0, 0, 0]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == ["a", "b", "c"]
    counts = {text.get_position(): text.get_text() for text in axes.texts}
    assert counts[1, 0] == "1" and counts[0, 1] == "2" and len(counts) == 9
    assert scale.get_ylabel() == "share of the true class"
    assert_is_png(figure, tmp_path / "confusion.png")


@pytest.mark.parametrize("classes, named", [(21, True), (61, False), (1000, False)])
def test_many_classes_are_shown_without_what_could_not_be_read(classes, named, tmp_path):
    figure = confusion_figure(np.eye(classes, dtype=int), [f"c{i}" for i in range(classes)], "Many")
    axes = figure.axes[0]
    assert not axes.texts
    assert ([tick.get_text() for tick in axes.get_xticklabels()][-1] == f"c{classes - 1}") is named
    assert max(figure.get_size_inches()) <= 15
    assert_is_png(figure, tmp_path / "many.png")
