"""The catalogue equals timm's own metadata."""

import re

import pytest

from keras_vit.weights.catalogue import CATALOGUE

timm = pytest.importorskip("timm", reason="timm is not installed; the catalogue was read off it")
pytest.importorskip("torch")

PREFIX = "hf://timm/"
ROWS = [row for row in CATALOGUE.values() if row.source.startswith(PREFIX)]


def tagged(row):
    """timm's name of the row's weights; for quick_gelu the architecture that computes it."""
    name = row.source.removeprefix(PREFIX)
    if row.options.get("activation") == "quick_gelu":
        return re.sub(r"_clip_", "_clip_quickgelu_", name)
    return name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_timms_preprocessing(row):
    config = timm.get_pretrained_cfg(tagged(row))
    assert config.hf_hub_id == row.source.removeprefix("hf://")
    assert config.input_size == (3, *row.image_size)
    assert (config.num_classes or None, config.license) == (row.num_classes, row.licence)
    wanted = {"crop": "center"}.get(row.preprocessing["resize"], "squash")
    assert (config.crop_mode, config.interpolation) == (wanted, row.preprocessing["interpolation"])
    assert row.preprocessing.get("crop_fraction", config.crop_pct) == config.crop_pct
    assert (tuple(config.mean), tuple(config.std)) == (row.preprocessing["mean"], row.preprocessing["std"])


def test_every_plain_model_is_in_the_catalogue():
    """Missing ones have a reason: another kind of block, no repository, or a duplicate."""
    listed = {row.source.removeprefix(PREFIX) for row in ROWS}
    reasons = r"_xp_|pwee|_d\w*wee|dlittle|mci|lingbot|\.pali|quickgelu"
    left = []
    for module in ("vision_transformer", "vision_transformer_hybrid", "deit", "eva", "beit", "naflexvit"):
        for name in timm.list_models(module=module, pretrained=True):
            repository = timm.get_pretrained_cfg(name).hf_hub_id
            if repository and repository.removeprefix("timm/") not in listed and not re.search(reasons, name):
                left.append(name)
    assert not left
