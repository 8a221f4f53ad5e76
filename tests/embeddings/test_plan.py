import dataclasses
import itertools
import json

import pytest

from keras_vit.embeddings.plan import Plan, begin, read_plan

PLAN = Plan("a.keras", "1f", {"name": "digits", "seed": None}, "2e", {"train": 10, "test": 7}, 3)


@pytest.mark.parametrize("partitions", [1, 3, 17])
def test_the_parts_are_all_images_once_in_order(partitions):
    plan = dataclasses.replace(PLAN, partitions=partitions)
    ranges = [plan.ranges(part) for part in range(partitions)]
    images = [(split, n) for split, first, stop in itertools.chain(*ranges) for n in range(first, stop)]
    assert images == [("train", n) for n in range(10)] + [("test", n) for n in range(7)]
    counts = {sum(stop - first for _, first, stop in of_part) for of_part in ranges}
    assert max(counts) - min(counts) <= 1


def test_a_folder_keeps_its_plan(tmp_path):
    begin(tmp_path / "a" / "out", PLAN)
    begin(tmp_path / "a" / "out", PLAN)
    assert read_plan(tmp_path / "a" / "out") == PLAN
    for name, value, words in (
        ("model_digest", "3d", "with another model; choose"),
        ("data_digest", "3d", "with another state of the data; choose"),
        ("partitions", 4, "with another number of parts: 3, and now 4; choose"),
        ("outputs", ("tokens",), r"with another choice of outputs: \('pooled',\), and now \('tokens',\)"),
        ("dtype", "float32", "with another dtype: float16, and now float32"),
    ):
        with pytest.raises(ValueError, match=f"out' was begun {words}"):
            begin(tmp_path / "a" / "out", dataclasses.replace(PLAN, **{name: value}))
        assert dataclasses.replace(PLAN, **{name: value}).digest != PLAN.digest


def test_no_number_depends_on_the_seed_of_the_models_split(tmp_path):
    begin(tmp_path / "out", dataclasses.replace(PLAN, split_seed=3))
    begin(tmp_path / "out", PLAN)
    kept = read_plan(tmp_path / "out")
    assert (kept.split_seed, kept.digest) == (3, PLAN.digest)


def test_folders_of_other_files_and_damaged_plans_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no plan.json; choose a new folder"):
        begin(tmp_path, PLAN)
    with pytest.raises(ValueError, match="holds no plan.json; make it with keras-vit embed"):
        read_plan(tmp_path)
    whole = {"format": "keras_vit embeddings 1", **dataclasses.asdict(PLAN)}
    for content in ("{", "[]", json.dumps({**whole, "format": 2}), json.dumps({**whole, "more": 1})):
        (tmp_path / "plan.json").write_text(content)
        with pytest.raises(ValueError, match="plan.json' is damaged: .+") as error:
            read_plan(tmp_path)
        assert "\n" not in str(error.value)
