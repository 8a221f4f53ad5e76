"""The code blocks of README and the manual run, and the manual builds without resources from other hosts."""

import ast
import dataclasses
import doctest
import html
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import urllib.parse

import pytest
from made.blocks import run_page
from made.browser import PHONE, chromium
from made.folders import write_boxes, write_masks
from made.scripts import script
from made.tokenizers import FILES

from keras_vit import ImageTextModel, TextPreprocessing, VisionTransformer, from_pretrained, save_weights
from keras_vit.cli.parser import SUBCOMMANDS, actions, parser
from keras_vit.data import parquet_samples
from keras_vit.data.files import MOST_NUMBERS
from keras_vit.data.remote_files import LARGEST_UNKNOWN
from keras_vit.data.tar_headers import MAX_EXTENDED
from keras_vit.export.tar_archive import MAX_OVERHEAD
from keras_vit.http_requests import SLOWEST
from keras_vit.models.vit.schema import OPTIONS
from keras_vit.preprocessing import MAX_BYTES, MAX_PIXELS
from keras_vit.preprocessing.text_preprocessing import LARGEST
from keras_vit.training import RECIPES, Recipe
from keras_vit.variants import cost
from keras_vit.weights.array_files import EXPANSION, UNPACKED
from keras_vit.weights.cache import LARGEST_SIDECAR
from keras_vit.weights.catalogue import CATALOGUE, find

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}
COMMANDS = "".join(text for page, text in TEXTS.items() if page.startswith("docs/cli"))
# Commands that need a network, other programs or data of their own, output, and code of other packages.
NOT_RUN = ("bash", "text", "py")
PACKAGES = ("layers", "models", "weights", "data", "training", "evaluation", "inspection", "export")


def blocks(text):
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def published_files(folder):
    """Files by the names of published checkpoints, of small models with the layouts of these."""
    sizes = {"image_size": 224, "hidden_size": 24, "num_layers": 6, "mlp_dim": 48, "num_heads": 3}
    (folder / "google").mkdir(parents=True)
    names = tuple(f"class {number}" for number in range(1000))
    classifier = VisionTransformer(patch_size=16, **sizes, num_classes=1000, class_names=names)
    save_weights(classifier, folder / "google/vit-base-patch16-224", "huggingface")
    classifier.save(folder / "timm.keras")
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    for name, content in FILES["siglip"]().items():
        (tokenizer / name).write_bytes(content)
    texts = TextPreprocessing.from_files(tokenizer)
    sizes |= {"num_layers": 1}
    image = VisionTransformer(patch_size=16, **sizes, pooling="map")
    text = {**sizes, "vocabulary_size": texts.vocabulary_size, "length": texts.length}
    del text["image_size"]
    projection = {"text_projection": sizes["hidden_size"], "projection_bias": True}
    towers = ImageTextModel(image, text, **projection, text_preprocessing=texts)
    save_weights(towers, folder / "google/siglip-base-patch16-224", "huggingface")
    save_weights(towers, folder / "siglip.npz", "big_vision")
    files = [path for path in folder.rglob("*") if path.is_file() and tokenizer not in path.parents]
    files = {str(path.relative_to(folder)): path for path in files}
    return {"vit_base_patch16_224.augreg_in21k_ft_in1k/model.keras": files.pop("timm.keras"), **files}


def run_pages(pages, folder):
    """The folder of each page after all its blocks have run, and the traceback of a block that failed.

    The checkpoint has `pre_logits`, as the first published ones do, ImageNet's class count without class
    names, and an image size that no page names. A small model with random weights is DINOv3.
    """
    model = from_pretrained(ROOT / "tests/golden/token_rep.npz", image_size=40, num_classes=1000)
    checkpoint = save_weights(model, folder / "other.npz", "vit_jax")
    model.save(folder / "other.keras")
    sizes = {"patch_size": 16, "hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 3}
    dinov3 = {"rotary": "dinov3", "position_embedding": "none", "num_registers": 4, "layer_scale": 0.1}
    backbone = VisionTransformer(256, **sizes, **dinov3, pooling="gap", class_token=True)
    backbone.save(folder / "backbone.keras")
    files = {
        **published_files(folder / "published"),
        "ViT-B_16.npz": checkpoint,
        "runs/quickstart-1/model.keras": folder / "other.keras",
        # A path takes precedence over the published name.
        "vit_small_patch16_dinov3.lvd1689m/model.keras": folder / "backbone.keras",
        "vit_small_patch14_dinov2.lvd142m/model.keras": folder / "backbone.keras",
    }
    found = {}
    for page in pages:
        plan = [(language, block) for language, block in blocks(TEXTS[page]) if language not in NOT_RUN]
        found[page] = folder / page, run_page(folder / page, plan, files)
    return found


@pytest.mark.slow
@pytest.mark.tensorflow_only("README trains and exports")
def test_every_block_of_readme_runs(tmp_path, monkeypatch):
    training = "--workdir runs/flowers\n"
    assert training in TEXTS["README.md"]
    shorter = training.replace("\n", " --image_size 64 --total_steps 4 --batch_size 8\n")
    monkeypatch.setitem(TEXTS, "README.md", TEXTS["README.md"].replace(training, shorter))
    ((folder, failure),) = run_pages(["README.md"], tmp_path).values()
    assert failure is None, failure
    assert (folder / "deployed/saved_model/1/saved_model.pb").exists()
    assert "rose" in (folder / "flowers.csv").read_text()


@pytest.mark.slow
@pytest.mark.tensorflow_only("README trains")
@pytest.mark.parametrize("recipe, write", [("segment", write_masks), ("detect", write_boxes)])
def test_a_training_of_readme_runs(recipe, write, tmp_path):
    """With a small model in place of the published one, and two steps of small images."""
    (command,) = re.findall(rf"^keras-vit finetune --recipe {recipe} .+", TEXTS["README.md"], re.MULTILINE)
    weights, dataset, workdir = re.search(
        r"--weights (\S+) --dataset folder:(\S+) --workdir (\S+)", command
    ).groups()
    sizes = {"hidden_size": 24, "num_layers": 4, "mlp_dim": 48, "num_heads": 3}
    VisionTransformer(32, 8, **sizes).save(tmp_path / "small.keras")
    write(tmp_path / "page" / dataset)
    command = command.replace(weights, "small.keras") + " --total_steps 2 --batch_size 2 --image_size 32"
    failure = run_page(tmp_path / "page", [("", command)], {"small.keras": tmp_path / "small.keras"})
    assert failure is None, failure
    assert (tmp_path / "page" / workdir / "model.keras").is_file()


@pytest.mark.slow
@pytest.mark.tensorflow_only("the pages train and export")
def test_every_block_of_the_manual_runs(tmp_path):
    found = run_pages([page for page in PAGES if page != "README.md"], tmp_path)
    failures = [failure for _, failure in found.values() if failure is not None]
    assert not failures, "\n".join(failures)
    assert (found["docs/checkpoints.md"][0] / "vit_folder/config.json").exists()
    assert (found["docs/training.md"][0] / "runs/flowers/report.html").exists()
    printed = (found["docs/features.md"][0] / "out.txt").read_text()
    scores = re.findall(r"^([\d.]+)% (?:with|of)", printed, re.MULTILINE)
    assert len(scores) == 3 and all(float(score) > 25 for score in scores)  # chance is 10


def test_every_page_but_that_of_the_paper_has_code_to_run():
    used = {page: [language for language, _ in blocks(text)] for page, text in TEXTS.items()}
    assert all(language in ("", "python", *NOT_RUN) for found in used.values() for language in found)
    without = [page for page, languages in used.items() if not {"", "python"} & {*languages}]
    assert without == ["docs/paper.md"]  # Its runs are too large.


def test_the_code_and_names_of_other_packages_are_beside_ours():
    page = TEXTS["docs/coming_from.md"]
    for language, block in (*blocks(page), *blocks(TEXTS["docs/coming_from_tools.md"])):
        if language == "py":
            ast.parse(block)
    tables = page.partition("## Names of hyperparameters")[2].split("\n\n")
    options = {*OPTIONS}, {field.name for field in dataclasses.fields(Recipe)}
    for table, known in zip([table for table in tables if table.startswith("|")], options, strict=True):
        names = re.findall(r"^\| `(\w+)", table, re.MULTILINE)
        assert len(names) > 12 and {*names} <= known


def test_every_command_that_is_shown_is_parsed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, options in re.findall(
        r"^# (\w+\.yaml)\n(.+?)^```", TEXTS["docs/cli.md"], re.MULTILINE | re.DOTALL
    ):
        (tmp_path / name).write_text(options)
    text = "\n".join(
        block for text in TEXTS.values() for language, block in blocks(text) if language != "python"
    )
    lines = re.findall(r"^.*?\b(keras-vit [a-z].*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert len(lines) > 30
    command_line = parser()
    for line in lines:
        args = command_line.parse_args(shlex.split(line)[1:])
        assert getattr(args, "recipe", None) in {None, *RECIPES}, line
        for source in (getattr(args, "weights", None), getattr(args, "model", None)):
            assert source is None or not source.startswith("vit_b") or source in CATALOGUE, line


def test_recipes_and_checkpoints_that_are_named_exist():
    notebooks = (ROOT / "colab").glob("*.ipynb")
    text = "\n".join([*TEXTS.values(), *(notebook.read_text() for notebook in notebooks)])
    assert {*RECIPES} <= {*re.findall(r"`([\w]+)`", TEXTS["docs/training.md"])}
    assert all(name in CATALOGUE for name in re.findall(r"\bvit_[a-z]+\d+_\w+", text))
    of_timm = {*re.findall(r"\b\w+_patch\d+_\w+\.\w+", text)}
    assert len(of_timm) >= 2 and all(map(find, of_timm))


def test_readme_is_short_and_names_what_there_is():
    text = TEXTS["README.md"]
    assert len(text.splitlines()) <= 110 and len(text.split()) <= 800
    assert re.findall(r"(\d+) published checkpoints", text) == [str(len(CATALOGUE))]
    names = re.findall(r'from_pretrained\("([\w.]+)"\)', text)
    assert names and all(map(find, names))
    targets = re.findall(r"^make ([\w-]+)", text, re.MULTILINE)
    assert targets == ["quickstart", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_models_to_choose_from_have_these_costs_and_licenses():
    rows = re.findall(
        r"^\| .+ \| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| (\S+) \|$", TEXTS["docs/choose.md"], re.MULTILINE
    )
    assert len(rows) > 5
    for name, parameters, flops, license in rows:
        found = cost(CATALOGUE[name].variant, 224, None)
        assert [parameters, flops] == [f"{found['parameters'] / 1e6:.1f}", f"{found['flops'] / 1e9:.1f}"], (
            name
        )
        assert license == CATALOGUE[name].license


def test_every_subcommand_has_its_section():
    wanted = {name for top in SUBCOMMANDS for name, _, add_arguments in actions(top) if add_arguments}
    titles = re.findall(r"^## (.+)$", COMMANDS, re.MULTILINE)
    assert {*titles} == wanted
    assert re.findall(r"<!-- options: (.+) -->", COMMANDS) == titles


def test_the_tables_of_options_are_those_of_the_parser():
    """Otherwise run `python docs/cli_options.py`."""
    assert script("docs/cli_options.py").filled(COMMANDS) == COMMANDS


def test_the_linked_files_of_the_repository_exist():
    for page, text in TEXTS.items():
        for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text):
            assert ((ROOT / page).parent / link).exists(), (page, link)


REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))


def named(path):
    """The object that a dotted path names, in a list; for a module, its public classes and functions."""
    try:
        return public(importlib.import_module(path))
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return [getattr(importlib.import_module(module), name)]


def public(module):
    names = (name for name in dir(module) if not name.startswith("_"))
    found = (getattr(module, name) for name in names)
    return [value for value in found if inspect.isclass(value) or inspect.isfunction(value)]


def shown_code():
    """The syntax nodes of all Python code in pages and notebooks."""
    notebooks = [json.loads(path.read_text()) for path in (ROOT / "colab").glob("*.ipynb")]
    cells = [cell for notebook in notebooks for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = [re.sub(r"^(\s*)[%!].*", r"\1pass", "".join(cell["source"]), flags=re.MULTILINE) for cell in cells]
    code += [block for text in TEXTS.values() for language, block in blocks(text) if language == "python"]
    return [node for block in code for node in ast.walk(ast.parse(block))]


@pytest.fixture(scope="module")
def listed():
    return [thing for path in re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE) for thing in named(path)]


def test_the_reference_lists_every_public_name(listed):
    for package in ("", *PACKAGES):
        for thing in public(importlib.import_module(f"keras_vit.{package}" if package else "keras_vit")):
            assert thing in listed, f"{thing.__module__}.{thing.__qualname__} is missing in docs/api"


def test_the_reference_lists_every_name_that_a_page_or_notebook_imports(listed):
    nodes = [node for node in shown_code() if isinstance(node, ast.ImportFrom)]
    nodes = [node for node in nodes if node.module.split(".")[0] == "keras_vit"]
    assert len(nodes) > 5
    for node in nodes:
        for alias in node.names:
            things = named(f"{node.module}.{alias.name}")
            assert not inspect.isfunction(things[0]) or things[0] in listed, f"{node.module}.{alias.name}"


def test_the_reference_lists_every_method_that_a_page_or_notebook_calls():
    called = {node.attr for node in shown_code() if isinstance(node, ast.Attribute)}
    documented = re.findall(r"^::: ([\w.]+)\n +options:\n +members: \[(.+)\]$", REFERENCE, re.MULTILINE)
    assert len(documented) > 2
    for path, members in documented:
        (thing,) = named(path)
        apart = re.findall(rf"heading: {thing.__name__}\.(\w+)", REFERENCE)
        own = {name for name in vars(thing) if inspect.isroutine(getattr(thing, name))}
        assert own & called <= {*members.split(", "), *apart}, path


@pytest.mark.parametrize("name", ["api_tables", "cli_options", "griffe_export", "rooms", "whole_options"])
def test_the_examples_of_the_hooks_hold(name):
    failed, tried = doctest.testmod(script(f"docs/{name}.py"))
    assert tried and not failed


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the built manual. --quiet would hide the warnings that --strict turns into errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(built):
    return {file.relative_to(built).as_posix(): file.read_text() for file in built.rglob("*.html")}


@pytest.mark.slow
def test_the_navigation_has_each_title_once(site):
    link = r'<li class="md-nav__item">\s*<a href="[^"#]+" class="md-nav__link">\s*<span class="md-ellipsis">'
    titles = re.findall(rf"{link}\s*(.*?)\s*<", site["index.html"])
    assert {"Training", "keras_vit.training", "keras_vit.weights"} <= {*titles}
    assert len(titles) == len({*titles})


WIDE = """
[...document.querySelectorAll(".md-content pre code")].filter(e => e.scrollWidth > e.clientWidth + 1)
  .concat([...document.querySelectorAll(".md-content th")].filter(e => e.offsetHeight > 80))
  .map(e => e.innerText)
"""


@pytest.mark.slow
def test_pages_are_short(built):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        heights = {}
        for file in built.rglob("*.html"):
            page.goto(file.as_uri())
            heights[file.name] = page.evaluate("document.documentElement.scrollHeight")
    assert len(heights) > 40 and max(heights.values()) <= 12_000, heights


@pytest.mark.slow
def test_a_phone_shows_commands_and_headings_without_overflow(built):
    with chromium() as browser:
        page = browser.new_page(viewport=PHONE)
        for file in built.rglob("*.html"):
            page.goto(file.as_uri())
            assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"], file
            assert page.evaluate(WIDE) == [], file


@pytest.mark.slow
def test_the_manual_requests_nothing_from_another_host(site):
    tag = r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
    for name, page in site.items():
        assert not re.findall(tag, page), name
        assert 'data-md-component="source"' not in page, name  # It would query GitHub.
        assert not re.search(r"@import|url\((?:https?:)?//", page), name


@pytest.mark.slow
def test_each_link_of_the_manual_leads_to_a_file_and_a_heading(built, site):
    ids = {built / name: {*re.findall(r'\bid="?([^"> ]+)', page)} for name, page in site.items()}
    links = 0
    for name, page in site.items():
        if name == "404.html":  # a server's, with links from its root
            continue
        for link in re.findall(r'\b(?:href|src)="?([^"> ]*)', page):
            parts = urllib.parse.urlsplit(html.unescape(link))
            if parts.scheme:
                continue
            target = built / name
            if parts.path:
                target = pathlib.Path(os.path.normpath(target.parent / urllib.parse.unquote(parts.path)))
            assert target.is_file(), f"{name}: {link}"
            fragment = urllib.parse.unquote(parts.fragment)
            assert not fragment or fragment in ids[target], f"{name}: {link}"
            links += 1
    assert links > 1000


@pytest.mark.slow
def test_the_search_of_the_manual_works_without_a_server(built):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto((built / "index.html").as_uri())
        page.locator(".md-search__input").press_sequentially("layer_decay")  # The page listens to keys.
        link = page.locator('.md-search-result__link[href*="training.html#other-fields"]')
        link.wait_for(state="attached")
        # "More on this page" is closed at first.
        link.evaluate("element => element.closest('details')?.setAttribute('open', '')")
        link.click()
        page.wait_for_url("**/training.html*#other-fields")
        assert "layer_decay" in page.locator(".md-content").inner_text()


@pytest.mark.slow
def test_the_manual_holds_the_docstrings_and_the_options(site):
    exported = site["api/exported.html"]
    assert 'id="keras_vit.export.SavedModelLayer"' in exported
    assert "the nearest neighbors on the frozen" in site["api/probes.html"]
    assert "Source:</strong>" in exported and "&gt;&gt;&gt; " in exported
    assert "Call arguments" in exported
    assert "<blockquote>" not in "".join(site.values())  # A misplaced example would become one.
    assert "--deterministic" in site["cli.html"]


@pytest.mark.slow
def test_the_manual_links_to_files_of_the_repository(site, repository):
    url = re.search(r'url="(.+?)"', (repository / "setup.py").read_text())[1]
    assert f'href="{url}"' in site["index.html"]
    assert f'href="{url}/blob/main/CONTRIBUTING.md"' in site["index.html"]
    assert f'href="{url}/blob/main/benchmarks/EXPORT.md"' in site["deployment.html"]


def test_the_bounds_on_the_page_about_security_are_those_of_the_code():
    page = TEXTS["docs/security.md"]
    of_data = MAX_EXTENDED, MOST_NUMBERS, LARGEST_UNKNOWN, parquet_samples.LARGEST_LABELS, SLOWEST
    for bound in (UNPACKED, LARGEST_SIDECAR, MAX_PIXELS, MAX_OVERHEAD, LARGEST, *of_data):
        assert f"{bound:,} " in page
    assert (parquet_samples.LARGEST, parquet_samples.MOST_TIMES) == (UNPACKED, EXPANSION)
    assert f"{EXPANSION} times the file" in page
    assert "three times as many bytes" in page and MAX_BYTES == 3 * MAX_PIXELS
