import pytest

from keras_vit.data.shard_files import shard_paths, version_of


@pytest.fixture
def folder(tmp_path):
    for name in ("a/train-0.tar", "a/train-1.tar", "a/test-0.tar", "a/.hidden.tar", "a/notes.txt", "b/0.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
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
    assert shard_paths(argument, ".tar") == expected.split()


def test_the_version_is_of_names_and_sizes(folder):
    paths = sorted((folder / "a").glob("*.tar"))
    before = version_of(paths)
    assert version_of([paths[1], paths[0], *paths[2:]]) != before
    paths[0].write_text("other")
    assert version_of(paths) != before
