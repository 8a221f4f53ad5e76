import dataclasses
import importlib
import json

import pytest

from keras_vit.variants import PUBLISHED, cost
from keras_vit.weights.catalogue import CATALOGUE


@pytest.fixture
def cached(monkeypatch):
    """Pretend that these sources, and no others, are cached."""
    sources = set()
    fetch = importlib.import_module("keras_vit.weights.fetch")  # the module, not the function
    monkeypatch.setattr(fetch, "is_cached", lambda source: source in sources)
    return sources


def listed(keras_vit, *arguments):
    """(names of variants, names of checkpoints) of `models --json`."""
    found = json.loads(keras_vit("models", "--json", "-", *arguments).stdout)
    assert [*found] == ["variants", "catalogue"]
    return [row["variant"] for row in found["variants"]], [row["name"] for row in found["catalogue"]]


def test_the_tables_have_a_row_for_every_variant_and_every_checkpoint(keras_vit):
    done = keras_vit("models")
    assert done.stderr == ""
    title, variants, counted, checkpoints = done.stdout.split("\n\n")
    assert "224 px, 1000 classes" in title
    columns, *rows = variants.splitlines()
    assert columns.split() == ["variant", "tokens", "million", "parameters", "GFLOPs"]
    assert [row.split()[0] for row in rows] == [*PUBLISHED]
    assert ["B/16", "197", "86.6", "35.13"] in [row.split() for row in rows]
    assert counted.startswith(f"{len(CATALOGUE)} of {len(CATALOGUE)} checkpoints")
    columns, *rows = checkpoints.splitlines()
    assert columns.split() == ["name", "variant", "size", "classes", "top-1", "license", "cached"]
    assert [row.split()[0] for row in rows] == [*CATALOGUE]


def test_a_row_has_the_columns_to_choose_by(keras_vit, cached):
    cached.add(CATALOGUE["vit_b16_augreg_in21k_ft_in1k"].source)
    rows = [line.split() for line in keras_vit("models").stdout.splitlines()]
    assert ["vit_b16_augreg_in21k_ft_in1k", "B/16", "224", "1000", "84.5", "apache-2.0", "yes"] in rows
    assert ["vit_b16_dino", "B/16", "224", "apache-2.0"] in rows  # no head, no accuracy, not cached
    assert ["vit_b16_bamboo", "B/16", "224", "115217"] in rows  # no license is stated


def test_the_json_holds_every_field(keras_vit, cached, tmp_path):
    row = CATALOGUE["deit3_s16_in22k_ft_in1k_384"]
    cached.add(row.source)
    done = keras_vit("models", "--json", tmp_path / "models.json")
    assert row.name in done.stdout  # The table is printed, too.
    found = json.loads((tmp_path / "models.json").read_text())
    assert found == json.loads(keras_vit("models", "--json", "-").stdout)
    assert found["variants"] == [{"variant": name, **cost(name)} for name in PUBLISHED]
    assert [listed["name"] for listed in found["catalogue"]] == [*CATALOGUE]
    assert [listed["name"] for listed in found["catalogue"] if listed["cached"]] == [row.name]
    (found_row,) = [listed for listed in found["catalogue"] if listed["name"] == row.name]
    assert found_row == json.loads(json.dumps({**dataclasses.asdict(row), "cached": True}))


def test_all_words_must_match(keras_vit):
    variants, checkpoints = listed(keras_vit, "DEIT3", "--filter", "384", "--filter", "in")
    assert variants == []
    assert checkpoints == [name for name in CATALOGUE if name.startswith("deit3") and name.endswith("384")]
    assert len(checkpoints) == 6


def test_one_variant_is_listed_with_its_checkpoints(keras_vit):
    variants, checkpoints = listed(keras_vit, "--variant", "B/8")
    assert variants == ["B/8"]
    assert checkpoints == [name for name, row in CATALOGUE.items() if row.variant == "B/8"] != []
    assert listed(keras_vit, "--variant", "S/2") == (["S/2"], [])


def test_only_cached_checkpoints_are_listed(keras_vit, cached):
    assert listed(keras_vit, "--cached") == ([], [])
    cached |= {CATALOGUE["vit_b16_dino"].source, CATALOGUE["vit_s16_dino"].source}
    assert listed(keras_vit, "--cached") == ([], ["vit_b16_dino", "vit_s16_dino"])
    assert listed(keras_vit, "--cached", "--variant", "S/16") == ([], ["vit_s16_dino"])
    title, table = keras_vit("models", "--cached", "b16").stdout.split("\n\n")
    assert title.startswith("1 of ") and "vit_b16_dino" in table


def test_variants_whose_patch_is_larger_than_the_image_are_excluded(keras_vit):
    variants, checkpoints = listed(keras_vit, "--image_size", 15)
    assert "H/14" in variants and "B/16" not in variants
    assert checkpoints == [*CATALOGUE]
