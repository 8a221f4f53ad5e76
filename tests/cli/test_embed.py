import json
import os

import pytest
from made.folders import write_broken
from made.tables import by_table
from reference.small import one_block

from keras_vit import from_pretrained
from keras_vit.embeddings import embed, plan_embeddings, read_embeddings
from keras_vit.embeddings.plan import read_plan


def test_the_command_writes_parts_and_says_what_it_wrote(model, images, keras_vit, tmp_path):
    words = ("embed", "--model", model, "--data", f"folder:{images}", "--output", tmp_path / "out")
    done = keras_vit(*words, "--partitions", "3", "--shard", "1/2")
    assert done.stderr == ""
    summary, *rows = done.stdout.splitlines()
    assert summary.startswith("2 classes (cat, dog): 20 train")
    assert dict(row.split() for row in rows) == {
        **{"output": str(tmp_path / "out"), "parts": "1", "written": "1", "elsewhere": "0"},
        **{"images": "7", "errors": "0"},
    }
    found = json.loads(keras_vit(*words, "--partitions", "3", "--json", "-").stdout)
    assert (found["written"], found["images"]) == (2, 13)
    table = read_embeddings(tmp_path / "out")
    assert table.num_rows == 20 and table["label"].to_pylist().count(0) == 10


def test_the_folder_keeps_the_seed_of_the_runs_split(images, keras_vit, tmp_path):
    one_block().save(tmp_path / "model.keras")
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"seed": 5}}))
    words = ("embed", "--model", tmp_path, "--data", f"folder:{images}", "--output", tmp_path / "out")
    keras_vit(*words)
    assert read_plan(tmp_path / "out").split_seed == 5


@pytest.mark.slow
def test_functions_continue_what_the_command_began(model, images, keras_vit, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    words = ("embed", "--model", model.name, "--data", f"folder:{images}", "--output", tmp_path / "out")
    keras_vit(*words, "--partitions", "3", "--shard", "1/2")
    data = {"name": f"folder:{os.path.relpath(images)}"}
    embedder = plan_embeddings(tmp_path / "out", model.name, from_pretrained(model), data, partitions=3)
    assert embed(embedder)["written"] == 2 and embedder.plan.model == str(model)


@pytest.mark.slow
def test_folders_of_photographs_need_no_classes(model, tmp_path, keras_vit, images):
    for number, path in enumerate(sorted(images.rglob("*.png"))[:3]):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{number}.png").write_bytes(path.read_bytes())
    write_broken(tmp_path / "photos" / "4.png")
    words = ("--dataset", f"folder:{tmp_path}/photos", "--outputs", "pooled,logits", "--json", "-")
    done = keras_vit("embed", "--model", model, *words, "--output", tmp_path / "out")
    assert json.loads(done.stdout)["errors"] == 1
    assert done.stderr == "images without labels: 4 train\n"
    assert read_embeddings(tmp_path / "out").column_names == [
        *("key", "path", "width", "height", "status", "embedding", "logits", "norm")
    ]


@by_table(
    "options, words",
    [
        (("--shard", "2/2"), "expected I/N with I from 0 to N - 1, such as 0/4; got '2/2'"),
        (("--partitions", "0"), "expected a positive integer; got '0'"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, words, model, images, refused, tmp_path):
    command = ("embed", "--model", model, "--dataset", f"folder:{images}", "--output", tmp_path / "out")
    refused((*command, *options), words)
    assert not (tmp_path / "out").exists()
