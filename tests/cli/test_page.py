import base64
import io

import pytest
from made.pages import Page, read_page
from matplotlib.figure import Figure
from PIL import Image

from keras_vit.cli.page import folded, format_value, gallery, page, picture, png_of, table

NASTY = """<script>alert('1')</script>" onload="x" & <b>"""


def red(*words):
    file = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(file, "PNG")
    return picture(file.getvalue(), *words)


def test_a_page_is_complete_and_lists_its_sections():
    field = red("a red field")
    scores = table("Scores", ("name", "n"), [("cat", 1), ("dog", None)])
    sections = {
        "One": ["First.", field, gallery([red("a red field", "small"), field])],
        "Two": [scores],
        "Three": [],
    }
    found = read_page(page("A model", ["It sees."], sections))
    assert found.headings == ["One", "Two", "Three"]
    assert len([tag for tag, _ in found.tags if tag == "a"]) == 3
    parts = ("A model", "It sees.", "One Two Three", "First.", "small", "Scores", "cat 1 dog –")
    places = [found.text.index(part) for part in parts]
    assert places == sorted(places)
    for attributes in found.pictures():
        kind, _, data = attributes["src"].partition(",")
        assert kind == "data:image/png;base64" and attributes["alt"] == "a red field"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            assert image.size == (4, 3)


def test_text_in_any_place_is_escaped():
    nasty = table(NASTY, (NASTY, NASTY), [(NASTY, NASTY)])
    figure = red(NASTY, NASTY, NASTY)
    parts = [NASTY, figure, gallery([figure]), folded(NASTY, nasty)]
    found = read_page(page(NASTY, [NASTY], {NASTY: parts}))
    # title, h1, paragraph, contents, heading, paragraph, two captions with files, summary, table of 5
    assert found.words == [NASTY] * 16
    assert [attributes["alt"] for attributes in found.pictures()] == [NASTY] * 2
    assert "script" not in {tag for tag, _ in found.tags}


def test_columns_of_numbers_are_aligned_and_have_one_number_of_decimals():
    rows = [("a", 0.5, 1, "x", 0.25), ("b", None, 20_000, 3, None)]
    text = table("t", ("name", "p", "n", "mixed", "q"), rows)
    assert '<td class="number">0.5000</td><td class="number">1</td><td>x</td>' in text
    assert '<td class="number">–</td><td class="number">20,000</td><td>3</td>' in text
    assert '<th scope="row">rate</th><td>1e-06</td>' in table("t", (), [("rate", 1e-6)])


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (0.98765, "0.9877"),
        (1e-6, "1e-06"),
        (9999, "9999"),
        (-10_000, "-10,000"),
        (False, "no"),
        ((16, (1, None)), "16, 1, –"),
        ({"depth": 2, "rate": 0.5}, "depth 2, rate 0.5"),
        ([], "–"),
    ],
)
def test_values_are_formatted(value, text):
    assert format_value(value) == text


def test_a_figure_becomes_a_png():
    with Image.open(io.BytesIO(png_of(Figure(figsize=(2, 1))))) as image:
        assert (image.format, image.size) == ("PNG", (240, 120))


@pytest.mark.parametrize(
    "wrong",
    [
        *('<a href="https://example.org">there</a>', '<img src="figure.png" alt="a">', '<img src="data:,">'),
        *("<script>1</script>", "<p>never closed", "</p>", '<p onclick="x">p</p>', '<a href="#no">n</a>'),
    ],
)
def test_the_check_of_pages_refuses_what_is_wrong(wrong):
    text = page("t", [], {"s": ["here"]})
    assert Page(text)
    with pytest.raises((AssertionError, KeyError)):
        read_page(text.replace("<p>here</p>", wrong))
