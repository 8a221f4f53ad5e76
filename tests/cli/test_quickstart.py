import ast
import json
import pathlib
import re
import time
import types

import numpy as np
import pytest
from made.browser import DESK, PHONE, chromium
from made.pages import read_page
from made.tracing import tracing_warnings
from PIL import Image

from keras_vit.cli import quickstart
from keras_vit.training.named_recipes import RECIPES

README = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
# A fifth of the steps on a quarter of the tokens, with one block.
SIZES, STEPS = {"patch_size": 4, "num_layers": 1}, {"total_steps": 240, "warmup_steps": 24}
ARGUMENTS = ("quickstart", "--workdir", "run")


@pytest.fixture(scope="module")
def short(keras_vit):
    """Run the command in this process, which saves the imports, for a shorter run."""

    def run(folder):
        with pytest.MonkeyPatch.context() as changes:
            changes.chdir(folder)
            changes.setattr(quickstart, "MODEL", quickstart.MODEL | SIZES)
            changes.setitem(RECIPES, "digits", RECIPES["digits"].with_changes(**STEPS))
            with tracing_warnings() as warned:
                done = keras_vit(*ARGUMENTS)
            done.stderr += "".join(warned)
            return done

    return run


@pytest.fixture(scope="module", params=["short", pytest.param("full", marks=pytest.mark.slow)])
def finished(request, script, short, shared_folder):
    """The folder, the process and the result of a quickstart; the full one is the script's, as a user's."""

    def make(folder):
        done = short(folder) if request.param == "short" else script(*ARGUMENTS, cwd=folder)
        output = {name: getattr(done, name) for name in ("returncode", "stdout", "stderr")}
        (folder / "done.json").write_text(json.dumps(output))

    folder = shared_folder(f"quickstart_{request.param}", make)
    done = types.SimpleNamespace(**json.loads((folder / "done.json").read_text()))
    assert (done.returncode, done.stderr) == (0, "")  # nor start-up logs of TensorFlow
    result = json.loads((folder / "run" / "result.json").read_text())
    # The lowest accuracy, and what int8 weights may cost: one digit, or three of the short run.
    result["expected"] = {"full": (0.97, 0.003), "short": (0.8, 0.01)}[request.param]
    return folder, done, result


def test_it_reads_the_digits_and_deploys_what_it_learned(finished):
    folder, _, result = finished
    assert result["test_accuracy"] >= result["expected"][0]
    assert result["test_samples"] >= 300
    assert result["train_seconds"] > 0
    figures = [pathlib.Path(path).stem for path in result["figures"]]
    curves = ["curves-loss", "curves-accuracy", "curves-learning_rate"]
    assert figures == ["confusion", "training-images", *curves, "rollout", "rollout-2", "positions"]
    for path in (result["saved_model"], result["tflite"], result["web"], *result["figures"]):
        assert (folder / path).exists(), path
    for path in result["figures"]:
        with Image.open(folder / path) as figure:
            assert figure.format == "PNG"
            assert min(figure.size) > 200
            assert np.asarray(figure.convert("L")).std() > 5


def test_every_format_reads_the_same_digits(finished):
    _, _, result = finished
    exported = result["export"]
    assert [*exported["formats"]] == ["saved_model", "tflite_float32", "tflite_dynamic_int8", "web"]
    assert exported["images"] == result["test_samples"]
    assert exported["live"]["score"] == result["test_accuracy"]
    for name, row in exported["formats"].items():
        is_int8 = name in ("tflite_dynamic_int8", "web")
        assert row["max_logit_difference"] <= (0.1 if is_int8 else 1e-5)
        lost = result["expected"][1] if is_int8 else 0.003
        assert abs(row["score"] - result["test_accuracy"]) <= lost


def test_it_says_what_it_does_and_ends_with_a_table(finished):
    folder, done, result = finished
    lines = done.stdout.splitlines()
    assert "scanned digits in run" in lines[0]
    start = next(i for i, line in enumerate(lines) if line.startswith("format  "))
    shown = [line.split()[0] for line in lines[start + 1 : start + 6]]
    assert shown == ["live", *result["export"]["formats"]]
    assert f"{result['test_accuracy']:.4f}" in lines[start + 1]
    named = [line.strip() for line in lines[start:] if line.startswith("  ")]
    assert all((folder / path).exists() for path in named) and len(named) == 14


def test_the_report_has_all_there_is_to_see(finished):
    folder, _, result = finished
    page = read_page((folder / "run" / "report.html").read_text())
    assert page.headings == [
        *("Scores", "Confusions", "Worst predictions", "Best predictions"),
        *("What the model saw", "Training"),
        *("Attention rollout", "Patch filters", "Position embeddings", "Configuration"),
        "What next",
    ]
    assert len(page.pictures()) == len(result["figures"]) + 2 * 12
    assert "Not shown: the images are gray" in page.text
    assert f"Test accuracy {result['test_accuracy']:.4f}" in page.text and str(folder) not in page.text


SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll("body *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
  .map(e => parseFloat(getComputedStyle(e).fontSize)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("subcommand", ["quickstart", "inspect"])
def test_a_browser_shows_the_report_without_an_error_or_a_request(subcommand, finished, keras_vit, tmp_path):
    report = finished[0] / "run" / "report.html"
    if subcommand == "inspect":
        given = ("--model", finished[0] / "run", "--dataset", "digits", "--output", tmp_path / "out")
        keras_vit("inspect", *given)
        report = tmp_path / "out" / "report.html"
    messages, requested = [], []
    with chromium() as browser:
        for size in (PHONE, DESK):
            page = browser.new_page(viewport=size)
            page.on("console", lambda message: messages.append(message.text))
            page.on("pageerror", lambda error: messages.append(str(error)))
            page.on("request", lambda request: requested.append(request.url))
            page.goto(report.as_uri())
            assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
            assert page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
            assert page.evaluate(SMALLEST_TEXT) >= 12
    assert messages == []
    assert {url for url in requested if not url.startswith("data:")} == {report.as_uri()}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["scenes", "depth", "detect", "keypoints"])
def test_a_phone_shows_the_report_of_a_run_of_each_kind(recipe, keras_vit, tmp_path):
    run = ("--recipe", f"digits_{recipe}", "--dataset", "digits_scenes", "--workdir", tmp_path / "run")
    keras_vit("finetune", *run, "--total_steps", 2, "--set", "warmup_steps=1", "--set", "eval_every=2")
    with chromium() as browser:
        page = browser.new_page(viewport=PHONE)
        page.goto((tmp_path / "run" / "report.html").as_uri())
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
        assert page.evaluate(SMALLEST_TEXT) >= 12


# Strokes of digits, in fractions of the drawing field.
DRAWN = {
    "1": [[(0.4, 0.25), (0.52, 0.15), (0.52, 0.85)]],
    "4": [[(0.55, 0.12), (0.25, 0.6), (0.75, 0.6)], [(0.58, 0.4), (0.58, 0.88)]],
    "7": [[(0.28, 0.15), (0.72, 0.15), (0.45, 0.87)]],
}


def draw(page, strokes):
    box = page.locator("#drawing").bounding_box()
    for stroke in strokes:
        first, *others = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*first)
        page.mouse.down()
        for point in others:
            page.mouse.move(*point, steps=4)
        page.mouse.up()
    page.evaluate("last")


@pytest.mark.slow
@pytest.mark.parametrize("finished", ["full"], indirect=True)  # The short run's model is too inaccurate.
def test_its_page_reads_drawn_digits_within_two_seconds_of_opening(finished):
    folder, _, result = finished
    file = folder / result["web"] / "index.html"
    assert file.stat().st_size <= 5e6
    requested = []
    with chromium() as browser:
        for size in (PHONE, DESK):
            context = browser.new_context(viewport=size, offline=True, has_touch=size is PHONE)
            page = context.new_page()
            page.on("request", lambda request: requested.append(request.url))
            start = time.perf_counter()
            page.goto(file.as_uri())
            page.evaluate("ready")
            seconds = time.perf_counter() - start  # It has then classified an image, to check itself.
            for digit, strokes in DRAWN.items():
                draw(page, strokes)
                assert page.locator("#classes .label").first.inner_text() == digit
                milliseconds = page.evaluate("result.milliseconds")
                page.click("#clear")
            assert seconds + milliseconds / 1e3 <= 2
            assert page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
            assert page.evaluate(SMALLEST_TEXT) >= 12
    assert {url for url in requested if not url.startswith(("data:", "blob:"))} == {file.as_uri()}


@pytest.mark.parametrize("finished", ["short"], indirect=True)
def test_started_again_it_prints_the_result_and_changes_nothing(finished, short):
    folder, first, _ = finished

    def files():
        return {path: path.stat().st_mtime_ns for path in pathlib.Path(folder).rglob("*")}

    before, start = files(), time.perf_counter()
    done = short(folder)
    assert time.perf_counter() - start < 40 and done.stderr == ""
    assert files() == before
    assert done.stdout.endswith(first.stdout[first.stdout.index("format  ") :])


def test_without_a_workdir_it_takes_the_first_number_that_is_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "quickstart-1").mkdir(parents=True)
    (tmp_path / "runs" / "quickstart-3").mkdir()
    assert str(quickstart._new_folder()) == "runs/quickstart-2"


@pytest.mark.slow
@pytest.mark.parametrize("finished", ["full"], indirect=True)
def test_readme_shows_what_the_model_of_its_run_finds(finished, monkeypatch, tmp_path):
    section = README.partition("## Without a download\n")[2]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/quickstart-1").symlink_to(finished[0] / "run")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(example, names)
    found, shown = names["found"], ast.literal_eval(example.split("# ")[-1])
    assert len(found) == len(shown) and found[0][0] == shown[0][0]
    assert found[0][1] == pytest.approx(shown[0][1], abs=0.03)
