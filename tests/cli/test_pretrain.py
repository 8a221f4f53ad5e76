import json
import shutil

import keras
import numpy as np
import pytest
from made.pages import read_page

from keras_vit import MaskedAutoencoder
from keras_vit import from_pretrained as load

pytestmark = pytest.mark.usefixtures("eager", "undrawn")

SHORT = ("--total_steps", 2, "--batch_size", 4, "--set", "eval_every=2", "--set", "warmup_steps=1")
SHORT = (*SHORT, "--set", "checkpoint_every=1", "--set", "base_lr=0.01")
MODEL = ("--model", "mu/8", "--image_size", 16)


@pytest.fixture(scope="module")
def pretrained(keras_vit, images, tmp_path_factory):
    """The folder of a run on a folder of images without classes, and what the command printed."""
    workdir = tmp_path_factory.mktemp("runs") / "run"
    images = shutil.copytree(images, tmp_path_factory.mktemp("unlabeled") / "train" / "images")
    objective = ("--recipe", "masked_patch", "--objective", "masked_patch", *MODEL)
    return workdir, keras_vit(
        "pretrain", *objective, "--dataset", f"folder:{images.parent.parent}", *SHORT, "--workdir", workdir
    )


def test_masked_patch_prediction_leaves_an_encoder_without_a_head(pretrained):
    workdir, done = pretrained
    assert "images without labels: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("finished after 2 steps")
    model = keras.saving.load_model(workdir / "model.keras")
    assert model.num_classes is None and model.image_size == (16, 16)
    whole = keras.saving.load_model(workdir / "pretrainer.keras")
    for weight, value in zip(whole.encoder.weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    rows = (workdir / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3 and "val_loss" in rows[0]
    config = json.loads((workdir / "config.json").read_text())
    assert (config["objective"], config["target"]) == ("masked_patch", "mean_color")
    page = read_page((workdir / "report.html").read_text())
    views = ["Patch filters", "Position embeddings"]
    assert page.headings == ["What the model saw", "Training", *views, "Configuration", "What next"]
    assert "target mean_color" in page.text


@pytest.mark.slow
def test_a_masked_autoencoder_shows_its_reconstructions_and_is_fine_tuned(images, keras_vit, tmp_path):
    data = ("--dataset", f"folder:{images}", *SHORT, "--set", "checkpoint_every=2")
    options, *_ = OBJECTIVES["mae"]
    keras_vit(
        "pretrain", "--recipe", "mae", "--objective", "mae", *options, *data, "--workdir", tmp_path / "mae"
    )
    whole = load(tmp_path / "mae", kind="pretrainer")
    assert type(whole) is MaskedAutoencoder and whole.decoder_hidden_size == 8
    assert "1 of 4" in read_page((tmp_path / "mae" / "report.html").read_text()).text
    recipe = ("--recipe", "mae_finetune")
    for option in ("mixup=0.0", "cutmix=0.0", "randaugment=None", "random_erasing=0.0"):
        recipe += ("--set", option)
    tuned = ("finetune", "--weights", tmp_path / "mae", *data, *recipe, "--image_size", 16)
    keras_vit(*tuned, "--workdir", tmp_path / "tuned")
    model = load(tmp_path / "tuned")
    assert (model.pooling, model.class_token, model.norm_after_pooling) == ("gap", True, True)


DECODER = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
HEAD = {"num_local": 1, "local_size": 8, "out_dim": 16, "hidden_dim": 12, "bottleneck_dim": 6}
PIXELS = {
    **{"patch_size": 1, "palette": 6, "causal": True, "pooling": "gap", "norm": "rms"},
    **{"hidden_size": 12, "num_layers": 1, "mlp_dim": 20, "num_heads": 3},
}
OBJECTIVES = {  # the options, the score and the first headings of the report
    "mae": ((*MODEL, "--set", f"pretrainer={DECODER}"), "val_loss", ["Reconstructions"]),
    "igpt": (("--image_size", 4, "--set", f"model={PIXELS}"), "val_loss", ["Completions", "Samples"]),
    "dino": ((*MODEL, "--set", f"pretrainer={HEAD}"), "val_knn_accuracy", ["Attention"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_prints_its_score_and_its_encoder_is_inspected(objective, images, keras_vit, tmp_path):
    options, score, headings = OBJECTIVES[objective]
    data, run = ("--dataset", f"folder:{images}"), tmp_path / objective
    given = ("--recipe", objective, "--objective", objective, *options, *data, *SHORT, "--workdir", run)
    done = keras_vit("pretrain", *given)
    assert f"  {score} " in [line for line in done.stdout.splitlines() if line.startswith("step 2 of 2")][0]
    last = "test k-NN accuracy" if objective == "dino" else "finished after"
    assert done.stdout.splitlines()[-1].startswith(last)
    page = read_page((run / "report.html").read_text())
    assert page.headings[: len(headings)] == headings and "Training" in page.headings
    assert all((run / "figures" / f"{heading.lower()}.png").is_file() for heading in headings)
    no_filters = "Not shown: the model has a palette of colors, and no filters"
    assert (no_filters in page.text) == (objective == "igpt")
    keras_vit("inspect", "--model", run, *data, "--output", tmp_path / "inspected")
    result = json.loads((tmp_path / "inspected" / "result.json").read_text())
    assert result["left_out"].keys() == ({"filters"} if objective == "igpt" else set())


@pytest.mark.slow
def test_that_run_is_fine_tuned_at_another_size(pretrained, images, keras_vit, tmp_path):
    workdir, _ = pretrained
    command = ("finetune", "--weights", workdir, "--dataset", f"folder:{images}", "--image_size", 32, *SHORT)
    done = keras_vit(*command, "--set", "freeze=encoder_norm", "--workdir", tmp_path / "run")
    assert "test accuracy" in done.stdout.splitlines()[-1]
    before, after = (keras.saving.load_model(path / "model.keras") for path in (workdir, tmp_path / "run"))
    assert (after.num_classes, after.image_size, tuple(after.class_names)) == (2, (32, 32), ("cat", "dog"))
    for name in ("class_token", "encoder_block_0", "encoder_norm"):  # frozen
        pairs = zip(before.get_layer(name).get_weights(), after.get_layer(name).get_weights(), strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(one, other)
    assert np.abs(after.get_layer("head").get_weights()[0]).max() > 0


@pytest.mark.slow
def test_pre_training_with_labels_has_the_recipes_hyperparameters(images, keras_vit, tmp_path):
    keras_vit("pretrain", *MODEL, "--dataset", f"folder:{images}", *SHORT, "--workdir", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["weight_decay"] == 0.3 and config["objective"] == "classify"
