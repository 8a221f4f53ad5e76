import matplotlib
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from keras_vit.inspection import class_overlay, drawing, figures
from keras_vit.tasks.segmentation.figures import class_example_figure, iou_figure, segmentation_figure

ROWS = [
    {"step": step, "loss": 1 / step, "accuracy": 0.5, "val_loss": 2 / step, "val_accuracy": step / 40}
    for step in (10, 20, 30)
]
NAMES = [
    "great white shark, white shark, man-eater, man-eating shark, Carcharodon carcharias",
    "a_name_of_one_long_word_with_nothing_but_underscores",
    *("$a_b$ costs $5", "サメ 鮫", "السمكة", "Großer Weißer Hai", ""),
]
RNG = np.random.default_rng(0)


def drawn(figure):
    """Draw a figure; return its words, after checking that they are on the canvas and do not overlap."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert np.asarray(canvas.buffer_rgba())[..., :3].std() > 5  # not one color
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [text.get_window_extent() for text in texts]
    left, bottom, right, top = np.array([box.extents for box in boxes]).T
    ticks = {
        text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in axis.get_ticklabels()
    }
    width, height = figure.bbox.size
    inside = (left > -2) & (bottom > -2) & (right < width + 2) & (top < height + 2)
    assert all(inside[i] or text in ticks for i, text in enumerate(texts)), texts
    across = np.minimum.outer(right, right) - np.maximum.outer(left, left)
    along = np.minimum.outer(top, top) - np.maximum.outer(bottom, bottom)
    pairs = np.argwhere(np.triu((across > 2) & (along > 2), 1))
    assert not [(texts[i], texts[j]) for i, j in pairs if not {texts[i], texts[j]} & ticks]
    return [text.get_text() for text in texts]


def pictures(count, height=16, width=24):
    return RNG.uniform(size=(count, height, width, 3)).astype("float32")


def attention(count, rows, columns):
    maps = RNG.uniform(size=(count, rows, columns))
    return maps / maps.sum((1, 2), keepdims=True)


def cosines(rows, columns, width=8):
    vectors = RNG.normal(size=(rows * columns, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors @ vectors.T).reshape(rows, columns, rows, columns)


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def test_learning_curves_plot_training_and_validation():
    figure = figures.learning_curves(ROWS, "A run")
    for axes, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
        assert axes.get_ylabel() == name
        for line, key in zip(axes.lines, (name, f"val_{name}"), strict=True):
            np.testing.assert_array_equal(line.get_xydata(), [(row["step"], row[key]) for row in ROWS])
    assert {"A run", "step", "training", "validation"} <= {*drawn(figure)}


def test_learning_curves_plot_the_columns_that_each_row_has():
    rows = [
        {"step": 100000, "learning_rate": 0.1, "mean_average_precision": 0.2, "loss": 3.0},
        {"step": 200000, "mean_average_precision": 0.4, "loss": 2.0, "val_mae": 1.0, "a": 1.0},
        {"step": 300000, "val_mean_average_precision": 0.3},
    ]
    figure = figures.learning_curves(rows, "A long title " * 30)
    names = [axes.get_ylabel() for axes in figure.axes]
    assert names == ["loss", "mean average precision", "mae", "a", "learning rate"]
    loss, precision, error, *_ = figure.axes
    assert [len(axes.lines) for axes in (loss, precision, error)] == [1, 2, 1]
    np.testing.assert_array_equal(precision.lines[1].get_xydata(), [[300000, 0.3]])
    drawn(figure)


def test_loss_and_learning_rate_are_plotted_per_step_where_steps_are_given():
    steps = [{"step": 15 + i, "loss": 1 / (i + 1), "learning_rate": i / 100} for i in range(3)]
    rows = [{**row, "learning_rate": 0.5} for row in ROWS]
    loss, _, rate = figures.learning_curves(rows, "A run", steps).axes
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [(15, 1), (16, 1 / 2), (17, 1 / 3)])
    np.testing.assert_array_equal(loss.lines[1].get_ydata(), [row["val_loss"] for row in ROWS])
    (line,) = rate.lines
    np.testing.assert_array_equal(line.get_ydata(), [0, 0.01, 0.02])


@pytest.mark.parametrize("count", [1, 7])
def test_predictions_show_the_name_the_probability_and_the_truth_where_it_differs(count):
    images, sure = pictures(count), np.linspace(0.5, 0.99, count)
    predicted = [f"class{i}" for i in range(count)]
    truth = [name if i % 2 == 0 else f"true{i}" for i, name in enumerate(predicted)]
    figure = figures.prediction_grid(images, predicted, sure, truth, "Digits")
    for i, (axes, image) in enumerate(zip(panels(figure), images, strict=True)):
        np.testing.assert_allclose(axes.images[0].get_array(), image)
        wrong = f"\nis true{i}" if i % 2 else ""
        assert axes.get_title() == f"class{i} ({sure[i]:.0%}){wrong}"
        assert (axes.title.get_color() == "black") is (i % 2 == 0)
    assert "Digits" in drawn(figure)


def test_rows_of_pictures_have_their_titles():
    rows = {"image": pictures(3), "what a model predicts of the masked patches": pictures(3)}
    figure = figures.picture_rows(rows, "Reconstructions")
    images = [axes.images[0].get_array() for axes in panels(figure)]
    np.testing.assert_allclose(images, np.concatenate([*rows.values()]))
    assert {"image", "Reconstructions"} <= {*drawn(figure)}


def test_one_channel_is_gray_and_values_outside_0_to_1_are_clipped(caplog):
    image = np.array([[[-0.1], [0.5]], [[0.25], [1.1]]])
    (axes,) = panels(figures.prediction_grid([image], ["x"], [1.0], ["x"], "Gray"))
    expected = np.repeat([[[0.0], [0.5]], [[0.25], [1.0]]], 3, axis=-1)
    np.testing.assert_allclose(axes.images[0].get_array(), expected)
    assert not caplog.records  # matplotlib warns where it has to clip


def assert_overlay(axes, image, values, limits):
    """Check that the values are drawn over the whole gray image, larger ones more opaque."""
    gray, heat = axes.images
    np.testing.assert_allclose(gray.get_array(), image.mean(-1))
    np.testing.assert_allclose(heat.get_array(), values)
    height, width = image.shape[:2]
    assert heat.get_extent() == [-0.5, width - 0.5, height - 0.5, -0.5] and heat.get_clim() == limits
    opacity = heat.get_alpha()
    assert opacity.max() <= 0.75
    assert (opacity.argmax(), opacity.argmin()) == (values.argmax(), values.argmin())


@pytest.mark.parametrize("count", some([1, 8], 2))
def test_each_image_is_above_its_attention_map(count):
    images, maps = pictures(count), attention(count, 2, 3)
    figure = figures.attention_overlay(images, maps, [f"name{i}" for i in range(count)], "Attention")
    axes = {panel.get_title(): panel for panel in panels(figure)}
    overlays = [panel for panel in panels(figure) if len(panel.images) == 2]
    limits = overlays[0].images[1].get_clim()
    for i, below in enumerate(overlays):
        above = axes[f"name{i}"]
        np.testing.assert_allclose(above.images[0].get_array(), images[i])
        places = above.get_position(), below.get_position()
        assert places[0].y0 > places[1].y1 and places[0].x0 == pytest.approx(places[1].x0)
        assert_overlay(below, images[i], 6 * maps[i], limits)
    assert {"attention / mean", "1 is uniform attention over all patches"} <= {*drawn(figure)}


def test_one_bright_patch_does_not_darken_the_others():
    maps = np.full((1, 20, 20), 1.0)
    maps[0, 3, 4] = 1000
    figure = figures.attention_overlay(pictures(1), maps / maps.sum(), ["x"], "A peak")
    (heat,) = panels(figure)[1].images[1:]
    assert heat.get_clim() == (0, 2) and heat.colorbar.extend == "max"


@pytest.mark.parametrize("heads", some([1, 12], 2))
def test_each_head_has_its_map_over_the_image(heads):
    (image,), maps = pictures(1), attention(heads, 2, 3)
    figure = figures.head_figure(image, maps, "Heads")
    first, *others = panels(figure)
    np.testing.assert_allclose(first.images[0].get_array(), image)
    assert [axes.get_title() for axes in others] == [f"head {head}" for head in range(heads)]
    for head, axes in enumerate(others):
        assert_overlay(axes, image, 6 * maps[head], others[0].images[1].get_clim())
    assert "attention / mean" in drawn(figure)


@pytest.mark.slow
@pytest.mark.parametrize("count, rows", [(3, [3]), (6, [6]), (7, [4, 3]), (12, [6, 6]), (16, [4, 4, 4, 4])])
def test_rows_have_equally_many_heads_beside_the_image(count, rows):
    figure = figures.head_figure(pictures(1)[0], attention(count, 2, 3), "Heads")
    drawn(figure)
    places = [axes.get_position() for axes in panels(figure)]
    lines = [round(place.y0, 3) for place in places[1:]]
    assert [lines.count(line) for line in sorted({*lines}, reverse=True)] == rows
    assert all(place.x0 > places[0].x1 for place in places[1:])


def test_artifacts_are_crossed_out_and_not_drawn():
    images, maps = pictures(2), attention(2, 2, 3)
    maps[0, 1, 2] = 50
    artifacts = maps > 10
    figure = figures.attention_overlay(images, maps, ["a", "b"], "Rollout", artifacts)
    below = panels(figure)[2:]
    assert below[0].images[1].get_array()[1, 2] == 0 and below[0].images[1].get_clim()[1] < 7
    assert [len(axes.collections[0].get_offsets()) for axes in below] == [1, 0]
    np.testing.assert_allclose(below[0].collections[0].get_offsets()[0], [19.5, 11.5])  # of 8 × 8 pixels
    heads = figures.head_figure(images[0], maps, "Heads", artifacts[0])
    for axes in panels(heads)[1:]:
        assert axes.images[1].get_array()[1, 2] == 0 and len(axes.collections[0].get_offsets()) == 1


def test_components_are_below_their_images_at_the_images_sides():
    images = pictures(2)
    components, foregrounds = RNG.random((2, 2, 2, 3, 3))
    figure = figures.pca_figure(images, components, foregrounds, ["a", "b"], "Components")
    drawn(figure)
    shown = [axes.images[0] for axes in panels(figure)]
    pairs = zip(images, components, foregrounds)
    in_rows = [*zip(*pairs)]
    for found, expected in zip(shown, [picture for row in in_rows for picture in row], strict=True):
        np.testing.assert_allclose(found.get_array(), expected)
        assert found.get_extent() in ([-0.5, 23.5, 15.5, -0.5], (-0.5, 23.5, 15.5, -0.5))


@pytest.mark.parametrize("cells", [[(1, 2)], [(0, 0), (1, 2), (0, 2), (1, 0), (0, 1)]])
def test_chosen_patches_are_framed_and_numbered_and_each_has_its_similarities(cells):
    (image,), similarity = pictures(1), cosines(2, 3)
    figure = figures.similarity_figure(image, similarity, cells, "Alike")
    first, *others = panels(figure)
    np.testing.assert_allclose(first.images[0].get_array(), image)
    corners = [(column * 8 - 0.5, row * 8 - 0.5) for row, column in cells]  # of patches of 8 × 8 pixels
    assert [patch.get_xy() for patch in first.patches[::2]] == corners
    assert [text.get_text() for text in first.texts] == [str(i) for i in range(1, len(cells) + 1)]
    low = min(similarity[cell].min() for cell in cells)
    for number, (cell, corner, axes) in enumerate(zip(cells, corners, others, strict=True), 1):
        assert axes.get_title() == f"{number}: row {cell[0]}, column {cell[1]}"
        limits = axes.images[1].get_clim()
        assert low - 0.1 <= limits[0] <= low and limits[1] == 1
        np.testing.assert_allclose(axes.images[1].get_array(), similarity[cell])
        assert axes.patches[0].get_bbox().bounds == (*corner, 8, 8)
    assert "cosine similarity" in drawn(figure)


IMAGE, MAPS = pictures(1), attention(1, 2, 2)
WRONG = [
    (figures.learning_curves, ([], ""), "at least one row"),
    (figures.prediction_grid, (pictures(2), ["a"], [1, 1], ["a", "b"], ""), r"predicted of shape \(n=2\)"),
    (figures.prediction_grid, (IMAGE[0], ["a"], [1], ["a"], ""), r"images of shape \(n, .*got \(16, 24, 3\)"),
    (figures.prediction_grid, (IMAGE[..., :2], ["a"], [1], ["a"], ""), "images with .* got 2 channels"),
    (figures.attention_overlay, (255 * IMAGE, MAPS, ["a"], ""), "3 channels of float32 from"),
    (figures.picture_rows, ({"a": pictures(2), "b": pictures(1)}, ""), r"b of shape \(n=2"),
    (figures.attention_overlay, (IMAGE * np.nan, MAPS, ["a"], ""), "from nan to nan"),
    (figures.attention_overlay, (np.ones((1, 4, 4, 3), "uint8"), MAPS, ["a"], ""), "uint8 from 1 to 1"),
    (figures.head_figure, (IMAGE[0], np.ones((0, 2, 2)), ""), "not empty"),
    (figures.similarity_figure, (IMAGE[0], np.ones((2, 3, 2, 2)), [(0, 0)], ""), "similarity of shape"),
    (figures.similarity_figure, (IMAGE[0], cosines(2, 3), [(2, 0)], ""), "grid of 2 × 3"),
    (figures.similarity_figure, (IMAGE[0], cosines(2, 3), [], ""), "grid of 2 × 3"),
    (figures.filter_figure, (np.ones((1, 2, 2, 4)), [1.0], ""), "1 or 3 channels; got 4"),
    (figures.block_accuracy_figure, ([0.5, 0.7], ""), r"accuracies of shape \(blocks, seeds\)"),
    (figures.confusion_figure, (np.eye(2, dtype=int), ["a"], ""), r"class_names of shape \(classes=2\)"),
]


@by_table("draw, arguments, message", WRONG)
def test_arrays_that_do_not_match_are_refused_in_one_line(draw, arguments, message):
    with pytest.raises(ValueError, match="^expected .*" + message):
        draw(*arguments)


def test_each_filter_is_scaled_around_gray():
    components = RNG.normal(size=(9, 4, 4, 3)) * RNG.uniform(0.1, 9, size=(9, 1, 1, 1))
    components[-1] = 0
    fractions = np.sort(RNG.dirichlet(np.ones(9)))[::-1] * 0.8
    figure = figures.filter_figure(components, fractions, "Filters")
    for axes, component, fraction in zip(panels(figure), components, fractions, strict=True):
        shown = np.asarray(axes.images[0].get_array()) - 0.5
        np.testing.assert_allclose(shown * 2 * np.abs(component).max(), component, atol=1e-12)
        assert np.abs(shown).max() == pytest.approx(0.5 if component.any() else 0)
        assert axes.get_title() == f"{fraction:.1%}"
    assert any("80.0% in total" in words for words in drawn(figure))
    (axes,) = panels(figures.filter_figure(np.array([[[[1.0], [-1.0]]]]), [1.0], "Gray"))
    np.testing.assert_allclose(axes.images[0].get_array(), [[[1, 1, 1], [0, 0, 0]]])


@pytest.mark.parametrize("rows, columns, every", [(1, 1, 1), (2, 3, 1), (17, 20, 2)])
def test_each_position_has_a_tile_at_its_place(rows, columns, every):
    similarity = cosines(rows, columns)
    figure = figures.position_figure(similarity, "Positions")
    axes, _ = figure.axes
    picture = axes.images[0].get_array().filled(np.nan)
    low, high = axes.images[0].get_clim()
    assert low <= similarity[::every, ::every].min() and high == 1
    assert [int(label.get_text()) for label in axes.get_xticklabels()] == [*range(0, columns, every)]
    for i, y in enumerate(axes.get_yticks()):
        for j, x in enumerate(axes.get_xticks()):  # the tick is at the tile's middle
            top, left = round(y - (rows - 1) / 2), round(x - (columns - 1) / 2)
            tile = picture[top : top + rows, left : left + columns]
            np.testing.assert_array_equal(tile, similarity[i * every, j * every])
    assert np.isnan(picture).any() == (rows * columns > 1)  # gaps
    words = drawn(figure)
    assert {"patch column", "patch row", "cosine similarity"} <= {*words}
    assert any(f"one of every {every} rows" in title for title in words) is (every > 1)


@pytest.mark.parametrize(
    "draw, shape, label, point",
    [
        (figures.distance_figure, (2, 12, 3), "mean attention distance (pixels)", "head"),
        (figures.block_accuracy_figure, (3, 5), "accuracy", "seed"),
    ],
)
def test_each_block_has_points_and_a_line_of_means(draw, shape, label, point):
    values = RNG.uniform(size=shape)
    (axes,) = draw(values, "Blocks").axes
    (points,), (line,) = axes.collections, axes.lines
    values = values.reshape(-1, *shape[-2:]).mean(0)  # over the images
    np.testing.assert_allclose(points.get_offsets(), [(at[0], value) for at, value in np.ndenumerate(values)])
    np.testing.assert_allclose(line.get_xydata(), [*enumerate(values.mean(1))])
    assert {"block", label, f"a {point}", f"mean of the {point}s"} <= {*drawn(axes.figure)}
    (axes,) = figures.distance_figure(np.zeros((2, 3)), "One image, distance 0").axes
    assert axes.get_ylim() == (0, 1)


def test_a_confusion_matrix_has_fractions_counts_and_names():
    figure = figures.confusion_figure([[9, 1, 0], [2, 2, 0], [0, 0, 0]], ["a", "b", "c"], "Confused")
    axes, _ = figure.axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.9, 0.1, 0], [0.5, 0.5, 0], [0, 0, 0]])
    assert axes.images[0].get_clim() == (0, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == ["a", "b", "c"]
    counts = {text.get_position(): text.get_text() for text in axes.texts}
    assert counts[1, 0] == "1" and counts[0, 1] == "2" and len(counts) == 9
    assert "fraction of the true class" in drawn(figure)
    words = drawn(figures.confusion_figure([[3_000_000, 1_000_000], [0, 5]], ["a", "b"], "Large counts"))
    assert {"75.0", "25.0", "0.0", "100.0"} <= {*words}


@pytest.mark.parametrize("classes, named", [(21, True), (61, False)])
def test_a_confusion_matrix_of_many_classes_has_no_counts_and_of_more_no_names(classes, named):
    figure = figures.confusion_figure(np.eye(classes, dtype=int), [f"c{i}" for i in range(classes)], "Many")
    axes = figure.axes[0]
    assert not axes.texts and max(figure.get_size_inches()) <= 15
    assert ([tick.get_text() for tick in axes.get_xticklabels()][-1] == f"c{classes - 1}") is named


@pytest.mark.slow
def test_any_name_is_drawn_without_a_warning_as_text_and_cut():
    """Warnings, such as of a missing glyph, are errors in these tests."""
    before, images, count = dict(matplotlib.rcParams), pictures(len(NAMES), 4, 4), len(NAMES)
    drawn(figures.attention_overlay(images, attention(count, 2, 2), NAMES, NAMES[1] * 3))
    drawn(figures.confusion_figure(np.eye(count, dtype=int), NAMES, NAMES[2]))
    figure = figures.prediction_grid(images, NAMES, [1.0] * count, NAMES[1:] + NAMES[:1], NAMES[0] * 9)
    words = " ".join(drawn(figure))
    assert "…" in words and r"\$a_b\$ costs \$5" in words and "Großer Weißer Hai" in words
    assert dict(matplotlib.rcParams) == before


def test_missing_characters_are_boxes_unless_an_installed_font_has_them(monkeypatch):
    def label(name):
        return figures.confusion_figure(np.eye(1, dtype=int), [name], "").axes[0].get_xticklabels()[0]

    monkeypatch.setattr(drawing, "FALLBACK_FONTS", ["No such font"])
    assert label("サメ 1 ₂").get_text() == "□□ 1 ₂"
    monkeypatch.setattr(drawing, "FALLBACK_FONTS", ["STIXGeneral"])  # an installed font with more characters
    assert label("\u2a00 1").get_text() == "\u2a00 1" and "STIXGeneral" in label("a").get_fontfamily()
    assert "STIXGeneral" in {font.name for font in font_manager.fontManager.ttflist}


@pytest.mark.parametrize("count, labeled", [(1, False), (3, True)])
def test_class_maps_are_below_their_images_with_a_legend_of_their_classes(count, labeled):
    images = [*pictures(count - 1), *pictures(1, 24, 16)] if count > 1 else pictures(1)
    predicted = [np.full(image.shape[:2], 1) for image in images]
    truth = [np.full(image.shape[:2], 255 if i else 4) for i, image in enumerate(images)] if labeled else None
    names = [f"class {i}" for i in range(6)]
    figure = segmentation_figure(images, predicted, truth, [f"name{i}" for i in range(count)], names, "Maps")
    shown = [axes.images[0].get_array() for axes in panels(figure)]
    expected = [*images, *map(class_overlay, images, predicted)]
    expected += [*map(class_overlay, images, truth)] if labeled else []
    assert len(shown) == len(expected)
    for picture in expected:
        assert any(np.shape(each) == picture.shape and np.allclose(each, picture) for each in shown)
    words = drawn(figure)
    assert [word for word in words if word.startswith("class ")] == ["class 1"] + ["class 4"] * labeled
    uncolored = segmentation_figure(images[:1], [predicted[0] * 0], None, ["a"], names, "Background")
    (legend,) = uncolored.legends
    assert legend.get_patches()[0].get_facecolor() == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="expected classes of shape"):
        segmentation_figure(pictures(1), [np.zeros((3, 3), int)], None, ["x"], names, "t")


def test_an_example_shows_where_a_class_is_right_missed_and_wrong():
    image, truth, found = np.zeros((2, 2, 3)), [[1, 1], [0, 255]], [[1, 0], [1, 1]]
    figure = class_example_figure([image], [found], [truth], [1], ["cat: IoU 0.33"], "Examples")
    (axes,) = panels(figure)
    (right, missed), (wrong, ignored) = axes.images[0].get_array()
    assert len({(*map(float, color),) for color in (right, missed, wrong, ignored)}) == 4
    assert not ignored.any()
    assert {"cat: IoU 0.33", "right", "missed", "predicted wrongly"} <= {*drawn(figure)}


@pytest.mark.parametrize("count", some([2, 70], 2))
def test_each_class_has_a_bar_and_of_many_the_lowest_are_shown(count):
    rows = [{"name": NAMES[i % 5], "iou": i / count} for i in range(count)] + [{"name": "none", "iou": None}]
    figure = iou_figure(rows, "IoU")
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [i / count for i in range(min(count, 60))]
    drawn(figure)
    with pytest.raises(ValueError, match="expected a class with an IoU"):
        iou_figure(rows[-1:], "IoU")
