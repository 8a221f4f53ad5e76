import pytest
from made.tables import by_table

from keras_vit.training import RECIPES, RunConfig


@by_table(
    "objective, fields, changes, message",
    [
        ("classify", {"target": "pixels"}, {}, "'classify' .* does not use target='pixels'"),
        ("mae", {"target": "pixels"}, {}, "'mae' .* does not use target='pixels'"),
        ("classify", {"tokenizer": "words"}, {}, "does not use tokenizer='words'"),
        ("igpt", {"tokenizer": "words"}, {"image_text": {}}, r"use image_text=\{\}, tokenizer='words'"),
        ("classify", {}, {"head_options": {"head": "up"}}, "task 'single_label' does not use head_options="),
        ("classify", {}, {"task": "regression", "loss": "sigmoid"}, "does not use loss='sigmoid'"),
        ("classify", {}, {"task": "segmentation", "loss": "sigmoid"}, "does not use loss='sigmoid'"),
        ("classify", {}, {"task": "detection", "head_bias": -3.0}, "does not use head_bias=-3.0"),
        ("mae", {}, {"label_smoothing": 0.1}, "does not use label_smoothing=0.1"),
        ("mae", {}, {"head_bias": -3.0, "loss": "sigmoid"}, "does not use head_bias=-3.0, loss='sigmoid'"),
        ("mae", {}, {"task": "segmentation", "head_options": {}}, r"does not use head_options=\{\}"),
        ("classify", {"sha256": "0" * 64}, {}, "expected weights with sha256, .* got sha256='00"),
        ("classify", {}, {"pretrainer": {}}, "without labels: expected objective .*'masked_patch'"),
    ],
)
def test_fields_that_a_run_does_not_use_are_refused(objective, fields, changes, message):
    recipe = RECIPES["digits"].with_changes(
        **{"crop_area": None, "shift": 0, "flip": False, "label_smoothing": 0.0, "mixup": 0.0, **changes}
    )
    with pytest.raises(ValueError, match=message):
        RunConfig("digits", recipe, "mu/8", objective=objective, **fields)


def test_a_configuration_as_json_has_no_secrets_of_urls():
    url, shown = "https://me:secret@host/{}?sig=secret", "https://host/{}?…"
    config = RunConfig(
        f"webdataset:{url.format('a')}::{url.format('b')}*0.5 + parquet:{url.format('c')}*2",
        RECIPES["digits"].with_changes(label_smoothing=0.0, mixup=0.0),
        weights=url.format("d"),
        teachers=(url.format("e"), "embeddings:/f"),
    )
    found = config.as_json()
    assert found["dataset"] == (
        f"webdataset:{shown.format('a')}::{shown.format('b')}*0.5 + parquet:{shown.format('c')}*2"
    )
    assert (found["weights"], found["teachers"]) == (shown.format("d"), (shown.format("e"), "embeddings:/f"))
    assert config.weights == url.format("d")


def test_the_target_of_masked_patches_is_used():
    assert RunConfig("digits", RECIPES["plain_s16"], "S/16", objective="masked_patch", target="pixels")
