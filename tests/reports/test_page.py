import base64
import io
import os
import re

import numpy as np
import pytest
from made.browser import PHONE, chromium
from made.pages import read_page
from made.tables import by_table
from matplotlib.figure import Figure
from PIL import Image

from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.reports.page import (
    MAX_PATCHES,
    Report,
    code,
    explorer,
    format_value,
    gallery,
    panels,
    picture,
    table,
)

NASTY = """<script>alert('1')</script>" onload="x" & <b>"""


def red(*words):
    return picture(image_bytes(Image.new("RGB", (4, 3), "red")), *words)


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


@pytest.mark.parametrize("rows, columns, every", [(2, 3, 1), (50, 60, 2)])
def test_an_explorer_has_the_cosines_of_every_patch_that_can_be_chosen(rows, columns, every):
    vectors = np.random.default_rng(0).normal(size=(rows * columns, 8)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = np.clip(vectors @ vectors.T, -1, 1).reshape(rows, columns, rows, columns)
    report = Report()
    report.add("One", explorer(np.full((4, 6, 3), 0.5, "float32"), similarity, NASTY))
    found = read_page(report.page("A model"))
    (attributes,) = (attributes for tag, attributes in found.tags if tag == "figure")
    bytes_of = base64.b64decode(attributes["data-cosines"], validate=True)
    expected = similarity[::every, ::every, ::every, ::every]
    assert (int(attributes["data-rows"]), int(attributes["data-columns"])) == expected.shape[:2]
    assert expected[0, 0].size <= MAX_PATCHES
    cosines = np.frombuffer(bytes_of, "uint8").reshape(expected.shape) / 127.5 - 1
    np.testing.assert_allclose(cosines, expected, atol=0.5 / 127.5 + 1e-6)
    assert [picture["alt"] for picture in found.pictures()] == [NASTY]


@pytest.mark.slow
def test_a_click_and_the_arrow_keys_choose_a_patch_without_a_network(tmp_path):
    report, identity = Report(), np.eye(6, dtype="float32").reshape(2, 3, 2, 3)
    report.add("One", explorer(np.full((20, 30, 3), 0.5, "float32"), identity, "a field"))
    (tmp_path / "page.html").write_text(report.page("A model"))
    with chromium() as browser:
        tab, requests, errors = browser.new_page(), [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto((tmp_path / "page.html").as_uri())

        def chosen():
            words = tab.locator("output").inner_text()
            opaque = "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 3, 2).data]"
            return re.findall(r"row (\d), column (\d)", words)[0], tab.evaluate(opaque)[3::4]

        assert chosen() == (("1", "1"), [0, 0, 0, 0, 220, 0])
        box = tab.locator(".explorer div").bounding_box()
        tab.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.2)
        assert chosen() == (("0", "2"), [0, 0, 220, 0, 0, 0])
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowDown")
        assert chosen() == (("1", "2"), [0, 0, 0, 0, 0, 220])
    assert not errors and all(url.startswith(("file:", "data:")) for url in requests)


@pytest.mark.slow
def test_a_phone_shows_numbers_beside_long_names_and_breaks_no_word_of_a_command(tmp_path):
    report, name = Report(), "great_spotted_woodpecker_of_northern_europe"
    report.add("One", table("Scores", ("name", "samples", "accuracy"), [(name, 2, 0.5), ("rose", 3, 1.0)]))
    command = "keras-vit export --model runs/a --formats tflite --output phone --dataset folder:flowers"
    report.add("One", table("Next", ("for", "command"), [("files for phones", code(command))]))
    (tmp_path / "page.html").write_text(report.page("A model"))
    with chromium() as browser:
        tab = browser.new_page(viewport=PHONE)
        tab.goto((tmp_path / "page.html").as_uri())
        rights = "[...document.querySelectorAll('td')].map(e => e.getBoundingClientRect().right)"
        assert max(tab.evaluate(rights)) <= PHONE["width"]
        lines = "[...document.querySelectorAll('code span')].map(e => e.getClientRects().length)"
        assert tab.evaluate(lines) == [1] * len(command.split())


def test_text_in_any_place_is_escaped():
    report, figure = Report(), red(NASTY, NASTY, NASTY)
    report.add(NASTY, NASTY, figure, gallery([figure]), table(NASTY, (NASTY, NASTY), [(NASTY, NASTY)]))
    found = read_page(report.page(NASTY, NASTY))
    # title, h1, paragraph, contents, heading, paragraph, two captions with files, table of 5
    assert found.words == [NASTY] * 15
    assert [attributes["alt"] for attributes in found.pictures()] == [NASTY] * 2
    assert "script" not in {tag for tag, _ in found.tags}


def test_names_of_files_that_are_not_utf8_are_shown():
    report = Report()
    report.add("Files", os.fsdecode(b"caf\xe9.png"))
    assert "caf\ufffd.png" in report.page("A model").encode().decode()


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


@by_table(
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
