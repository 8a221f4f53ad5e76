import base64
import dataclasses
import io

import pytest
from made.pages import Page, read_page
from matplotlib.figure import Figure
from PIL import Image

from keras_vit.cli.page import Picture, Section, Table, page, png_of, shown

NASTY = """<script>alert('1')</script>" onload="x" & <b>"""


def picture(caption=""):
    file = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(file, "PNG")
    return Picture(file.getvalue(), "a red field", caption)


FULL_PAGE = [
    Section("One", ("First.", "Second."), figures=(picture(),), gallery=(picture("small"), picture())),
    Section("Two", tables=(Table("Scores", ("name", "n"), [("cat", 1), ("dog", None)]), Table("t", (), []))),
    Section("Three"),
]


def test_a_page_is_whole_and_lists_its_sections():
    found = read_page(page("A model", ["It sees."], FULL_PAGE))
    assert found.headings == ["One", "Two", "Three"]
    links = [attributes["href"] for tag, attributes in found.tags if tag == "a"]
    assert links == ["#s1", "#s2", "#s3"]
    words = found.text
    parts = ("A model", "It sees.", "One Two Three", "First.", "small", "Scores", "cat 1 dog –")
    places = [words.index(part) for part in parts]
    assert places == sorted(places)


def test_pictures_are_inside_the_file():
    pictures = read_page(page("t", [], FULL_PAGE)).pictures()
    assert len(pictures) == 3
    for attributes in pictures:
        kind, _, data = attributes["src"].partition(",")
        assert kind == "data:image/png;base64" and attributes["alt"] == "a red field"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            assert image.size == (4, 3)


def test_whatever_text_stands_in_any_place_stays_text():
    table = Table(NASTY, (NASTY, NASTY), [(NASTY, NASTY)])
    nasty = dataclasses.replace(picture(NASTY), alt=NASTY)
    sections = [Section(NASTY, (NASTY,), figures=(nasty,), gallery=(nasty,), tables=(table,))]
    found = read_page(page(NASTY, [NASTY], sections))
    assert found.headings == [NASTY]
    # title, h1, paragraph, contents; heading, words, two captions; the table's title, columns and row
    assert found.words == [NASTY] * 13
    assert [attributes["alt"] for attributes in found.pictures()] == [NASTY] * 2
    assert "script" not in {tag for tag, _ in found.tags}


def test_columns_of_numbers_are_aligned_with_as_many_decimals_and_others_are_as_they_are():
    rows = [("a", 0.5, 1, "x", 0.25), ("b", None, 20_000, 3, None)]
    text = page("t", [], [Section("s", tables=(Table("t", ("name", "p", "n", "mixed", "q"), rows),))])
    read_page(text)
    assert '<td class="number">0.5000</td><td class="number">1</td><td>x</td>' in text
    assert '<td class="number">–</td><td class="number">20,000</td><td>3</td>' in text
    assert '<th scope="col">name</th><th scope="col" class="number">p</th>' in text
    pairs = page("t", [], [Section("s", tables=(Table("t", (), [("rate", 1e-6)]),))])
    assert '<th scope="row">rate</th><td>1e-06</td>' in pairs


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
def test_values_are_shown_for_people(value, text):
    assert shown(value) == text


def test_a_figure_becomes_a_png():
    with Image.open(io.BytesIO(png_of(Figure(figsize=(2, 1))))) as image:
        assert (image.format, image.size) == ("PNG", (240, 120))


@pytest.mark.parametrize(
    "wrong",
    [
        '<a href="https://example.org">there</a>',
        '<img src="figure.png" alt="a">',
        '<img src="data:,">',
        "<script>1</script>",
        "<p>never closed",
        "</p>",
        '<p onclick="x">p</p>',
        '<a href="#nowhere">n</a>',
    ],
)
def test_the_check_of_pages_sees_what_is_wrong(wrong):
    text = page("t", [], [Section("s", ("here",))])
    assert Page(text)
    with pytest.raises((AssertionError, KeyError)):
        read_page(text.replace("<p>here</p>", wrong))
