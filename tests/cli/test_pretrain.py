import json

import keras
import numpy as np
import pytest
from made.pages import read_page

SHORT = ("--total_steps", 2, "--batch_size", 4, "--set", "eval_every=2", "--set", "warmup_steps=1")
SHORT = (*SHORT, "--set", "checkpoint_every=1", "--set", "base_lr=0.01")


@pytest.fixture(scope="module")
def pretrained(once, images, tmp_path_factory):
    """A finished run without labels, and what the command said of it."""
    workdir = tmp_path_factory.mktemp("runs") / "run"
    options = (
        "--recipe",
        "masked_patch",
        "--objective",
        "masked_patch",
        "--model",
        "mu/8",
        "--image_size",
        16,
    )
    return workdir, once("pretrain", *options, "--dataset", f"folder:{images}", *SHORT, "--workdir", workdir)


def test_masked_patches_leave_an_encoder_without_a_head(pretrained):
    workdir, done = pretrained
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("finished after 2 steps")
    model = keras.saving.load_model(workdir / "model.keras")
    assert model.num_classes is None and model.image_size == (16, 16)
    rows = (workdir / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3 and "val_loss" in rows[0]
    config = json.loads((workdir / "config.json").read_text())
    assert (config["objective"], config["target"]) == ("masked_patch", "mean_color")
    page = read_page((workdir / "report.html").read_text())
    wanted = ["Training", "Patch filters", "Position embeddings"]
    assert page.headings == [*wanted, "Configuration"]
    assert "target mean_color" in page.text


def test_a_run_is_fine_tuned_from_that_at_another_size(pretrained, images, keras_vit, tmp_path):
    workdir, _ = pretrained
    command = ("finetune", "--weights", workdir, "--dataset", f"folder:{images}", "--image_size", 32, *SHORT)
    done = keras_vit(*command, "--set", "freeze=encoder_norm", "--workdir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout.splitlines()[-1]
    before, after = (keras.saving.load_model(path / "model.keras") for path in (workdir, tmp_path / "run"))
    assert (after.num_classes, after.image_size, tuple(after.class_names)) == (2, (32, 32), ("cat", "dog"))
    for name in ("class_token", "encoder_block_0", "encoder_norm"):  # frozen, so as they were pre-trained
        pairs = zip(before.get_layer(name).get_weights(), after.get_layer(name).get_weights(), strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(one, other)
    assert np.abs(after.get_layer("head").get_weights()[0]).max() > 0


def test_pre_training_with_labels_is_the_recipes(images, keras_vit, tmp_path):
    options = ("--model", "mu/8", "--image_size", 16, "--dataset", f"folder:{images}", *SHORT)
    done = keras_vit("pretrain", *options, "--workdir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipe"]["weight_decay"] == 0.3 and config["objective"] == "classify"


def test_unknown_targets_are_refused(images, keras_vit, tmp_path):
    options = ("--objective", "masked_patch", "--target", "edges", "--model", "mu/8")
    done = keras_vit("pretrain", *options, "--dataset", f"folder:{images}", "--workdir", tmp_path / "run")
    assert done.returncode == 2 and "mean_color" in done.stderr
