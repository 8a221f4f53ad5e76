"""Web pages: their files, and in Chromium (slow) what they compute."""

import base64
import gzip
import itertools
import json
import pathlib
import re

import numpy as np
import pytest
from made.browser import CAMERA, DESK, PHONE, WEBGPU, chromium, opened, served
from made.exports import NAMES, pixels, shared_model
from made.pages import Page
from PIL import Image
from reference.comparing import assert_close
from reference.small import HYBRID, NO_TRANSFORMER, one_block, run_live

from keras_vit import tasks
from keras_vit.export import web
from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.verify import normalize_as_exports_do
from keras_vit.inspection import attention_rollout
from keras_vit.preprocessing import Preprocessing

TITLE = "Ants & </title> <bees>"


@pytest.fixture(scope="session")
def page(exported):
    """The page's folder in `exported`."""
    return exported / "web"


@pytest.fixture(scope="session")
def single(saved_model, tmp_path_factory):
    """A page in one file, in float32, with a field to draw on and attention."""
    options = {"precision": "float32", "title": TITLE, "drawing": 8, "single_file": True, "attention": True}
    return web.export_web(saved_model, tmp_path_factory.mktemp("single") / "web", **options)


def text_of(folder):
    return (folder / "index.html").read_text(encoding="utf-8")


def element(text, name):
    return re.search(rf'<script [^>]*id="{name}"[^>]*>(.*?)</script>', text, re.DOTALL)[1]


def facts_of(folder):
    return json.loads(element(text_of(folder), "page"))


def test_a_folder_holds_the_page_the_model_the_runtime_and_its_license(page):
    names = {"index.html", "model.tflite", "litert_wasm.wasm.gz", "litert_wasm.js.gz", "LICENSE.txt"}
    assert {file.name for file in page.iterdir()} == names
    assert {*facts_of(page)["files"].values()} < names
    assert gzip.decompress((page / "litert_wasm.wasm.gz").read_bytes()).startswith(b"\0asm")
    assert b"ModuleFactory" in gzip.decompress((page / "litert_wasm.js.gz").read_bytes())
    assert "Apache License" in (page / "LICENSE.txt").read_text()
    assert web.LITERT_VERSION in text_of(page)


@pytest.mark.slow
def test_a_single_file_holds_them_all(single, page):
    assert [file.name for file in single.iterdir()] == ["index.html"]
    text = text_of(single)
    for name, file in facts_of(single)["files"].items():
        content = gzip.decompress(base64.b64decode(element(text, f"asset-{name}"), validate=True))
        if name == "model":
            assert content[4:8] == b"TFL3"
        else:
            assert content == gzip.decompress((page / file).read_bytes())
    assert "Apache License" in text


@pytest.mark.parametrize("name", ["page", "single"])
def test_a_page_names_no_other_host_and_may_request_nothing_from_one(name, request):
    text = text_of(request.getfixturevalue(name))
    assert {*re.findall(r"https?://[\w.]*", text)} <= {"http://www.apache.org"}  # in the license
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    allowed = {rule.split()[0]: {*rule.split()[1:]} for rule in policy.split(";")}
    assert allowed["default-src"] == {"'none'"} and allowed["connect-src"] == {"'self'", "data:"}
    sources = [source for of_kind in allowed.values() for source in of_kind]
    assert not [source for source in sources if "*" in source or "." in source]
    assert not re.search(r"<(link|img|script|iframe)[^>]*\b(src|href)=\"(?!data:)", text)
    filled = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\{[{%#]|[}%#]\}", filled)  # nothing is left to fill in


def test_the_html_is_whole_and_labeled(single):
    found = Page(text_of(single))
    assert found.words[0] == TITLE and found.tags[0] == ("html", {"lang": "en"})
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len({*ids})
    labeled = {attributes["for"] for tag, attributes in found.tags if tag == "label" and "for" in attributes}
    assert labeled == {"file", "accelerator"} <= {*ids}
    for tag, attributes in found.tags:
        if tag == "canvas":
            assert "aria-label" in attributes or "aria-hidden" in attributes
    of_tasks = pathlib.Path(tasks.__file__).parent.glob("*/page.js")
    scripts = "".join(file.read_text() for file in [*web.PARTS.glob("*.js"), *of_tasks])
    used = re.findall(r'\$\("([\w-]+)"\)', scripts)
    assert {*used} <= {*ids} | {"asset-"}


def test_the_page_knows_the_preprocessing_and_the_classes(page, single, model):
    facts, prepare = facts_of(page), model.preprocessing
    assert facts["preprocessing"] == {
        **{"resize": "crop", "interpolation": "bicubic", "antialias": True},
        **{"image_size": [16, 16], "channels": 3, "before_crop": [*prepare.before_crop]},
        "crop_rounding": "down",
    }
    assert facts["labels"] == [*NAMES] and facts["grid"] == [2, 2]
    assert (facts["drawing"], facts_of(single)["drawing"]) == (None, 8)


def test_the_page_knows_the_outputs_for_one_image(single, model):
    image = web.check_input(describe(model))
    assert image.shape == (1, 16, 16, 3) and 0.45 < image.mean() < 0.55 and image.std() > 0.25
    expected = [0, 2654435761 / 2**32, 2 * 2654435761 % 2**32 / 2**32]
    np.testing.assert_allclose(image.ravel()[:3], expected, rtol=1e-6)
    check = facts_of(single)["check"]
    assert [*check] == ["logits"] and check["logits"]["step"] == 1
    assert_close(np.array([check["logits"]["values"]]), run_live(model, image), 1e-5)


def test_a_page_is_opened_like_its_model(page, single, model):
    images = pixels(3)
    assert_close(open_exported(single).predict_on_batch(images), run_live(model, images), 1e-5)
    assert_close(open_exported(page).predict_on_batch(images), run_live(model, images), 0.1)


def test_attention_rollout_is_an_output_where_it_is_asked_for(page, single, model):
    images = pixels(2)
    assert "rollout" not in open_exported(page).outputs(images)
    found = open_exported(single).outputs(images)["rollout"]
    expected = attention_rollout(model, normalize_as_exports_do(model, images)).reshape(2, -1)
    assert_close(found / found.sum(axis=1, keepdims=True), expected, 1e-5)
    with pytest.raises(ValueError, match="attention rollout needs an encoder"):
        without = one_block(**{**HYBRID, **NO_TRANSFORMER, "resnet": (1,)})
        web.check_model(describe(without), attention=True)


def test_a_damaged_page_is_refused(single, tmp_path):
    longer = text_of(single).replace('id="asset-model">', 'id="asset-model">AAAA').encode()
    for content in (b"<h1>A report</h1>", "größe".encode("latin-1"), longer):
        (tmp_path / "index.html").write_bytes(content)
        with pytest.raises(ValueError, match="is damaged, or cannot be opened"):
            open_exported(tmp_path)


def test_a_page_unpacks_no_larger_model_than_one_can_have(single, monkeypatch):
    monkeypatch.setattr(web, "MAX_SINGLE_FILE", 1000)
    with pytest.raises(ValueError, match="is damaged.*more than 1,000 bytes"):
        open_exported(single)


def test_what_no_page_can_show_is_refused(saved_model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="channels of a web page's pictures must be one of .*; got 5"):
        web.check_model(describe(one_block(in_channels=5)))
    monkeypatch.setattr(web, "MAX_SINGLE_FILE", 1000)
    with pytest.raises(ValueError, match="at most 1,000 bytes; got one of .*: export a folder"):
        web.export_web(saved_model, tmp_path / "web", single_file=True)
    assert [*tmp_path.iterdir()] == []


# ---- In Chromium


def result_of(tab, file):
    tab.evaluate("window.result = null")
    tab.set_input_files("#file", file)
    tab.evaluate("last")
    found = tab.evaluate("result && {...result, input: Array.from(result.input), picture: null}")
    assert found, tab.inner_text("#status")
    return found


def photo(path, size=(41, 30)):
    """A picture without noise, so that its resized forms differ little."""
    small = np.random.default_rng(1).integers(0, 256, (5, 7, 3), "uint8")
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


LUMINANCE = """
element => {
  const light = color => color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const colors = [getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor];
  const [a, b] = colors.map(light).sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("size, scheme", [(PHONE, "light"), (DESK, "dark")], ids=["phone", "desk"])
def test_a_browser_computes_what_python_does(size, scheme, page, single, tmp_path):
    """Over HTTP, and offline from the file system, from pictures whose pixels both decode alike."""
    file = photo(tmp_path / "photo.png")
    with chromium() as browser, served(page) as url:
        for folder, address, offline in ((page, f"{url}/", False), (single, None, True)):
            address = address or (single / "index.html").as_uri()
            options = {"viewport": size, "color_scheme": scheme, "offline": offline}
            tab, requests, errors = opened(browser, address, **options)
            found = result_of(tab, file)
            exported = open_exported(folder)
            images = exported.preprocessing([file])
            np.testing.assert_allclose(found["input"], images.ravel(), atol=2e-6)
            assert_close(np.array([found["outputs"]["logits"]]), exported.predict_on_batch(images), 1e-5)
            names = tab.locator("#classes .label").all_inner_texts()
            assert names == [name for name, _ in exported.classify([file], top=5)[0]]
            assert re.search(r"[\d.]+ ms on WebAssembly", tab.inner_text("#status"))
            assert tab.is_visible("#attention") is tab.is_visible("#overlay") is (folder is single)
            if folder is single:
                rollout = exported.outputs(images)["rollout"]
                assert_close(np.array([found["outputs"]["rollout"]]), rollout, 1e-5)
                tab.uncheck("#overlay")
                assert tab.is_hidden("#attention")
            assert tab.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
            assert min(tab.locator(s).evaluate(LUMINANCE) for s in ("h1", "#status", "footer")) >= 4.5
            own = url if not offline else address
            assert all(request.startswith((own, "blob:", "data:")) for request in requests)
            assert not errors


GRID = {
    "resize": ("squash", "crop", "squash_crop", "pad"),
    "crop_fraction": (0.875, 1.0),
    "interpolation": ("bilinear", "bicubic", "nearest"),
    "antialias": (False, True),
    "image_size": ((16, 16), (37, 53), (100, 60)),
}


@pytest.mark.slow
def test_pictures_are_prepared_as_in_python(page, tmp_path):
    pictures = [photo(tmp_path / f"{size}.png", size) for size in ((410, 300), (33, 200), (16, 16))]
    with chromium() as browser, served(page) as url:
        tab, *_ = opened(browser, url)
        for file in pictures:
            result_of(tab, file)
            for values in itertools.product(*GRID.values()):
                options = dict(zip(GRID, values))
                options["crop_rounding"] = "even" if options["antialias"] else "down"
                channels = 1 if options["interpolation"] == "nearest" else 3
                prepare = Preprocessing(**options, mean=(0,) * channels, std=(1,) * channels)
                given = {**options, "channels": channels, "before_crop": prepare.before_crop}
                found = tab.evaluate("o => Array.from(preprocess(result.picture, o))", given)
                np.testing.assert_allclose(found, prepare([file]).ravel(), atol=1e-5, err_msg=str(given))


@pytest.mark.slow
def test_pictures_are_dropped_pasted_and_taken_by_the_camera(single, tmp_path):
    content = base64.b64encode(photo(tmp_path / "photo.png").read_bytes()).decode()
    transfer = """
    async (kind, content) => {
      const data = new DataTransfer(), bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
      data.items.add(new File([bytes], "photo.png", {type: "image/png"}));
      window.result = null;
      const options = {bubbles: true, cancelable: true};
      document.body.dispatchEvent(kind === "drop"
        ? new DragEvent("drop", {...options, dataTransfer: data})
        : new ClipboardEvent("paste", {...options, clipboardData: data}));
      await last;
      return result.outputs.logits;
    }
    """
    with chromium(*CAMERA) as browser:
        tab, _, errors = opened(browser, (single / "index.html").as_uri(), permissions=["camera"])
        expected = result_of(tab, tmp_path / "photo.png")["outputs"]["logits"]
        for kind in ("drop", "paste"):
            assert tab.evaluate(f"content => ({transfer})('{kind}', content)", content) == expected
        tab.evaluate("window.result = null")
        tab.click("#camera")
        tab.evaluate("last")
        assert tab.is_visible("#video")
        tab.click("#shutter")
        tab.evaluate("last")
        assert tab.evaluate("result.picture.width") > 100 and tab.is_hidden("#video")
        (tmp_path / "text.png").write_text("no picture")
        tab.set_input_files("#file", tmp_path / "text.png")
        tab.evaluate("last")
        assert tab.inner_text("#status") == "This browser cannot read that file as a picture."
        assert tab.locator("#classes li").count() == 0 and tab.is_hidden("#frame")
        assert not errors


@pytest.mark.slow
def test_a_device_that_computes_something_else_is_not_used(single, tmp_path):
    text = text_of(single)
    values = re.search(r'"values": \[(.*?)\]', text)[1]
    wrong = ", ".join(str(-float(value)) for value in values.split(", "))
    (tmp_path / "index.html").write_text(text.replace(values, wrong))
    with chromium() as browser:
        tab, *_ = opened(browser, (tmp_path / "index.html").as_uri())
        assert tab.inner_text("#status") == "it computes something else than the exported model"
        tab.set_input_files("#file", photo(tmp_path / "photo.png"))
        tab.evaluate("last")
        assert tab.inner_text("#status") == "The model is not loaded."


@pytest.mark.slow
def test_outputs_that_are_all_zero_are_equal_probabilities(tmp_path):
    model = one_block()
    for weight in model.get_layer("head").weights:
        weight.assign(0 * weight)
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    page = web.export_web(saved, tmp_path / "web", precision="float32", single_file=True)
    assert {*facts_of(page)["check"]["logits"]["values"]} == {0}
    with chromium() as browser:
        tab, *_ = opened(browser, (page / "index.html").as_uri())
        assert tab.inner_text("#status") == "Ready, on WebAssembly."
        found = result_of(tab, photo(tmp_path / "photo.png"))["outputs"]["probabilities"]
        np.testing.assert_allclose(found, 1 / len(found), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["token", "gap", "map"])
@pytest.mark.parametrize("precision, bound", [("float32", 1e-4), ("float16", 5e-3), ("dynamic_int8", 0.1)])
def test_web_gpu_is_used_where_there_is_one(pooling, precision, bound, tmp_path):
    saved = export_saved_model(one_block(pooling=pooling), tmp_path / "1", warmup=())
    options = {"precision": precision, "single_file": True, "attention": True}
    page = web.export_web(saved, tmp_path / "web", **options)
    file = photo(tmp_path / "photo.png")
    with chromium(*WEBGPU) as browser:
        tab, *_ = opened(browser, (page / "index.html").as_uri())
        assert tab.inner_text("#status") == "Ready, on WebGPU."
        assert tab.locator("#accelerator option").all_inner_texts() == ["WebGPU", "WebAssembly"]
        exported, found = open_exported(page), result_of(tab, file)
        assert found["accelerator"] == "webgpu"
        expected = exported.outputs(exported.preprocessing([file]))
        for name in ("logits", "rollout"):
            assert_close(np.array([found["outputs"][name]]), expected[name], bound)
        tab.select_option("#accelerator", "wasm")
        tab.evaluate("last")
        assert tab.evaluate("result.accelerator") == "wasm"


KINDS = {
    "any size": ({"image_size": (None, None), "position_grid": (4, 4)}, {"image_size": (16, 24)}),
    "gray": ({"in_channels": 1}, {}),
    "multi_label": ({}, {"task": "multi_label"}),
    "regression": ({"num_classes": 6, "class_names": [*"abcdef"]}, {"task": "regression"}),
    "gap": ({"pooling": "gap"}, {}),
    "map": ({"pooling": "map", "num_registers": 2}, {}),
    "hybrid": ({**HYBRID, "resnet": (1, 1)}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_gets_a_page(kind, tmp_path):
    options, more = KINDS[kind]
    chosen = {"precisions": ("float32",), "single_file": True, "attention": True}
    report = export_folder(one_block(**options), tmp_path / "out", ("web",), **chosen, **more)
    assert report["formats"]["web"]["max_logit_difference"] <= 1e-5
    file, exported = photo(tmp_path / "photo.png"), open_exported(tmp_path / "out" / "web")
    with chromium() as browser:
        tab, _, errors = opened(browser, (tmp_path / "out/web/index.html").as_uri())
        found = result_of(tab, file)["outputs"]
        expected = exported.outputs(exported.preprocessing([file]))
        assert {*expected} <= {*found} and not errors
        for name, values in expected.items():
            assert_close(np.array([found[name]]), values, 1e-5)
        names = tab.locator("#classes .label").all_inner_texts()
        assert sorted(names) == sorted(exported.class_names or "01234")


@pytest.mark.slow
def test_another_precision_is_taken_where_dynamic_int8_is_not_wanted(copied, tmp_path):
    export_folder(shared_model(), tmp_path / "out", ("web",), precisions=("float16", "float32"))
    assert "LiteRT float16" in text_of(tmp_path / "out" / "web")
