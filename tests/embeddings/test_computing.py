import concurrent.futures
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from made.folders import BROKEN, write_classes
from made.servers import Server, file, serving
from made.shards import encoded, write_parquet, write_tar
from reference.small import small

from keras_vit.embeddings import computing, parts
from keras_vit.embeddings.computing import embed, embed_part, plan_embeddings
from keras_vit.evaluation.representations import encoder_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(the path of a model, the model)."""
    path, model = tmp_path_factory.mktemp("model") / "model.keras", small()
    model.save(path)
    return str(path), model


@pytest.fixture
def folder(tmp_path):
    """Twenty images of two classes, of which one is damaged."""
    write_classes(tmp_path / "images", count=10)
    (tmp_path / "images" / "dog" / "03.png").write_bytes(BROKEN)
    return tmp_path / "images"


def begun(model, folder, out, **options):
    options = {"partitions": 3, "batch_size": 4, **options}
    return plan_embeddings(out, *model, {"name": f"folder:{folder}"}, **options)


def bytes_of(out):
    return {path.name: path.read_bytes() for path in out.glob("*.parquet")}


def rows_of(out):
    return parts.read_embeddings(out).to_pylist()


def test_each_image_has_a_row_and_a_damaged_one_its_error(model, folder, tmp_path):
    found = embed(begun(model, folder, tmp_path / "out", outputs=("pooled", "classes"), dtype="float32"))
    assert found == {"parts": 3, "written": 3, "elsewhere": 0, "images": 20, "errors": 1}
    rows = {row["path"]: row for row in rows_of(tmp_path / "out")}
    assert len(rows) == 20 and len({row["key"] for row in rows.values()}) == 20
    bad = rows.pop(str(folder / "dog" / "03.png"))
    assert bad["status"].startswith("not a readable image") and bad["embedding"] is bad["norm"] is None
    paths = sorted(rows)
    expected = encoder_of(model[1])[0](model[1].preprocessing(paths))
    np.testing.assert_allclose([rows[path]["embedding"] for path in paths], expected, atol=1e-6)
    for path in paths:
        row = rows[path]
        assert (row["status"], row["width"], row["height"]) == (parts.OK, 32, 32)
        assert row["label"] == ("dog" in path) and abs(sum(row["classes"]) - 1) < 1e-6
        assert row["norm"] == pytest.approx(np.linalg.norm(row["embedding"]), rel=1e-6)
    metadata = parts.metadata_of(next((tmp_path / "out").glob("part-00001*")))
    assert metadata["outputs"] == {"pooled": [12], "classes": [5]} and metadata["class_names"] == [
        "cat",
        "dog",
    ]
    assert metadata["dataset"] == "images" and metadata["versions"].keys() >= {"keras_vit", "keras"}


@pytest.mark.slow
def test_parts_have_the_same_bytes_in_any_process_and_order(model, folder, tmp_path):
    embed(begun(model, folder, tmp_path / "whole"))
    whole = bytes_of(tmp_path / "whole")
    embedder = begun(model, folder, tmp_path / "shards")
    assert embed(embedder, shard=(1, 2))["parts"] == 1
    assert embed(embedder, shard=(0, 2))["written"] == 2
    begun(model, folder, tmp_path / "engine")
    for part in (2, 0, 1):
        assert os.path.basename(embed_part(tmp_path / "engine", part)) in whole
    plans = [(tmp_path / name / "plan.json").read_bytes() for name in ("whole", "shards", "engine")]
    assert bytes_of(tmp_path / "shards") == bytes_of(tmp_path / "engine") == whole and len({*plans}) == 1


@pytest.mark.slow
def test_threads_share_one_open_model(model, folder, tmp_path, monkeypatch):
    begun(model, folder, tmp_path / "out", partitions=4)
    computing._opened.cache_clear()
    opened, load = [], computing.from_pretrained
    monkeypatch.setattr(computing, "from_pretrained", lambda *a, **k: opened.append(a) or load(*a, **k))
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        paths = [*threads.map(lambda part: embed_part(tmp_path / "out", part), range(4))]
    assert len(opened) == 1
    embed(begun(model, folder, tmp_path / "whole", partitions=4))
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole") and len({*paths}) == 4


@pytest.mark.slow
def test_what_is_written_is_kept_and_the_rest_is_computed_after_an_error(
    model, folder, tmp_path, monkeypatch
):
    embed(begun(model, folder, tmp_path / "whole"))
    embedder, out = begun(model, folder, tmp_path / "out"), tmp_path / "out"
    calls, encode = [], embedder.encoder

    def stopping(inputs):
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return encode(inputs)

    stopping.preprocessing, stopping.shapes = encode.preprocessing, encode.shapes
    with pytest.raises(KeyboardInterrupt):
        embed(computing.dataclasses.replace(embedder, encoder=stopping))
    first = {name: os.stat(out / name).st_mtime_ns for name in bytes_of(out)}
    assert len(first) == 1 and sorted(os.listdir(out)) == [*first, "plan.json"]
    assert embed(begun(model, folder, out))["written"] == 2
    assert bytes_of(out) == bytes_of(tmp_path / "whole")
    assert os.stat(out / [*first][0]).st_mtime_ns == [*first.values()][0]


@pytest.mark.slow
def test_a_part_that_another_process_computes_is_left_to_it(model, folder, tmp_path):
    embedder = begun(model, folder, tmp_path / "out")
    with computing._claimed(embedder, 1) as is_own:
        assert is_own
        found = embed(embedder, claim=True)
        assert (found["written"], found["elsewhere"]) == (2, 1)
    assert embed(embedder, claim=True)["written"] == 1
    assert sorted(os.listdir(tmp_path / "out")) == [*sorted(bytes_of(tmp_path / "out")), "plan.json"]


@pytest.mark.slow
def test_changes_are_refused_and_nothing_is_lost(model, folder, tmp_path):
    out = tmp_path / "out"
    embed(begun(model, folder, out))
    whole = bytes_of(out)
    other = small(hidden_size=24)
    other.save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="was begun with another model"):
        plan_embeddings(out, str(tmp_path / "other.keras"), other, {"name": f"folder:{folder}"}, partitions=3)
    (folder / "cat" / "more.png").write_bytes(encoded(1))
    with pytest.raises(ValueError, match="was begun with another state of the data"):
        begun(model, folder, out)
    computing._opened.cache_clear()
    with pytest.raises(ValueError, match="the data set has changed since .* was begun"):
        embed_part(out, 0)
    with pytest.raises(ValueError, match="expected a part from 0 to 2; got 3"):
        embed_part(out, 3)
    (folder / "cat" / "more.png").unlink()
    damaged, foreign = (out / f"part-0000{n}-of-00003.parquet" for n in (0, 1))
    damaged.write_bytes(whole[damaged.name][:100])
    with pytest.raises(ValueError, match="part-00000.*' is no part of embeddings, or is damaged"):
        embed(begun(model, folder, out))
    damaged.unlink()
    embed(begun(model, folder, tmp_path / "32", dtype="float32"))
    foreign.write_bytes((tmp_path / "32" / foreign.name).read_bytes())
    with pytest.raises(ValueError, match="part-00001.*' is of another plan; remove it"):
        embed(begun(model, folder, out))
    foreign.unlink()
    assert embed(begun(model, folder, out))["written"] == 2 and bytes_of(out) == whole


def test_wrong_options_are_refused_before_anything_is_written(model, folder, tmp_path):
    for options, words in (
        ({"outputs": ("pooled", "norm")}, "outputs must be one of 'pooled', 'tokens', 'logits', 'classes'"),
        ({"outputs": ("pooled", "pooled")}, "each once; got pooled, pooled"),
        ({"dtype": "float64"}, "dtype must be one of 'float16', 'float32'; got 'float64'"),
        ({"partitions": 21}, "expected at most 20 parts, one for each image; got 21"),
        ({"batch_size": 0}, "batch_size must be a positive int; got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            begun(model, folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    embedder = begun(model, folder, tmp_path / "out")
    for shard in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="expected a shard .* from 0 to n - 1; got"):
            embed(embedder, shard)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["plan.json"]


@pytest.mark.slow
def test_numbers_too_large_for_float16_are_refused(folder, tmp_path):
    model = small()
    model.get_layer("head").bias.assign([70_000.0] * 5)
    with pytest.raises(ValueError, match="the output logits has 7.*, which float16 cannot hold; use float32"):
        embed(begun(("", model), folder, tmp_path / "out", outputs=("logits",)))
    assert os.listdir(tmp_path / "out") == ["plan.json"]


@pytest.mark.slow
def test_a_shard_that_vanishes_stops_and_the_rest_follows(model, tmp_path):
    for shard in (0, 1):
        members = [(f"{n}.png", encoded(n + 10 * shard)) for n in range(10)]
        write_tar(tmp_path / "tars" / f"{shard}.tar", members)
    options = {"name": f"webdataset:{tmp_path}/tars", "labels": False}

    def begin():
        return plan_embeddings(tmp_path / "out", *model, options, partitions=4, batch_size=4)

    embedder = begin()
    content = (tmp_path / "tars" / "1.tar").read_bytes()
    (tmp_path / "tars" / "1.tar").unlink()
    with pytest.raises(OSError, match="1.tar"):
        embed(embedder)
    assert len(bytes_of(tmp_path / "out")) == 2
    (tmp_path / "tars" / "1.tar").write_bytes(content)
    with pytest.raises(OSError, match="1.tar' has changed since the data set was loaded"):
        embed(embedder)
    assert embed(begin())["written"] == 2
    assert "label" not in rows_of(tmp_path / "out")[0]


@pytest.mark.slow
def test_a_part_that_is_a_copy_of_another_is_refused(model, folder, tmp_path):
    out = tmp_path / "out"
    embed(begun(model, folder, out))
    shutil.copy(out / "part-00000-of-00003.parquet", out / "part-00001-of-00003.parquet")
    for read in (parts.read_embeddings, lambda out: embed(begun(model, folder, out))):
        with pytest.raises(ValueError, match="part-00001-of-00003.parquet' holds part 0; remove it"):
            read(out)


REWRITTEN = {
    "fewer rows": (lambda table: table.slice(1), "expected 7 rows; got 6; remove it"),
    "no vectors": (lambda table: table.drop_columns(["embedding"]), "the column 'embedding'; got none"),
    "lists": (
        lambda table: table.set_column(
            table.schema.get_field_index("embedding"),
            "embedding",
            table["embedding"].cast(pyarrow.list_(pyarrow.float16())),
        ),
        r"expected float16 vectors of one length in .*; got list<",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change, message", REWRITTEN.values(), ids=REWRITTEN)
def test_a_part_that_another_program_has_rewritten_is_refused(change, message, model, folder, tmp_path):
    out = tmp_path / "out"
    embed(begun(model, folder, out))
    path = out / "part-00001-of-00003.parquet"
    pyarrow.parquet.write_table(change(pyarrow.parquet.read_table(path)), path)
    for read in (parts.read_embeddings, lambda out: embed(begun(model, folder, out))):
        with pytest.raises(ValueError, match=f"part-00001-of-00003.parquet' is damaged: .*{message}"):
            read(out)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".tar"])
@pytest.mark.parametrize("labels", [[0, 1] * 4, [0, -1] * 4, None])
def test_labels_are_read_where_all_images_have_them(labels, suffix, model, tmp_path):
    columns = {"image": [encoded(n) for n in range(8)]} | ({"label": labels} if labels else {})
    if suffix == ".parquet":
        path = write_parquet(tmp_path / "a.parquet", columns)
    else:
        images = ((f"{n}.png", encoded(n)) for n in range(8))
        members = [(f"{n}.cls", b"%d" % label) for n, label in enumerate(labels or [])]
        pairs = itertools.zip_longest(images, members)
        path = write_tar(tmp_path / "a.tar", (member for pair in pairs for member in pair if member))
    source = {".parquet": "parquet", ".tar": "webdataset"}[suffix]
    assert embed(plan_embeddings(tmp_path / "out", *model, {"name": f"{source}:{path}"}))["images"] == 8
    expected = [None] * 8 if labels is None or -1 in labels else labels
    rows = sorted(rows_of(tmp_path / "out"), key=lambda row: row["key"])
    assert [row.get("label") for row in rows] == expected


@pytest.mark.slow
def test_a_part_is_written_into_a_folder_of_the_home_folder(model, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    begun(model, folder, "~/out")
    assert embed_part("~/out", 1) == f"{tmp_path}/out/part-00001-of-00003.parquet"
    assert sorted(os.listdir(tmp_path / "out")) == ["part-00001-of-00003.parquet", "plan.json"]


@pytest.mark.slow
def test_a_plan_has_no_secrets_and_is_continued_with_another_signature(model, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    path = write_tar(tmp_path / "a.tar", ((f"{n}.png", encoded(n)) for n in range(8)))
    with serving(Server()) as server:
        server.answers = {f"/a.tar?sig=secret{n}": file(path.read_bytes()) for n in range(2)}
        names = [
            f"webdataset:{server.url.replace('//', '//me:secret@')}/a.tar?sig=secret{n}" for n in range(2)
        ]
        for name, written in zip(names, (2, 0)):
            embedder = plan_embeddings(tmp_path / "out", *model, {"name": name}, partitions=2)
            assert embed(embedder)["written"] == written
        with pytest.raises(
            ValueError, match=f"the URLs webdataset:{server.url}/a.tar[?]…, of which no secrets"
        ):
            embed_part(tmp_path / "out", 0)
    assert "secret" not in (tmp_path / "out" / "plan.json").read_text()
    assert rows_of(tmp_path / "out")[0]["path"] == f"{server.url}/a.tar?…/0.png"


def test_the_plan_has_absolute_paths(model, folder, tmp_path, monkeypatch):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    monkeypatch.chdir(tmp_path)
    source = {"name": f"folder:{folder}", "classes": "classes.txt", "data_dir": "tfds", "labels": True}
    embedder = plan_embeddings("out", *model, source, partitions=3, batch_size=4)
    data = embedder.plan.dataset
    assert [data[name] for name in ("classes", "data_dir")] == [f"{tmp_path}/classes.txt", f"{tmp_path}/tfds"]


@pytest.mark.slow
def test_embeddings_are_read_whole_or_not_at_all(model, folder, tmp_path):
    out = tmp_path / "out"
    embedder = begun(model, folder, out)
    embed(embedder, shard=(0, 2))
    with pytest.raises(ValueError, match="out' lacks 1 of 3 parts, such as part-00001-of-00003.parquet; run"):
        parts.read_embeddings(out)
    embed(embedder)
    assert parts.read_embeddings(out, ["norm", "key"]).column_names == ["norm", "key"]
    assert parts.read_embeddings(out, "norm").column_names == ["norm"]
    with pytest.raises(ValueError, match="out' has no column 'vector'; it has key, path, width"):
        parts.read_embeddings(out, ["vector"])


def command(model, folder, out, *options):
    words = [sys.executable, "-m", "keras_vit", "embed", "--model", model[0], "--dataset", f"folder:{folder}"]
    return [*words, "--output", str(out), "--partitions", "40", "--batch_size", "4", *options]


@pytest.mark.slow
def test_ten_kills_leave_the_bytes_of_an_uninterrupted_command(model, tmp_path):
    folder, out = write_classes(tmp_path / "images", count=200), tmp_path / "out"
    subprocess.run(command(model, folder, tmp_path / "whole"), check=True)
    rng = np.random.default_rng(0)
    for _ in range(10):
        count = len(bytes_of(out)) if out.exists() else 0
        with subprocess.Popen(command(model, folder, out)) as process:
            while process.poll() is None and (not out.exists() or len(bytes_of(out)) == count):
                time.sleep(0.002)
            time.sleep(float(rng.uniform(0, 0.03)))
            process.send_signal(signal.SIGKILL)
    assert 0 < len(bytes_of(out)) < 40
    subprocess.run(command(model, folder, out), check=True)
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_share_the_parts_of_one_command(model, tmp_path):
    folder, out = write_classes(tmp_path / "images", count=200), tmp_path / "out"
    subprocess.run(command(model, folder, tmp_path / "whole"), check=True)
    claiming = command(model, folder, out, "--claim", "--json", "-")
    processes = [subprocess.Popen(claiming, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(process.communicate()[0]) for process in processes]
    assert sum(of["written"] for of in found) == 40 and all(of["written"] for of in found)
    assert bytes_of(out) == bytes_of(tmp_path / "whole")
