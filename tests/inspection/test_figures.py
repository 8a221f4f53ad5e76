import os

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure

from keras_vit.inspection import figures
from keras_vit.inspection import panels as put
from keras_vit.inspection.figures import (
    attention_overlay,
    confusion_figure,
    distance_figure,
    filter_figure,
    head_figure,
    learning_curves,
    position_figure,
    prediction_grid,
    similarity_figure,
)

ROWS = [
    {"step": step, "loss": 1 / step, "accuracy": 0.5, "val_loss": 2 / step, "val_accuracy": step / 40}
    for step in (10, 20, 30)
]
NAMES = [
    "great white shark, white shark, man-eater, man-eating shark, Carcharodon carcharias",
    "a_name_of_one_long_word_with_nothing_but_underscores",
    *("$a_b$ costs $5", "サメ 鮫", "السمكة", "x", "Großer Weißer Hai"),
]
RNG = np.random.default_rng(0)


class Recorder(RendererAgg):
    """Draws, and remembers where which words came to stand: (words, left, top, right, bottom) in pixels."""

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        assert not ismath, f"{s} is drawn as a formula"
        wide, high, below = self.get_text_width_height_descent(s, prop, ismath)
        above = high - below
        box = {0: (x, y - above, x + wide, y + below), 90: (x - above, y - wide, x + below, y)}[angle]
        self.__dict__.setdefault("words", []).append((s, *box))
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)


def drawn(figure, dpi=80):
    """The words of a figure; that all are on the canvas, none on another, and that there are colours."""
    figure.set_dpi(dpi)
    width, height = (figure.get_size_inches() * dpi).astype(int)
    renderer = Recorder(width, height, dpi)
    figure.draw(renderer)
    words, *box = zip(*(row for row in renderer.words if row[0].strip()))
    left, top, right, bottom = (np.array(side) for side in box)
    off = (left < 0) | (top < 0) | (right > width) | (bottom > height)
    assert not off.any(), [words[i] for i in np.flatnonzero(off)]
    across = np.minimum.outer(right, right) - np.maximum.outer(left, left)
    along = np.minimum.outer(bottom, bottom) - np.maximum.outer(top, top)
    pairs = np.argwhere(np.triu((across > 1) & (along > 1), 1))
    assert not len(pairs), [(words[i], words[j]) for i, j in pairs]
    assert np.asarray(renderer.buffer_rgba())[..., :3].std() > 5  # not one colour
    return list(words)


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


def title(figure):
    return figure.get_suptitle()


def marked(axes):
    """Where the middles of the frames on a picture are."""
    return [tuple(np.mean([line.get_xdata()[:4], line.get_ydata()[:4]], axis=1)) for line in frames(axes)]


def frames(axes):
    """The frames on a picture, each of which is a light line over a dark one."""
    return axes.lines[: len(axes.lines) // 2]


def contains(outer, inner):
    return outer.x0 <= inner.x0 <= inner.x1 <= outer.x1 and outer.y0 <= inner.y0 <= inner.y1 <= outer.y1


def overlapping(one, other):
    """By more than the pixel that letters move by."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    return across > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1


def extents(artists):
    return [artist.get_window_extent() for artist in artists]


def test_curves_show_loss_and_accuracy_with_labelled_axes():
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
    drawn(figure)


def test_curves_take_what_each_row_has():
    rows = [
        {"step": 100000, "learning_rate": 0.1, "mean_average_precision": 0.2, "loss": 3.0},
        {"step": 200000, "mean_average_precision": 0.4, "loss": 2.0, "val_mae": 1.0, "a": 1.0},
        {"step": 300000, "val_mean_average_precision": 0.3},
    ]
    figure = learning_curves(rows, "A long title " * 30)
    names = [axes.get_ylabel() for axes in figure.axes]
    assert names == ["loss", "mean average precision", "mae", "a", "learning rate"]
    loss, precision, error, *_ = figure.axes
    assert [len(axes.lines) for axes in (loss, precision, error)] == [1, 2, 1]
    np.testing.assert_array_equal(precision.lines[1].get_xydata(), [[300000, 0.3]])
    drawn(figure)


def test_loss_and_learning_rate_are_drawn_by_step_where_steps_are_known():
    steps = [{"step": 15 + i, "loss": 1 / (i + 1), "learning_rate": i / 100} for i in range(3)]
    rows = [{**row, "learning_rate": 0.5} for row in ROWS]
    loss, accuracy, rate = learning_curves(rows, "A run", steps).axes
    assert rate.get_ylabel() == "learning rate" and len(rate.lines) == 1
    np.testing.assert_array_equal(loss.lines[0].get_xydata(), [(15, 1), (16, 1 / 2), (17, 1 / 3)])
    np.testing.assert_array_equal(rate.lines[0].get_ydata(), [0, 0.01, 0.02])
    for axes, name in ((loss, "val_loss"), (accuracy, "val_accuracy")):
        np.testing.assert_array_equal(axes.lines[1].get_ydata(), [row[name] for row in ROWS])


def test_curves_of_no_rows_are_refused():
    with pytest.raises(ValueError, match="received no rows"):
        learning_curves([], "Nothing")


@pytest.mark.parametrize("count", [1, 2, 7, 25])
def test_each_image_has_a_panel_with_prediction_confidence_and_truth(count):
    images = pictures(count)
    said = [f"said{i}" for i in range(count)]
    true = [name if i % 2 == 0 else f"true{i}" for i, name in enumerate(said)]
    figure = prediction_grid(images, said, np.linspace(0.5, 0.99, count), true, "Digits")
    assert title(figure) == "Digits"
    assert len(panels(figure)) == count
    for i, (axes, sure) in enumerate(zip(panels(figure), np.linspace(0.5, 0.99, count))):
        np.testing.assert_allclose(axes.images[0].get_array(), images[i])
        wrong = f"\nis true{i}" if i % 2 else ""
        assert axes.get_title() == f"said{i} ({sure:.0%}){wrong}"
        assert (axes.title.get_color() == "black") is (i % 2 == 0)
    assert not any(axes.axison for axes in figure.axes)  # the empty places of the grid too
    drawn(figure)


def test_without_the_truth_a_prediction_is_neither_right_nor_wrong():
    (axes,) = panels(prediction_grid(pictures(1), ["cat"], [0.5], [None], "Found"))
    assert (axes.get_title(), axes.title.get_color()) == ("cat (50%)", "black")


def test_one_channel_is_shown_as_grey_and_what_is_beyond_white_as_white(caplog):
    image = np.array([[[-0.1], [0.5]], [[0.25], [1.1]]])
    (axes,) = panels(prediction_grid([image], ["x"], [1.0], ["x"], "Grey"))
    assert not caplog.records  # matplotlib would say that it has to clip
    shown = axes.images[0].get_array()
    np.testing.assert_allclose(shown, np.repeat([[[0.0], [0.5]], [[0.25], [1.0]]], 3, axis=-1))


@pytest.mark.parametrize("count, columns", [(1, 1), (4, 4), (8, 4)])
def test_each_image_stands_above_where_the_model_looks(count, columns):
    images, maps = pictures(count), attention(count, 2, 3)
    figure = attention_overlay(images, maps, [f"name{i}" for i in range(count)], "Attention")
    assert title(figure) == "Attention"
    *_, scale = figure.axes
    shown = panels(figure)
    assert len(shown) == 2 * count
    grid = np.array(shown, object).reshape(-1, 2, columns)
    for i, (above, below) in enumerate(zip(grid[:, 0].flat, grid[:, 1].flat)):
        assert above.get_position().y0 > below.get_position().y1
        assert above.get_title() == f"name{i}"
        np.testing.assert_allclose(above.images[0].get_array(), images[i])
        np.testing.assert_allclose(below.images[0].get_array(), images[i].mean(-1))
        assert below.images[0].get_clim() == (0, 1)  # seen through colours where there is little attention
        opacity = below.images[1].get_alpha()
        assert np.ptp(opacity) > 0.1 and opacity.max() <= 0.75
        assert opacity.argmax() == maps[i].argmax() and opacity.argmin() == maps[i].argmin()
        heat = below.images[1]
        np.testing.assert_allclose(heat.get_array(), 6 * maps[i])
        assert heat.get_extent() == [-0.5, 23.5, 15.5, -0.5]  # over the whole image
        assert heat.get_clim() == grid[0, 1, 0].images[1].get_clim()  # one scale for all
    assert scale.get_ylabel() == "attention / mean"
    assert any("uniform attention" in words for words in drawn(figure))


def test_one_bright_patch_does_not_darken_the_others():
    maps = np.full((1, 20, 20), 1.0)
    maps[0, 3, 4] = 1000
    figure = attention_overlay(pictures(1), maps / maps.sum(), ["x"], "A peak")
    (heat,) = panels(figure)[1].images[1:]
    assert heat.get_clim() == (0, 2)
    assert heat.colorbar.extend == "max"
    assert attention_overlay(pictures(1), np.full((1, 2, 2), 0.25), ["x"], "Evenly").axes


@pytest.mark.parametrize("heads", [1, 3, 24])
def test_each_head_has_its_map_over_the_image(heads):
    (image,), maps = pictures(1), attention(heads, 2, 3)
    figure = head_figure(image, maps, "Heads")
    assert title(figure) == "Heads"
    first, *others = panels(figure)
    np.testing.assert_allclose(first.images[0].get_array(), image)
    assert len(others) == heads
    for head, axes in enumerate(others):
        assert axes.get_title() == f"head {head}"
        np.testing.assert_allclose(axes.images[1].get_array(), 6 * maps[head])
        assert axes.images[1].get_extent() == [-0.5, 23.5, 15.5, -0.5]
        assert axes.images[1].get_clim() == others[0].images[1].get_clim()
    assert figure.axes[-1].get_ylabel() == "attention / mean"
    drawn(figure)


@pytest.mark.parametrize("cells", [[(1, 2)], [(0, 0), (1, 2), (0, 2), (1, 0), (0, 1)]])
def test_chosen_patches_are_marked_and_each_has_its_similarities(cells):
    (image,), similarity = pictures(1), cosines(2, 3)
    figure = similarity_figure(image, similarity, cells, "Alike")
    first, *others = panels(figure)
    np.testing.assert_allclose(first.images[0].get_array(), image)
    middles = [(column * 8 + 3.5, row * 8 + 3.5) for row, column in cells]  # of cells of 8 × 8 pixels
    assert marked(first) == middles
    for number, (cell, middle, axes) in enumerate(zip(cells, middles, others, strict=True), 1):
        assert axes.get_title() == f"{number}: row {cell[0]}, column {cell[1]}"
        np.testing.assert_allclose(axes.images[1].get_array(), similarity[cell])
        assert marked(axes) == [middle]
        low, top = axes.images[1].get_clim()
        shown = [similarity[cell] for cell in cells]
        assert low <= np.min(shown) < low + 0.1 and top == 1
    assert figure.axes[-1].get_ylabel() == "cosine similarity"
    assert {*map(str, range(1, len(cells) + 1))} <= {*drawn(figure)}


SQUARE = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    "rows, columns, cells, inside",
    [
        (2, 2, SQUARE, True),
        (4, 4, [*SQUARE, (3, 3), (3, 2), (2, 3)], True),
        (4, 2, [*SQUARE, (3, 1)], True),
        (14, 14, [(row, column) for row in (0, 6, 7, 13) for column in (0, 6, 7, 13)], False),
        (24, 32, [*SQUARE, (9, 10), (10, 9), (11, 11), (23, 31), (22, 31)], False),
        (3, 20, [(0, 0), (1, 1), (1, 2), (2, 19)], False),
    ],
)
def test_no_number_stands_in_another_chosen_patch(rows, columns, cells, inside):
    image = pictures(1, 8 * rows, 8 * columns)[0]
    figure = similarity_figure(image, cosines(rows, columns), cells, "Alike")
    assert {*map(str, range(1, len(cells) + 1))} <= {*drawn(figure, 160)}
    first = panels(figure)[0]
    numbers = [text.get_bbox_patch().get_window_extent() for text in first.texts]
    for number, text in enumerate(first.texts):
        assert text.get_text() == str(number + 1)
        assert contains(first.get_window_extent().padded(1), numbers[number])
        for other, frame in enumerate(extents(frames(first))):
            if inside and other == number:
                assert contains(frame, numbers[number])
            else:
                assert not overlapping(frame, numbers[number])
    assert not any(overlapping(a, b) for i, a in enumerate(numbers) for b in numbers[:i])


def test_a_number_that_finds_no_free_place_stands_on_its_own_patch():
    image, cells = pictures(1, 20, 20)[0], [*np.ndindex(10, 10)]
    axes = Figure().add_axes((0, 0, 1, 1))
    put.mark(axes, image, cells, (10, 10))
    put.number(axes, image, cells, (10, 10))
    for number, middle in zip(axes.texts, marked(axes), strict=True):
        np.testing.assert_allclose(number.get_position(), middle, atol=1.5)


WRONG = [
    (
        prediction_grid,
        (pictures(2), ["a"], [1, 1], ["a", "b"], ""),
        r"predicted of shape \(1,\); wanted \(n = 2\)",
    ),
    (
        prediction_grid,
        (pictures(1), ["a"], [1, 1], ["a"], ""),
        r"confidence of shape \(2,\); wanted \(n = 1\)",
    ),
    (prediction_grid, (pictures(1), ["a"], [1], [], ""), "no truth"),
    (
        prediction_grid,
        (pictures(1)[0], ["a"], [1], ["a"], ""),
        r"images of shape \(16, 24, 3\); wanted \(n, height",
    ),
    (prediction_grid, (pictures(1)[..., :2], ["a"], [1], ["a"], ""), "images of 2 channels"),
    (attention_overlay, (255 * pictures(1), attention(1, 2, 2), ["a"], ""), "float32 from .*; wanted"),
    (attention_overlay, (2 * pictures(1) - 1, attention(1, 2, 2), ["a"], ""), "float32 from -.*; wanted"),
    (attention_overlay, (pictures(1) * np.nan, attention(1, 2, 2), ["a"], ""), "from nan to nan; wanted"),
    (
        attention_overlay,
        (np.ones((1, 4, 4, 3), "uint8"), attention(1, 2, 2), ["a"], ""),
        "uint8 from 1 to 1; wanted",
    ),
    (
        attention_overlay,
        (pictures(2), attention(1, 2, 2), ["a", "b"], ""),
        r"wanted \(n = 2, rows, columns\)",
    ),
    (attention_overlay, (pictures(2), attention(2, 2, 2), ["a"], ""), "received names of"),
    (
        head_figure,
        (pictures(1), attention(1, 2, 2), ""),
        r"image of shape .* wanted \(height, width, colors\)",
    ),
    (
        head_figure,
        (pictures(1)[0], attention(1, 2, 2)[0], ""),
        r"maps of shape \(2, 2\); wanted \(heads, rows",
    ),
    (head_figure, (pictures(1)[0], np.ones((0, 2, 2)), ""), "no maps"),
    (head_figure, (np.ones((4, 4, 3), int), attention(1, 2, 2), ""), "int64 from"),
    (similarity_figure, (pictures(1)[0], cosines(2, 3)[0], [(0, 0)], ""), r"similarity of shape \(3, 2, 3\)"),
    (similarity_figure, (pictures(1)[0], np.ones((2, 3, 2, 2)), [(0, 0)], ""), "similarity of shape"),
    (similarity_figure, (np.ones((4, 4, 3), "uint8"), cosines(2, 3), [(0, 0)], ""), "uint8 from"),
    (filter_figure, (np.ones((2, 4, 4, 3)), [0.5], ""), r"explained of shape \(1,\); wanted \(n = 2\)"),
    (filter_figure, (np.ones((4, 4, 3)), [0.5], ""), "components of shape"),
    (position_figure, (cosines(2, 3).reshape(6, 6), ""), r"wanted \(rows, columns, rows, columns\)"),
    (distance_figure, ([1.0, 2.0], ""), r"distances of shape \(2,\); wanted \(blocks, heads\)"),
    (distance_figure, (np.ones((1, 1, 2, 3)), ""), "distances of shape"),
    (confusion_figure, (np.ones((2, 3), int), ["a", "b"], ""), r"matrix of shape \(2, 3\)"),
    (
        confusion_figure,
        (np.eye(2, dtype=int), ["a"], ""),
        r"class_names of shape \(1,\); wanted \(classes = 2\)",
    ),
]


@pytest.mark.parametrize("draw, given, told", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(draw, given, told):
    with pytest.raises(ValueError, match=told) as refusal:
        draw(*given)
    assert str(refusal.value).startswith("received ") and "\n" not in str(refusal.value)


@pytest.mark.parametrize("cells", [[], [(2, 0)], [(-1, 0)], [(0, 0), (0, -1)], [(0, 3)]])
def test_patches_outside_the_grid_are_refused(cells):
    with pytest.raises(ValueError, match="wanted .* grid of 2 × 3"):
        similarity_figure(pictures(1)[0], cosines(2, 3), cells, "Alike")


@pytest.mark.parametrize("count, size", [(28, 4), (9, 1), (1, 32)])
def test_each_filter_is_scaled_around_grey(count, size):
    components = RNG.normal(size=(count, size, size, 3)) * RNG.uniform(0.1, 9, size=(count, 1, 1, 1))
    components[-1] = 0
    shares = np.sort(RNG.dirichlet(np.ones(count)))[::-1] * 0.8
    figure = filter_figure(components, shares, "Filters")
    assert len(panels(figure)) == count
    for axes, component, share in zip(panels(figure), components, shares):
        shown = np.asarray(axes.images[0].get_array()) - 0.5
        np.testing.assert_allclose(shown * 2 * np.abs(component).max(), component, atol=1e-12)
        assert np.abs(shown).max() == pytest.approx(0.5 if component.any() else 0)
        assert axes.get_title() == f"{share:.1%}"
    assert any("80.0% in all" in words for words in drawn(figure))


def test_filters_of_one_channel_are_grey_and_others_are_refused():
    (axes,) = panels(filter_figure(np.array([[[[1.0], [-1.0]]]]), [1.0], "Grey"))
    np.testing.assert_allclose(axes.images[0].get_array(), [[[1, 1, 1], [0, 0, 0]]])
    with pytest.raises(ValueError, match="received filters of 4 channels; 1 or 3"):
        filter_figure(np.ones((1, 2, 2, 4)), [1.0], "Infrared too")


@pytest.mark.parametrize("rows, columns, every", [(1, 1, 1), (2, 3, 1), (14, 14, 1), (17, 20, 2)])
def test_each_position_has_a_tile_at_its_place(rows, columns, every):
    similarity = cosines(rows, columns)
    figure = position_figure(similarity, "Positions")
    assert title(figure) == "Positions"
    axes, scale = figure.axes
    picture = axes.images[0].get_array().filled(np.nan)
    low, top = axes.images[0].get_clim()
    assert low <= similarity[::every, ::every].min() and top == 1
    xs, ys = axes.get_xticks(), axes.get_yticks()
    assert [int(label.get_text()) for label in axes.get_xticklabels()] == [*range(0, columns, every)]
    assert [int(label.get_text()) for label in axes.get_yticklabels()] == [*range(0, rows, every)]
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):  # the tick is at the tile's middle
            top, left = round(y - (rows - 1) / 2), round(x - (columns - 1) / 2)
            tile = picture[top : top + rows, left : left + columns]
            np.testing.assert_array_equal(tile, similarity[i * every, j * every])
    assert np.isnan(picture).any() == (rows * columns > 1)  # gaps
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("patch column", "patch row")
    assert scale.get_ylabel() == "cosine similarity"
    told = any(f"one of every {every} rows" in words for words in drawn(figure))
    assert told is (every > 1)


@pytest.mark.parametrize("blocks, heads", [(1, 1), (12, 3), (48, 24)])
def test_distances_have_a_point_for_each_head_and_a_line_of_means(blocks, heads):
    distances = RNG.uniform(0, 200, size=(2, blocks, heads))
    figure = distance_figure(distances, "Distances")
    (axes,) = figure.axes
    (points,), (line,) = axes.collections, axes.lines
    wanted = [(block, distances[:, block, head].mean()) for block in range(blocks) for head in range(heads)]
    np.testing.assert_allclose(points.get_offsets(), wanted)
    np.testing.assert_allclose(line.get_xydata(), [*enumerate(distances.mean((0, 2)))])
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > distances.mean(0).max()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("block", "mean attention distance (pixels)")
    assert {"a head", "mean of the heads", "0"} <= {*drawn(figure)}
    assert axes.get_legend().get_window_extent().y0 > axes.get_window_extent().y1 - 1  # hides no point


def test_distances_may_be_of_one_image_and_all_be_0():
    (axes,) = distance_figure(np.zeros((2, 3)), "At home").axes
    assert axes.get_ylim() == (0, 1) and len(axes.collections[0].get_offsets()) == 6


def test_a_confusion_figure_has_shares_counts_and_names():
    figure = confusion_figure([[9, 1, 0], [2, 2, 0], [0, 0, 0]], ["a", "b", "c"], "Confused")
    assert title(figure) == "Confused"
    axes, scale = figure.axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.9, 0.1, 0], [0.5, 0.5, 0], [0, 0, 0]])
    assert axes.images[0].get_clim() == (0, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == ["a", "b", "c"]
    counts = {text.get_position(): text.get_text() for text in axes.texts}
    assert counts[1, 0] == "1" and counts[0, 1] == "2" and len(counts) == 9
    assert scale.get_ylabel() == "share of the true class"
    drawn(figure)


@pytest.mark.parametrize("classes, named", [(21, True), (61, False), (1000, False)])
def test_many_classes_are_shown_without_what_could_not_be_read(classes, named):
    figure = confusion_figure(np.eye(classes, dtype=int), [f"c{i}" for i in range(classes)], "Many")
    axes = figure.axes[0]
    assert not axes.texts
    assert ([tick.get_text() for tick in axes.get_xticklabels()][-1] == f"c{classes - 1}") is named
    assert max(figure.get_size_inches()) <= 15
    drawn(figure)


def of_names(count):
    names, images = (NAMES * 4)[:count], pictures(count, 4, 4)
    yield prediction_grid(images, names, [1.0] * count, names[1:] + names[:1], NAMES[0] * 2)
    yield attention_overlay(images, attention(count, 2, 2), names, NAMES[1] * 3)
    yield confusion_figure(np.eye(count, dtype=int), names, NAMES[2])


def of_shapes(height, width):
    (image,) = pictures(1, height, width)
    yield prediction_grid([image, image], NAMES[:2], [1, 1], NAMES[1:3], "Shape")
    yield attention_overlay([image], attention(1, 2, 2), NAMES[:1], "Shape")
    yield head_figure(image, attention(2, 64, 64), "Shape")
    yield similarity_figure(image, cosines(8, 8), [(0, 0), (7, 7), (3, 4)], "Shape")


@pytest.mark.parametrize("count", [1, 2, 7, 20, 25] if "FULL" in os.environ else [7])
def test_any_name_has_its_place(count):
    for figure in of_names(count):
        drawn(figure)


@pytest.mark.parametrize("height, width", [(8, 8), (12, 16), (60, 20), (4, 64)])
def test_words_have_their_place_at_any_shape(height, width):
    for figure in of_shapes(height, width):
        drawn(figure)


def test_positions_of_large_images_are_thinned():
    if "FULL" in os.environ:
        drawn(position_figure(cosines(64, 64), "64 × 64"))
    words = drawn(position_figure(cosines(24, 32), "24 × 32"))
    assert "one of every 2 rows and columns of the 24 × 32 grid" in words


def test_names_are_drawn_as_they_are():
    names = ["a_b$c$", "\\$ \\frac", "two\nlines", "x^2"]
    shown = drawn(confusion_figure(np.eye(4, dtype=int), names, "Cost in $: 5$"))
    assert {"a_b$c$", "\\$ \\frac", "two lines", "x^2", "Cost in $: 5$"} <= {*shown}


def test_characters_without_a_font_become_boxes_and_an_installed_font_is_used(monkeypatch):
    """STIX, which comes with matplotlib, has signs that its first font has not."""
    own, other = (
        font_manager.get_font(font_manager.findfont(name)).get_charmap()
        for name in ("DejaVu Sans", "STIXGeneral")
    )
    sign = chr(min({*other} - {*own}))
    matrix = np.eye(1, dtype=int)
    monkeypatch.setattr(figures, "OTHER_SCRIPTS", [])
    assert "□ fish" in drawn(confusion_figure(matrix, [f"{sign} fish"], "Boxes"))
    monkeypatch.setattr(figures, "OTHER_SCRIPTS", ["No Such Font", "STIXGeneral"])
    assert f"{sign} fish" in drawn(confusion_figure(matrix, [f"{sign} fish"], "A font"))


def test_a_figure_of_no_images_is_refused():
    with pytest.raises(ValueError, match="received no images"):
        prediction_grid([], [], [], [], "None")


def test_settings_stay_as_they_are():
    before = dict(matplotlib.rcParams)
    for figure in of_names(2):
        drawn(figure)
    assert dict(matplotlib.rcParams) == before
