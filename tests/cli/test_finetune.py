import json
import shutil
import types

import pytest
from made.folders import write_captions
from made.pages import read_page
from made.sampling import some
from made.shards import stored
from made.tables import by_table
from reference.small import one_block

from keras_vit import ImageTextModel
from keras_vit.cli import training_run as module
from keras_vit.data.sources.digits_words import word_tokenizer
from keras_vit.training.named_recipes import find_recipe
from keras_vit.training.workdir import Workdir

pytestmark = pytest.mark.usefixtures("eager", "undrawn")


def test_it_trains_draws_and_prints_where_everything_is(run):
    workdir, done = run
    assert done.stderr == ""
    assert done.stdout.splitlines()[:2] == [
        "computing in float32 (dtype=auto)",
        "2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out",
    ]
    result = json.loads((workdir / "result.json").read_text())
    last = done.stdout.splitlines()[-1]
    assert f"test accuracy {result['test_accuracy']:.4f} on 4 images after 3 steps" in last
    assert str(workdir) in last and "report.html" in last
    page = read_page((workdir / "report.html").read_text())
    assert page.headings[0] == "Scores" and "Worst predictions" in page.headings
    assert (
        "images: 2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out."
        in page.text
    )
    assert len((workdir / "metrics.csv").read_text().splitlines()) == 3


def test_settings_reach_the_run(run, weights):
    config = json.loads((run[0] / "config.json").read_text())
    assert config["weights"] == str(weights)
    settings = {"total_steps": 3, "batch_size": 4, "eval_every": 2, "seed": 5, "flip": False, "base_lr": 0.03}
    assert {name: config["recipe"][name] for name in settings} == settings


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again_and_only_a_missing_report_is_written(
    run, finetune, keras_vit, tmp_path
):
    workdir = shutil.copytree(run[0], tmp_path / "run")
    report, model = workdir / "report.html", (workdir / "model.keras").stat().st_mtime_ns
    before = report.read_text()
    report.unlink()
    done = keras_vit(*finetune, "--workdir", workdir)
    last = run[1].stdout.splitlines()[-1].replace(str(run[0]), str(workdir))
    assert done.stdout.splitlines() == ["writing report.html", last]
    assert report.read_text() == before and (workdir / "model.keras").stat().st_mtime_ns == model
    report.write_text("mine")
    keras_vit(*finetune, "--workdir", workdir)
    assert report.read_text() == "mine"


@by_table(
    "given, expected",
    [
        ("google/siglip-base-patch16-224", "google/siglip-base-patch16-224"),
        ("google/siglip-base-patch16-224:siglip", "google/siglip-base-patch16-224:siglip"),
        ("hf://me/words", "hf://me/words"),
        ("vocab.txt:lit_bert", "{folder}/vocab.txt:lit_bert"),
        ("vocab.txt", "{folder}/vocab.txt"),
    ],
)
def test_a_tokenizer_is_a_path_or_a_name(given, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").write_text("a")
    assert module._absolute_tokenizer(given) == expected.format(folder=tmp_path)


@pytest.mark.slow
def test_captions_of_a_folder_are_trained_and_evaluated(keras_vit, json_of, tmp_path):
    write_captions(tmp_path / "photos", 20)
    words = word_tokenizer(["some photo of a dark bright"])
    sizes = {"hidden_size": 12, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
    image, text = {"image_size": 16, "patch_size": 8, "pooling": "gap"}, {"vocabulary_size": 9, "length": 12}
    ImageTextModel(image | sizes, text | sizes, text_preprocessing=words).save(tmp_path / "two.keras")
    data = ("--dataset", f"folder:{tmp_path / 'photos'}")
    settings = ("--total_steps", 2, "--batch_size", 4, "--set", "eval_every=2", "--workdir", tmp_path / "run")
    weights = ("--weights", tmp_path / "two.keras", "--recipe", "finetune_pairs")
    done = keras_vit("finetune", *weights, *data, *settings)
    result = json.loads((tmp_path / "run/result.json").read_text())
    recall = f"test image to text recall 1 {result['test_image_to_text_recall_1']:.4f}"
    assert recall in done.stdout.splitlines()[-1]
    page = read_page((tmp_path / "run/report.html").read_text())
    assert "photos, test: 4 images" in page.text and "image to text recall 1" in page.text
    scores = {name[5:]: value for name, value in result.items() if name.startswith("test_")}
    found = json_of("evaluate", "--model", tmp_path / "run", *data, "--retrieval")
    assert {name: found[name] for name in scores} == pytest.approx(scores)


@pytest.mark.slow
def test_inspecting_a_run_shows_its_curves_and_configuration(run, images, keras_vit, tmp_path):
    command = ("--model", run[0], "--image", images / "cat" / "00.png", "--output", tmp_path / "out")
    keras_vit("inspect", *command)
    written = read_page((run[0] / "report.html").read_text())
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert page.headings[-2:] == ["Training", "Configuration"]
    curves = "The loss of token.npz on images by step"
    for words in ("base_lr 0.03", "data set images", "best step on the validation images"):
        assert words in page.text and words in written.text
    assert all(curves in [picture["alt"] for picture in p.pictures()] for p in (page, written))
    figures = json.loads((tmp_path / "out" / "result.json").read_text())["figures"]
    assert figures[-1] == "curves-learning_rate.png"
    assert "image_size –" not in page.text and str(run[0]) not in page.text


@pytest.fixture
def bare(weights, images, tmp_path):
    """A command without a recipe."""
    return ("finetune", "--weights", weights, "--dataset", f"folder:{images}", "--workdir", tmp_path / "run")


@pytest.fixture
def configurations(monkeypatch):
    """The configurations of runs, whose folders are made but which do not begin; a run prints its note."""
    found = []

    def train(config, path, *, note, **_):
        Workdir(path, config.as_json()).make()
        found.append(config)
        print(note)
        raise OSError("stopped")

    monkeypatch.setattr(module, "train", train)
    return found


def test_without_a_recipe_the_size_fits_the_images_and_is_kept(
    bare, keras_vit, configurations, tmp_path, monkeypatch
):
    first = keras_vit(*bare, status=2)
    assert "finetune: 14 images, batch size 8, 100 steps (≈ 57 epochs); set --total_steps" in first.stdout
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert (stored["batch_size"], stored["total_steps"], stored["warmup_steps"]) == (8, 100, 20)
    # The sizes are read from the run.
    monkeypatch.setattr(module, "load_data", lambda *args: pytest.fail("the data are loaded"))
    second = keras_vit(*bare, status=2)
    assert second.stdout == "None\n" and "stopped" in second.stderr
    assert configurations[1].recipe == configurations[0].recipe


def test_given_sizes_and_named_recipes_are_not_changed(bare, keras_vit, configurations, tmp_path):
    both = ("--total_steps", 3, "--batch_size", 4)
    choices = (), ("--total_steps", 7), ("--set", "base_lr=0.5"), ("--recipe", "finetune"), both
    for number, options in enumerate(choices):
        keras_vit(*bare, *options, "--workdir", tmp_path / str(number), status=2)
    recipes = [config.recipe for config in configurations]
    sizes = [(recipe.batch_size, recipe.total_steps, recipe.base_lr) for recipe in recipes]
    assert sizes == [(8, 100, 0.03), (8, 7, 0.03), (8, 100, 0.5), (512, 500, 0.03), (4, 3, 0.03)]


def command_for(pretraining, images, tmp_path, **options):
    """A command without a recipe, for weights that learned from this."""
    one_block(pretraining=pretraining, **options).save(tmp_path / "weights.keras")
    files = ("--weights", tmp_path / "weights.keras", "--dataset", f"folder:{images}")
    return ("finetune", *files, "--workdir", tmp_path / "run")


@pytest.mark.parametrize(
    "pretraining, name, words",
    some(
        [
            ("supervised", "finetune", "labels"),
            ("self_supervised", "probe_finetune", "images alone"),
            ("image_text", "probe_finetune", "images with texts"),
        ],
        3,
    ),
)
def test_without_a_recipe_what_the_weights_learned_from_chooses_it(
    pretraining, name, words, images, tmp_path, keras_vit, configurations
):
    command = command_for(pretraining, images, tmp_path)
    first = keras_vit(*command, status=2).stdout.splitlines()
    assert first[0] == f"recipe {name}, since the weights learned from {words}; --recipe selects another"
    assert first[1].startswith(f"{name}: 14 images, batch size 8, 100 steps")
    expected = find_recipe(name).sized_for(14).hyperparameters()
    assert configurations[0].recipe.hyperparameters() == expected
    # The run keeps its recipe, whatever its weights are now.
    (tmp_path / "weights.keras").unlink()
    assert keras_vit(*command, status=2).stdout == "None\n"
    assert configurations[1] == configurations[0]
    changed = keras_vit(*command, "--recipe", "finetune", "--total_steps", 100, status=2)
    assert "stopped" not in changed.stderr


def test_both_sizes_leave_the_choice_of_the_recipe(images, tmp_path, keras_vit, configurations):
    command = command_for("self_supervised", images, tmp_path)
    found = keras_vit(*command, "--total_steps", 3, "--batch_size", 4, status=2)
    assert found.stdout.startswith("recipe probe_finetune, since") and found.stdout.count("\n") == 1
    assert configurations[0].recipe.probe_first


@pytest.mark.parametrize(
    "options",
    [("--set", "task=regression", "--teacher"), ("--set", "task=segmentation"), ("--set", "image_text={}")],
)
def test_without_a_head_to_fit_the_chosen_recipe_has_no_probe(
    options, images, tmp_path, keras_vit, configurations
):
    command = command_for("self_supervised", images, tmp_path)
    if options[-1] == "--teacher":
        options = (*options, tmp_path / "weights.keras")
    keras_vit(*command, *options, "--total_steps", 3, "--batch_size", 4, status=2)
    recipe = configurations[0].recipe
    assert (recipe.optimizer, recipe.layer_decay, recipe.probe_first) == ("adamw", 0.75, False)


def test_weights_of_unknown_training_need_a_recipe(images, tmp_path, keras_vit, configurations):
    command = command_for(None, images, tmp_path, num_classes=None)
    found = keras_vit(*command, status=2)
    assert "expected a recipe: 'finetune'" in found.stderr and "weights.keras does not say" in found.stderr
    assert not (tmp_path / "run").exists() and not configurations
    keras_vit(*command, "--recipe", "probe_finetune", status=2)
    assert configurations[0].recipe.probe_first


def test_sources_and_the_file_of_classes_are_stored_by_their_absolute_paths(
    weights, keras_vit, configurations, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command = ("finetune", "--weights", weights, "--recipe", "finetune", "--workdir", tmp_path / "run")
    keras_vit(*command, "--dataset", "folder:a*2 + webdataset:b", "--classes", "names.txt", status=2)
    [config] = configurations
    assert config.dataset == f"folder:{tmp_path}/a*2 + webdataset:{tmp_path}/b"
    assert config.classes == f"{tmp_path}/names.txt"


@pytest.mark.slow
def test_a_mixture_is_trained_and_evaluated_with_the_classes_of_a_file(
    weights, images, keras_vit, json_of, tmp_path
):
    (tmp_path / "names.txt").write_text("cat\t0\ndog\t1\t2\n")
    mixture = f"folder:{images} + {stored(tmp_path / 'tar', 'webdataset')}*3"
    data = ("--dataset", mixture, "--classes", tmp_path / "names.txt")
    settings = ("--total_steps", 2, "--batch_size", 4, "--set", "eval_every=2", "--workdir", tmp_path / "run")
    keras_vit("finetune", "--weights", weights, "--recipe", "finetune", *data, *settings)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (
        result["data"]
        == "2 classes (cat, dog): 59 train, 5 validation, 16 test; validation and test held out"
    )
    page = read_page((tmp_path / "run/report.html").read_text())
    assert "images + tar*3, test: 16 images" in page.text and str(tmp_path) not in page.text
    found = json_of("evaluate", "--model", tmp_path / "run", *data)
    assert (found["samples"], found["accuracy"]) == (16, result["test_accuracy"])


def test_skipped_images_are_named(run, finetune, keras_vit, monkeypatch):
    given, record = [], json.loads((run[0] / "result.json").read_text())

    def train(config, path, **_):
        given.append(config.on_bad_image)
        return types.SimpleNamespace(path=run[0]), record | {"bad_images": ["dog/bad\n.png"]}

    monkeypatch.setattr(module, "train", train)
    done = keras_vit(*finetune, "--workdir", run[0], "--on_bad_image", "skip")
    assert given == ["skip"] and "skipped, unreadable: dog/bad\\n.png\n" in done.stdout


def test_weights_are_stored_by_their_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.keras").touch()
    for name in ("google/vit-base-patch16-224", "vit_base_patch16_224.augreg_in21k", "hf://me/vit"):
        assert module.absolute_weights(name) == name
    assert module.absolute_weights("vit.npz") == str(tmp_path / "vit.npz")
    assert module.absolute_weights("run") == str(tmp_path / "run" / "model.keras")
