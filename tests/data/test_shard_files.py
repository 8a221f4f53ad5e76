import pathlib
import time

import pytest
from made.sampling import some
from made.servers import Server, file, serving
from made.tables import by_table

from keras_vit.data.shard_files import shards_of, split_shards, version_of


@pytest.fixture
def folder(tmp_path):
    for name in ("a/train-0.tar", "a/train-1.tar", "a/test-0.tar", "a/.hidden.tar", "a/notes.txt", "b/0.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@by_table(
    "argument, expected",
    [
        ("a", "a/test-0.tar a/train-0.tar a/train-1.tar"),
        ("b::a/train-1.tar", "b/0.tar a/train-1.tar"),
        ("a/train-{0..1}.tar", "a/train-0.tar a/train-1.tar"),
        ("a/{train-{0..1},test-0}.tar", "a/train-0.tar a/test-0.tar a/train-1.tar"),
        ("a/t*-0.tar", "a/test-0.tar a/train-0.tar"),
        ("**/*0.tar", "a/test-0.tar a/train-0.tar b/0.tar"),
        ("{b,a}", "b/0.tar a/test-0.tar a/train-0.tar a/train-1.tar"),
    ],
)
def test_patterns_folders_and_lists_are_files(argument, expected, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert [*map(str, shards_of(argument, ".tar"))] == expected.split()


def test_what_exists_under_the_name_itself_is_no_pattern(tmp_path):
    for folder in ("w{a}", "w[1]", "wa", "w1"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.tar").write_text("")
    for folder in ("w{a}", "w[1]"):
        assert shards_of(f"{tmp_path}/{folder}", ".tar")[0].place == f"{tmp_path}/{folder}/0.tar"
    assert [shard.name for shard in shards_of(f"{tmp_path}/{{wa,w1}}", ".tar")] == ["0.tar", "0.tar"]


@pytest.mark.parametrize("pattern", some(["{a,a}/{0..999}{0..999}.tar", "{0..9}" * 6, "{0..99999}{x,y}"], 3))
def test_a_pattern_of_too_many_files_is_refused_at_once(pattern):
    start = time.process_time()
    with pytest.raises(ValueError, match="expected a pattern for up to 100,000 files; got"):
        shards_of(pattern, ".tar")
    assert time.process_time() - start < 5


def test_a_file_of_two_names_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "a" / "val-0.tar").symlink_to("train-0.tar")
    for argument in ("a", "a/train-0.tar::./a/train-0.tar", f"a/train-0.tar::{folder}/a/train-0.tar"):
        with pytest.raises(ValueError, match=".tar files are named twice: .*a/train-0.tar"):
            shards_of(argument, ".tar")


@by_table(
    "argument",
    [
        "{root}/{{train,val}}/0.tar",
        "{root}/*/0.tar",
        "{root}/??*/[0-9].tar",
        "{root}/train/0.tar::{root}/val/0.tar",
        "{root}/train::{root}/val/*.tar",
        "{root}/{{train,val}}",
        "{root}/./val/::{root}/train",
        "{root}",
        "file://{root}/{{train,val}}/0.tar",
        "file://{root}/*/0.tar",
        "file://{root}/train::{root}/val",
        "file://{root}/",
    ],
)
def test_folders_within_the_common_one_of_an_argument_say_the_splits(argument, tmp_path):
    root = tmp_path / "test"  # A folder above says nothing.
    for name in ("train", "val"):
        (root / name).mkdir(parents=True)
        (root / name / "0.tar").touch()
    splits = split_shards(argument.format(root=root), ".tar")
    assert sorted(splits.values()) == ["train", "validation"]
    for shard, split in splits.items():
        assert f"/{split[:3]}" in shard.place


def test_a_folder_that_all_files_share_says_no_split(tmp_path):
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "0.tar").touch()
    for argument in ("val", "val/0.tar", "val/*.tar", "val/{0..0}.tar"):
        assert [*split_shards(f"{tmp_path}/{argument}", ".tar").values()] == ["train"]


def test_hosts_and_queries_say_no_split(tmp_path):
    with serving(Server()) as server:
        queries = "a.tar?key=test", "b/val.tar?of=train"
        server.answers = {f"/{query}": file(b"") for query in queries}
        splits = split_shards("::".join(f"{server.url}/{query}" for query in queries), ".tar")
    assert [*splits.values()] == ["train", "validation"]


def test_the_version_is_of_names_sizes_and_contents(folder):
    shards = shards_of(f"{folder}/a", ".tar")
    before = version_of(shards, "abc")
    assert version_of([shards[1], shards[0], shards[2]], "abc") != before != version_of(shards, "abd")
    pathlib.Path(shards[0].place).write_text("other")
    assert version_of(shards_of(f"{folder}/a", ".tar"), "abc") != before
