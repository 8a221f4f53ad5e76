import hashlib

import pytest
from made.sampling import some
from made.servers import asked_hub
from made.shards import encoded, read, structs, write_parquet, write_tar

from keras_vit.data.datasets import load_dataset
from keras_vit.data.sources.hf import parse_name

README = """---
license: mit
configs:
- config_name: small
  data_files: "small/*.parquet"
- config_name: large
  default: true
  data_files:
  - split: train
    path: ["large/a.parquet", "large/b*.parquet"]
  - split: test
    path: large/c.parquet
  - split: extra
    path: large/d.parquet
---
# Cats
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with asked_hub(tmp_path / "cache", monkeypatch) as server:
        yield server


@pytest.fixture
def publish(hub, tmp_path):
    """A function that publishes files as a revision of org/cats."""

    def publish(files, revision="main"):
        commit = hashlib.sha1(repr(files).encode(), usedforsecurity=False).hexdigest()
        versions = hub.repositories.setdefault("org/cats", {})
        versions[revision] = versions[commit] = commit, files
        return commit

    return publish


def parquet(folder, numbers):
    columns = {"image": structs(numbers), "label": [number % 3 for number in numbers]}
    return write_parquet(folder / "some.parquet", columns).read_bytes()


def images(split):
    return sorted(number for number, _ in read(split.evaluation_records()))


def test_the_readme_lists_the_files_of_a_configuration(publish, tmp_path, hub):
    files = {
        f"large/{name}.parquet": parquet(tmp_path, range(10 * n, 10 * n + 10))
        for n, name in enumerate("abcd")
    }
    files["small/test-0.parquet"] = parquet(tmp_path, range(50, 59))
    files["small/train-0.parquet"] = parquet(tmp_path, range(60, 90))
    commit = publish({"README.md": README.encode(), **files})
    data = load_dataset("hf:org/cats")
    assert data.version == f"org/cats@{commit}"
    assert images(data.split("test")) == [*range(20, 30)]
    assert len(data.split("train")) + len(data.split("validation")) == 20
    small = load_dataset("hf:org/cats/small")
    assert images(small.split("test")) == [*range(50, 59)]
    assert not any("large/d" in path for _, path, _ in hub.seen)
    with pytest.raises(ValueError, match="^hf:org/cats/huge: expected one of .* small, large; got huge$"):
        load_dataset("hf:org/cats/huge")


@pytest.mark.parametrize("folder", some(["data/", "", "data/toy/"], 3))
def test_without_configurations_the_names_of_files_say_the_splits(folder, publish, tmp_path):
    contents = {"train": parquet(tmp_path, range(30)), "test": parquet(tmp_path, range(30, 36))}
    publish({f"{folder}{split}-00000-of-00001.parquet": content for split, content in contents.items()}, "v2")
    assert images(load_dataset("hf:org/cats@v2").split("test")) == [*range(30, 36)]


def test_tar_files_and_their_fields_are_read(publish, tmp_path):
    members = [(f"{n}.{k}", c) for n in range(20) for k, c in (("png", encoded(n)), ("json", {"y": n % 2}))]
    publish({"data/train-0.tar": write_tar(tmp_path / "a.tar", members).read_bytes(), "README.md": b"# Cats"})
    data = load_dataset("hf:org/cats", fields=["label=json:y"])
    assert all(label == n % 2 for n, label in read(data.split("train").evaluation_records()))


def test_other_formats_are_read_from_the_branch_that_the_hub_converts(publish, tmp_path):
    publish({"all.zip": b"", "README.md": b"# Cats"})
    with pytest.raises(ValueError, match="no Parquet and no tar files; it has files of .md, .zip"):
        load_dataset("hf:org/cats")
    content = parquet(tmp_path, range(20))
    commit = publish({"default/train/0000.parquet": content, "default/test/0000.parquet": content}, CONVERTED)
    data = load_dataset("hf:org/cats")
    assert (data.version, len(data.split("test"))) == (f"org/cats@{commit}", 20)
    publish({"default/partial-train/0000.parquet": content}, CONVERTED)
    with pytest.raises(ValueError, match="^hf:org/cats: the Hub has converted only the first part"):
        load_dataset("hf:org/cats")


def test_files_of_other_kinds_are_refused_before_they_are_downloaded(publish, hub):
    readme = "---\nconfigs:\n- config_name: default\n  data_files: all.csv\n---\n"
    publish({"README.md": readme.encode(), "all.csv": b""})
    with pytest.raises(ValueError, match="^hf:org/cats: expected .parquet or .tar files; got .csv$"):
        load_dataset("hf:org/cats")
    assert not any(path.endswith("all.csv") for _, path, _ in hub.seen)


CONVERTED = "refs/convert/parquet"


def test_without_an_answer_the_cache_is_read(publish, tmp_path, monkeypatch):
    from huggingface_hub import constants

    commit = publish({"data/train-0.parquet": parquet(tmp_path, range(30))})
    load_dataset("hf:org/cats")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    data = load_dataset("hf:org/cats")
    assert data.version == f"org/cats@{commit}" and sum(map(len, data.splits.values())) == 30
    with pytest.raises(ValueError, match="^hf:org/dogs: HF_HUB_OFFLINE is set, and .* have main of it$"):
        load_dataset("hf:org/dogs")
    [blob] = (tmp_path / "cache").glob("*/snapshots/*/data/train-0.parquet")
    blob.unlink()
    with pytest.raises(ValueError, match="^hf:org/cats: ") as refused:
        load_dataset("hf:org/cats")
    assert "\n" not in str(refused.value)


def test_unknown_data_sets_and_revisions_are_refused(publish, hub):
    with pytest.raises(ValueError, match="^hf:org/cats: ") as refused:
        load_dataset("hf:org/cats")
    assert "\n" not in str(refused.value)
    publish({})
    with pytest.raises(ValueError, match="^hf:org/cats@v9: .*"):
        load_dataset("hf:org/cats@v9")
    with pytest.raises(ValueError, match="expected hf:ORG/NAME"):
        parse_name("cats")
