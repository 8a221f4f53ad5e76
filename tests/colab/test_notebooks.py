"""Each notebook runs from top to bottom in a fresh kernel, and follows the conventions of colab/."""

import ast
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import keras
import nbformat
import numpy as np
import pytest
from made.folders import write_boxes, write_classes, write_depths, write_keypoints, write_masks
from made.notebooks import differences, executed, offline_parameters, pictures
from made.tables import by_table
from made.trained import NotInstalled
from reference.comparing import randomize

from keras_vit import VisionTransformer, save_weights
from keras_vit.tasks.segmentation.samples import read_mask
from keras_vit.variants import cost
from keras_vit.weights.catalogue import CATALOGUE
from keras_vit.weights.class_names import class_names

ROOT = pathlib.Path(__file__).parents[2]
COLAB = ROOT / "colab"
NOTEBOOKS = sorted(COLAB.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
HOME = re.search(r'url="(.+?)"', (ROOT / "setup.py").read_text())[1]
LONG = ("train(", "fit(", "export_folder(", "vectors(", "embed(")  # calls that take more than a few seconds

# Start-up logs of TensorFlow and LiteRT that no setting silences; and progress, on a machine that is slow.
STARTUP_LOG = r"I\d{4} |WARNING: All log messages before absl|INFO: Created TensorFlow Lite "
PROGRESS = r"\w+: \w+ [\d,]+ of [\d,]+, [\d:]+ left$|\w+: [\d.]+ s, verified, "
NO_WARNING = re.compile(f"{STARTUP_LOG}|{PROGRESS}")
TIME = r"(\d+ seconds|a minute|two minutes|three minutes|half a minute)"

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def python_of(cell):
    """A cell's statements, without IPython's own."""
    text = re.sub(r"^(\s*)%.*$", r"\1pass", cell.source, flags=re.MULTILINE)
    return ast.parse(text)


def run(name, folder, again=None, is_quiet=True, **parameters):
    """Execute a notebook, and with `again` a second time in the same kernel with these parameters.

    It may print warnings only where it is not quiet. Without parameters its outputs are the stored ones.
    """
    done = Run(executed(COLAB / f"{name}.ipynb", folder, parameters, again), folder / "work")
    assert not (is_quiet and done.warnings)
    if parameters == offline_parameters(name):
        for cell in code_cells(COLAB / f"{name}.ipynb"):
            assert not (found := differences(cell.outputs, done.outputs[cell.id])), f"{cell.id}: {found}"
    return done


class Run:
    """The outputs of an executed notebook by cell id.

    Args:
        notebook: The notebook with its outputs.
        folder: The folder that it ran in.
    """

    def __init__(self, notebook, folder):
        self.folder = folder
        self.outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def printed(self, cell):
        return "".join(out.text for out in self.outputs[cell] if out.output_type == "stream")

    @property
    def figures(self):
        """The number of pictures by cell, which is the same in a second run."""
        shown = {}
        for cell, outputs in self.outputs.items():
            count = pictures(outputs)
            assert shown.setdefault(cell.removeprefix("again-"), count) == count, cell
        return {cell: count for cell, count in shown.items() if count}

    @property
    def warnings(self):
        errors = [
            out.text for outputs in self.outputs.values() for out in outputs if out.get("name") == "stderr"
        ]
        return [line for line in "".join(errors).splitlines() if not NO_WARNING.match(line)]

    def fraction(self, cell, after=""):
        """The first percentage that a cell prints after some words, as a fraction."""
        return float(re.search(rf"{re.escape(after)}.*?([\d.]+)%", self.printed(cell), re.DOTALL)[1]) / 100


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small checkpoint with ImageNet's classes and random weights."""
    sizes = {"patch_size": 16, "hidden_size": 24, "num_layers": 2, "mlp_dim": 40, "num_heads": 3}
    names = class_names("imagenet_1k")
    model = VisionTransformer(64, **sizes, num_classes=1000, class_names=names, activation="gelu_erf")
    path = tmp_path_factory.mktemp("published") / "model.safetensors"
    return str(save_weights(randomize(model), path, "timm"))


@pytest.mark.slow
def test_classify_trains_saves_loads_and_publishes(tmp_path):
    done = run("01_classify", tmp_path, again={})
    assert done.figures == {"rollout": 1}
    assert re.search(r"a scanned \d: \d [\d.]+%, \d [\d.]+%, \d [\d.]+%", done.printed("classify-images"))
    assert (done.folder / "published/hub/my_vit.tar.gz").exists()
    difference = re.search(r"largest difference: (\S+)", done.printed("hub-archive"))[1]
    assert float(difference) < 1e-4
    assert done.fraction("train") > 0.94


@pytest.mark.slow
def test_classify_takes_a_published_checkpoint(tmp_path, published):
    done = run("01_classify", tmp_path, SOURCE=published)
    assert done.figures == {"rollout": 1}
    assert done.printed("train") == ""  # nothing to train
    assert "1000 classes, such as tench, Tinca tinca, " in done.printed("from-pretrained")
    best = re.findall(r"(\S+): (.+?) [\d.]+%, ", done.printed("classify-images"))
    assert [name for name, _ in best] == ["china.jpg", "flower.jpg"]
    known = {name.split(",")[0] for name in class_names("imagenet_1k")}
    assert all(predicted in known for _, predicted in best)


@pytest.mark.slow
def test_classify_takes_a_checkpoint_without_class_names(tmp_path):
    sizes = {"patch_size": 16, "hidden_size": 24, "num_layers": 1, "mlp_dim": 40, "num_heads": 3}
    model = randomize(VisionTransformer(64, **sizes, num_classes=21))
    checkpoint = save_weights(model, tmp_path / "ViT.npz", "vit_jax")
    checkpoint.with_suffix(".json").unlink()
    done = run("01_classify", tmp_path, SOURCE=str(checkpoint))
    assert "21 classes, such as class 0, class 1, class 2" in done.printed("from-pretrained")
    assert re.search(r"china.jpg: \d+ [\d.]+%, ", done.printed("classify-images"))
    assert re.search(r"from the archive: +\['class \d+', 'class \d+'\]", done.printed("hub-archive"))


@pytest.mark.slow
def test_finetune_transfers_and_resumes_an_interrupted_run(tmp_path):
    flowers = {"DATASET": f"folder:{write_classes(tmp_path / 'flowers')}", "BATCH": 8}
    done = run("02_finetune", tmp_path, again={"STEPS": 24, "EPOCHS": 1, **flowers}, is_quiet=False)
    said = ("stopping after a checkpoint at the next step", "stopped: the checkpoint of step ")
    assert len(done.warnings) == 4 and all(line.startswith(said) for line in done.warnings)
    assert done.figures == {"fit-and-curves": 1, "go-on": 1}
    assert "a table of (1, 65, 64)" in done.printed("larger")
    assert "a table of (1, 145, 64)" in done.printed("larger")
    for time in ("", "again-"):
        assert done.printed(f"{time}stop").endswith("stopped\n")
        found = re.search(r"resuming runs/\S+ from step (\d+) of (\d+)", done.printed(f"{time}go-on"))
        assert 0 < int(found[1]) < int(found[2])
    assert (done.folder / "finetuned.keras").exists()
    assert "files belonging to 2 classes" in done.printed("again-plain-keras")
    whole = keras.saving.load_model(done.folder / "photos_to_logits.keras")
    assert whole.predict(np.zeros((2, 30, 40, 3), "uint8"), verbose=0).shape == (2, 2)
    assert done.fraction("fit-and-curves") > 0.93
    assert done.fraction("larger") > 0.85  # before training at the new size
    assert done.fraction("larger", "before fine-tuning, ") > 0.93
    assert done.fraction("go-on", "test accuracy") > 0.93


@pytest.mark.slow
def test_look_inside_draws_the_papers_figures(tmp_path):
    done = run("03_look_inside", tmp_path, again={})
    drawn = {"filter-figure": 1, "position-figure": 1, "distance-figure": 1}
    assert done.figures == {**drawn, "attention-figures": 2, "similarity-figures": 2}
    assert done.fraction("train") > 0.94
    assert done.fraction("similarity-figures") > 0.85


@pytest.mark.slow
def test_look_inside_takes_a_published_checkpoint(tmp_path, published):
    done = run("03_look_inside", tmp_path, SOURCE=published)
    assert sum(done.figures.values()) == 7


@pytest.mark.slow
def test_export_writes_every_format_and_each_is_used(tmp_path):
    done = run("04_export", tmp_path, again={"DATASET": f"folder:{write_classes(tmp_path / 'flowers')}"})
    table = done.printed("side-by-side").splitlines()
    precisions = ("float32", "float16", "dynamic_int8", "int8", "full_int8")
    formats = ["saved_model", *(f"tflite_{precision}" for precision in precisions), "hub"]
    assert [line.split()[0] for line in table[2:]] == formats
    report = json.loads((done.folder / "exported/verification.json").read_text())
    assert [*report["formats"]] == formats
    assert report["images"] == 4  # of the second data set
    server, phone = (done.printed(cell).splitlines() for cell in ("use-saved-model", "use-litert"))
    assert re.match(r"\d+ bytes of an image file", server.pop(0))
    assert len(server) == len(phone) == 5
    top = [{name: float(value.rstrip("%")) for name, value in map(str.split, x)} for x in (server, phone)]
    both = top[0].keys() & top[1].keys()
    assert len(both) >= 3 and all(abs(top[0][name] - top[1][name]) < 3 for name in both)
    assert server[0].split()[0] == phone[0].split()[0]
    assert "SavedModelLayer" in str(done.outputs["use-hub"])
    assert done.fraction("train") > 0.94


@pytest.mark.slow
def test_frozen_features_classify_and_retrieve_without_labels_in_training(tmp_path):
    done = run("05_frozen_features", tmp_path)
    assert done.figures == {"retrieval-figure": 1, "patch-figure": 1}
    assert done.fraction("nearest-neighbors") > 0.9
    assert done.fraction("linear-probe") > 0.9
    assert done.fraction("retrieval-figure") > 0.85
    classifier = keras.saving.load_model(done.folder / "probe.keras")
    assert classifier.class_names == tuple("0123456789")


@pytest.mark.slow
def test_frozen_features_of_digits_are_those_stored(tmp_path):
    done = run("05_frozen_features", tmp_path)
    assert done.fraction("linear-probe") > 0.9


@pytest.mark.slow
def test_a_trained_model_sees_parts_and_finds_photographs(tmp_path):
    name = "10_what_a_trained_vit_sees"
    try:
        parameters = offline_parameters(name)
    except NotInstalled as error:
        pytest.skip(str(error))
    done = run(name, tmp_path, **parameters)
    assert sum(done.figures.values()) == 4
    assert done.fraction("search-figure") > 0.7 and done.fraction("linear-probe") > 0.7


@pytest.mark.slow
def test_frozen_features_take_a_published_backbone_and_a_folder(tmp_path):
    sizes = {"patch_size": 16, "hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 3}
    dinov3 = {"rotary": "dinov3", "position_embedding": "none", "num_registers": 4, "layer_scale": 0.1}
    backbone = VisionTransformer(256, **sizes, **dinov3, pooling="gap", class_token=True)
    backbone.save(tmp_path / "backbone.keras")
    flowers = {"DATASET": f"folder:{write_classes(tmp_path / 'flowers', count=30)}", "IMAGE_SIZE": 48}
    done = run("05_frozen_features", tmp_path, SOURCE=str(tmp_path / "backbone.keras"), **flowers)
    assert done.printed("train").count("\n") == 1  # nothing to train
    assert sum(done.figures.values()) == 2


@pytest.mark.slow
def test_segment_starts_from_a_folder_and_writes_masks(tmp_path):
    streets = {"FOLDER": str(write_masks(tmp_path / "streets")), "STEPS": 8, "BATCH": 4, "HEAD": "linear"}
    done = run("06_segment", tmp_path, again={**streets, "IMAGE_SIZE": 32})
    assert done.figures == {"worst-images": 1, "segment": 1}
    assert "2 classes (background, digit): 288 train" in done.printed("write-folder")
    assert "3 classes (0, 1, 2)" in done.printed("again-write-folder")
    assert done.fraction("train", "mean IoU") > 0.9
    assert done.fraction("worst-images", "digit") > 0.85
    assert {*np.unique(read_mask(str(done.folder / "mask.png")))} <= {0, 1, 2}
    assert done.fraction("export-folder", "tflite_dynamic_int8") > 0.9
    assert "(32, 32) of uint8" in done.printed("use-litert")


@pytest.mark.slow
def test_words_classify_and_find_digits(tmp_path):
    done = run("07_images_and_words", tmp_path)
    assert done.figures == {"similarity-figure": 1, "search-figure": 1}
    assert done.fraction("train") > 0.93
    assert len(re.findall(r"^\w+ [\d.]+%, \w+ [\d.]+%$", done.printed("zero-shot"), re.MULTILINE)) == 4
    assert done.fraction("similarity-figure") >= 0.9
    assert done.fraction("search-figure") >= 0.75


@pytest.mark.slow
def test_detect_starts_from_a_folder_and_writes_a_page(tmp_path):
    boxes = {"FOLDER": str(write_boxes(tmp_path / "boxes", count=40)), "STEPS": 8, "BATCH": 4}
    done = run("08_detect", tmp_path, again=boxes)
    assert done.figures == {"test-images": 1}
    assert "1 class (digit): 432 train" in done.printed("write-folder")
    assert "2 classes (red, green)" in done.printed("again-write-folder")
    assert done.fraction("train", "AP50") > 0.9
    assert done.fraction("test-images", "F1") > 0.9
    assert done.fraction("export-folder", "tflite_dynamic_int8") > 0.3
    live, phone = (
        [
            (name, np.array(json.loads(box)))
            for name, box in re.findall(r"^(\w+) .*? at (.*)$", text, re.MULTILINE)
        ]
        for text in (done.printed("detect"), done.printed("use-litert"))
    )
    assert {name for name, _ in live} == {"digit"} and len(live) == len(phone)
    for _, box in live:
        assert min(np.abs(box - other).max() for _, other in phone) <= 1
    assert "page" in (done.folder / "exported/web/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_distill_compares_a_student_with_and_without_a_teacher(tmp_path):
    done = run("09_distill", tmp_path, again={"STEPS": 8, "LABELED": 20})
    alone, taught = done.fraction("alone"), done.fraction("distill", "with the teacher")
    assert done.fraction("teacher") > 0.95 and taught > max(alone, 0.95)
    assert done.fraction("export-folder", "tflite_dynamic_int8") > 0.95
    rows = re.findall(
        r"^(teacher|student\S*(?: \S+)?) +(live|tflite) ", done.printed("benchmark"), re.MULTILINE
    )
    assert [format for _, format in rows] == ["live", "live", "tflite", "tflite"]


@pytest.mark.slow
def test_depth_starts_from_a_folder_and_writes_a_point_cloud(tmp_path):
    rooms = {"FOLDER": str(write_depths(tmp_path / "rooms")), "STEPS": 8, "BATCH": 4}
    done = run("11_depth", tmp_path, again=rooms)
    assert done.figures == {"worst-images": 1}
    assert "1 channel (depth): 288 train" in done.printed("write-folder")
    assert done.fraction("train", "\nabs_rel") < 0.08
    assert done.fraction("export", "tflite_dynamic_int8") < 0.08
    assert (done.folder / "scene.ply").read_bytes().startswith(b"ply")
    live, phone = (
        re.search(r"([\d.]+) to ([\d.]+) m", done.printed(cell)).groups()
        for cell in ("point-cloud", "litert-file")
    )
    np.testing.assert_allclose(np.float64(live), np.float64(phone), atol=0.3)


@pytest.mark.slow
def test_vectors_classify_search_and_find_copies(tmp_path):
    done = run("12_embed_and_search", tmp_path, again={"STEPS": 40})
    assert done.figures == {"search": 1}
    assert done.fraction("knn") > 0.88
    assert "'copy.png'" in done.printed("twice")


@pytest.mark.slow
def test_points_of_all_objects_in_a_picture_are_drawn_and_exported(tmp_path):
    corners = {"DATASET": f"folder:{write_keypoints(tmp_path / 'corners')}", "STEPS": 8, "BATCH": 4}
    done = run("13_keypoints", tmp_path, again=corners, is_quiet=False)
    assert done.figures == {"estimate": 1}
    assert "5 keypoints (center, top, bottom, left, right)" in done.printed("load-data")
    assert done.fraction("train", "\nAP") > 0.65 and done.fraction("evaluate", "PCK at 10%:") > 0.88
    assert done.fraction("export", "tflite_dynamic_int8") > 0.65
    distance = re.search(r"([\d.]+) pixels from", done.printed("litert-file"))[1]
    assert float(distance) < 0.2


@by_table(
    "text, picture, message",
    [
        ("step 1 of 9  loss 8.1\nstep 9 of 9  loss 0.4  val_loss 0.4\n92% of  cats\n", True, ""),
        ("step 9 of 9  loss 0.4  val_loss 0.4\n20% of cats, 3 ms\n", True, "expected 'step # of"),
        ("step 9 of 9  loss 0.4  val_loss 0.4\n90% of dogs\n", True, "expected 'step # of"),
        ("step 9 of 9  loss 3.4  val_loss 3.4\n40% of cats\n", True, "expected numbers near"),
        ("step 9 of 9  loss 0.4  val_loss 0.4\n90% of cats\n", False, "expected 1 pictures; got 0"),
    ],
)
def test_outputs_are_compared_with_a_tolerance(text, picture, message):
    def outputs(text, picture):
        drawn = [nbformat.v4.new_output("display_data", {"image/png": ""})] * picture
        return [nbformat.v4.new_output("stream", name="stdout", text=text), *drawn]

    stored = outputs("step 9 of 9  loss 0.4  val_loss 0.41\n90.1% of cats\n", True)
    assert differences(stored, outputs(text, picture)).startswith(message)
    assert bool(differences(stored, outputs(text, picture))) is bool(message)


@each
def test_it_is_a_notebook_with_small_outputs(path):
    stored = json.loads(path.read_text())
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert stored["metadata"].keys() == {"kernelspec", "language_info"}
    assert stored["metadata"]["kernelspec"]["name"] == "python3"
    assert len(notebook.cells) <= 16
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        tagged = {"tags": ["parameters"]} if cell.id == "parameters" else {}
        assert cell.metadata == tagged
        if cell.cell_type == "code":
            assert cell.execution_count is None
            assert all(out.output_type in ("stream", "display_data") for out in cell.outputs)
            assert all(out.name == "stdout" for out in cell.outputs if out.output_type == "stream")
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any(out.output_type == "stream" for out in outputs)
    assert not re.search(r"/(tmp|root|home|work)/", json.dumps(outputs))
    assert path.stat().st_size < 500_000
    assert path.read_text() == json.dumps(stored, indent=1, ensure_ascii=False) + "\n"


@each
def test_it_installs_the_package_first_and_has_the_parameters_next(path):
    first, second, *others = code_cells(path)
    assert second.id == "parameters"
    assigned = [node for node in python_of(second).body if isinstance(node, ast.Assign)]
    assert len(assigned) == len(python_of(second).body) > 0
    rest = "\n".join(cell.source for cell in others)
    assert "pip install" not in rest
    for cell in (first, *others):  # in a running kernel an editable install is not seen, and a clone hides it
        assert not re.search(r"%cd|os\.chdir|git clone|install.* -e|--editable", cell.source)
    assert path.read_text().count(HOME) == 1
    assert "_keras_vit_cli" not in path.read_text()


@each
@pytest.mark.parametrize("inside", [True, False], ids=["in a clone", "elsewhere"])
def test_it_installs_from_the_clone_it_lies_in_or_from_the_repository(path, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(COLAB if inside else tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    installed = []
    code = code_cells(path)[0].source.replace("%matplotlib inline\n", "")
    code, found = re.subn(r'%pip install -q "(\{source\})"', r'install(f"\1")', code)
    assert found == 1
    exec(code, {"install": installed.append})
    assert installed == [str(ROOT) if inside else f"git+{HOME}"]


@each
def test_it_imports_what_it_uses_and_defines_no_layer(path):
    for cell in code_cells(path):
        for node in ast.walk(python_of(cell)):
            assert not isinstance(node, ast.ClassDef)
            assert not (isinstance(node, ast.Attribute) and node.attr in ("Layer", "Lambda", "Model"))


@each
def test_the_text_before_a_long_cell_says_how_long_it_takes(path):
    cells = nbformat.read(path, as_version=4).cells
    long = [i for i, cell in enumerate(cells) if cell.cell_type == "code" and _is_long(cell)]
    assert long
    for i in long:
        assert cells[i - 1].cell_type == "markdown"
        words = " ".join(cells[i - 1].source.split())
        assert re.search(
            r"about (\d+|a|half a|two|three) (seconds?|minutes?) on [24] CPU cores", words, re.I
        ), words
    assert re.search(rf"takes about {TIME} on [24] CPU cores", " ".join(cells[0].source.split()))


def _is_long(cell):
    calls = [node for node in ast.walk(python_of(cell)) if isinstance(node, ast.Call)]
    return any(f"{ast.unparse(call.func)}(" in LONG for call in calls)


def test_the_code_passes_ruff():
    ruff = [sys.executable, "-m", "ruff"]
    ours = 'lint.isort.known-first-party=["keras_vit"]'
    options = ["--isolated", "--line-length", "100", "--config", ours]
    rules = ["--select", "E,F,I,B,UP", "--ignore", "B905,E402", "--no-cache"]
    for command in (["check", *options, *rules], ["format", *options, "--check", "--no-cache"]):
        done = subprocess.run([*ruff, *command, *NOTEBOOKS], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_links_have_targets_and_the_readme_lists_every_notebook():
    readme = (COLAB / "README.md").read_text()
    place = HOME.removeprefix("https://github.com/")
    opened = f"https://colab.research.google.com/github/{place}/blob/main/colab/{{}}.ipynb"
    for name in NAMES:
        assert f"({name}.ipynb)" in readme
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
        links = re.findall(r"\]\((\S+?)\)", "\n".join(texts))
        assert [link for link in links if "google.com/github" in link] == [opened.format(path.stem)]
        assert all((COLAB / link).exists() for link in links if "://" not in link), links


def test_published_models_are_in_the_catalogue_with_their_sizes():
    code = "\n".join(cell.source for path in NOTEBOOKS for cell in code_cells(path)[:2])
    names = re.findall(r'"((?:vit|deit)\w*_\w+)"', code)
    assert len(names) >= 4
    assert all(CATALOGUE[name].source.startswith("hf://") for name in names)  # what anybody can fetch
    sizes = re.findall(r'"(\w+_in1k)".*?(\d+) MB', code)
    assert len(sizes) >= 3
    for name, megabytes in sizes:
        assert round(4e-6 * cost(CATALOGUE[name].variant)["parameters"]) == int(megabytes), name
    for name, top1 in re.findall(r'"(\w+)".*?([\d.]+) % of ImageNet', code):
        assert round(CATALOGUE[name].top1, 1) == float(top1)
