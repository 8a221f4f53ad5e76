import base64
import io
import re

import pytest
from made.pages import read_page
from matplotlib.figure import Figure
from PIL import Image

from keras_vit.inspection.class_map_pictures import png_bytes
from keras_vit.reports.page import Report, format_value, gallery, panels, picture, table

NASTY = """<script>alert('1')</script>" onload="x" & <b>"""


def red(*words):
    return picture(png_bytes(Image.new("RGB", (4, 3), "red")), *words)


def test_a_page_is_complete_and_lists_its_sections():
    report, field = Report(), red("a red field")
    report.add("One", "First.", field)
    report.draw("One", "drawn", Figure(figsize=(2, 1)), "a figure")
    report.add("Two", table("Scores", ("name", "n"), [("cat", 1), ("dog", None)]))
    report.add("Three")
    report.add("One", gallery([red("a red field", "small"), field]))
    found = read_page(report.page("A model", "It sees."))
    assert found.headings == ["One", "Two", "Three"]
    assert len([tag for tag, _ in found.tags if tag == "a"]) == 3
    parts = ("A model", "It sees.", "One Two Three", "First.", "small", "Scores", "cat 1 dog –")
    places = [found.text.index(part) for part in parts]
    assert places == sorted(places)
    sizes = {"a red field": (4, 3), "a figure": (240, 120)}
    for attributes in found.pictures():
        kind, _, data = attributes["src"].partition(",")
        content = base64.b64decode(data, validate=True)
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(content)) as image:
            assert image.size == sizes[attributes["alt"]]
        assert (content == report.figures["drawn.png"]) is (attributes["alt"] == "a figure")
    assert len(found.pictures()) == 4 and [*report.figures] == ["drawn.png"]


def test_text_in_any_place_is_escaped():
    report, figure = Report(), red(NASTY, NASTY, NASTY)
    report.add(NASTY, NASTY, figure, gallery([figure]), table(NASTY, (NASTY, NASTY), [(NASTY, NASTY)]))
    found = read_page(report.page(NASTY, NASTY))
    # title, h1, paragraph, contents, heading, paragraph, two captions with files, table of 5
    assert found.words == [NASTY] * 15
    assert [attributes["alt"] for attributes in found.pictures()] == [NASTY] * 2
    assert "script" not in {tag for tag, _ in found.tags}


def test_columns_of_numbers_are_aligned_and_have_one_number_of_decimals():
    rows = [("a", 0.5, 1, "x", 0.25), ("b", None, 20_000, 3, None)]
    text = table("t", ("name", "p", "n", "mixed", "q"), rows)
    assert '<td class="number">0.5000</td><td class="number">1</td><td>x</td>' in text
    assert '<td class="number">–</td><td class="number">20,000</td><td>3</td>' in text
    assert '<th scope="row">rate</th><td>1e-06</td>' in table("t", (), [("rate", 1e-6)])


def test_a_folded_table_is_shown_by_its_title():
    report = Report()
    report.add("Configuration", table("Recipe", (), [("steps", 3)], folded=True))
    found = read_page(report.page("A model"))
    order = [tag for tag, _ in found.tags if tag in ("details", "summary", "table", "caption")]
    assert order == ["details", "summary", "table"] and "Recipe steps 3" in found.text
    assert dict(found.tags)["details"] == {}  # closed


def test_figures_fit_a_phone_or_are_scrolled_and_are_on_white_in_the_dark():
    report = Report()
    for inches in (4, 9):
        report.draw("One", f"of_{inches}", Figure(figsize=(inches, 1)), "a figure")
    report.add("One", panels([report.drawn("panel", Figure(figsize=(4, 3)), "a panel")]))
    found = read_page(report.page("A model"))
    boxes = [attributes["class"] for tag, attributes in found.tags if tag == "div"]
    assert boxes == ["plot", "plot wide", "panels", "plot"]
    assert [*report.figures] == ["of_4.png", "of_9.png", "panel.png"]
    assert "prefers-color-scheme: dark" in found.style
    assert re.search(r"\.plot img \{[^}]*background: #fff", found.style)


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (1e-6, "1e-06"),
        (9999, "9999"),
        (-10_000, "-10,000"),
        ((16, (1, None)), "16, 1, –"),
        ([], "–"),
    ],
)
def test_values_are_formatted(value, text):
    assert format_value(value) == text
