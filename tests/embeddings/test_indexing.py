import pyarrow
import pytest
from made.folders import write_broken, write_classes
from reference.small import one_block

from keras_vit.embeddings import (
    embed,
    indexing,
    open_for_embeddings,
    plan_embeddings,
    read_labeled,
    update_index,
)


def updated(tmp_path, out, names):
    """The index after the images of some classes were embedded, and the counts of its update."""
    model, data = one_block(num_classes=None), {"name": f"folder:{tmp_path / 'images'}"}
    write_classes(tmp_path / "images", names, count=2)
    embed(plan_embeddings(tmp_path / out, "", model, data))
    index = open_for_embeddings(tmp_path / "index", str(tmp_path / out))  # As a list of one.
    counts = update_index(index, tmp_path / out)
    index.build()
    return index, counts


def test_images_get_the_labels_of_the_later_state(tmp_path):
    updated(tmp_path, "before", ["bee", "cat"])
    index, counts = updated(tmp_path, "later", ["ant"])  # The classes after it have other numbers.
    assert counts == {"added": 2, "removed": 0, "unreadable": 0}
    for label, name in enumerate(("ant", "bee", "cat")):
        found = index.query(index.vectors[0], 9, [f"label={label}"])
        assert sorted(path.split("/")[-2:] for path, _ in found) == [[name, "00.png"], [name, "01.png"]]


def test_only_vectors_and_columns_of_conditions_are_read(tmp_path, monkeypatch):
    asked, read = [], pyarrow.parquet.read_table
    monkeypatch.setattr(
        pyarrow.parquet,
        "read_table",
        lambda path, columns: asked.append(columns) or read(path, columns=columns),
    )
    data = {"name": f"folder:{write_classes(tmp_path / 'images', count=1)}"}
    embed(plan_embeddings(tmp_path / "out", "", one_block(), data, outputs=("tokens", "pooled", "logits")))
    update_index(open_for_embeddings(tmp_path / "index", [tmp_path / "out"]), [tmp_path / "out"])
    assert asked == [["key", "path", "width", "height", "status", "label", "norm", "embedding"]]


def test_an_image_that_is_there_twice_is_named(tmp_path, monkeypatch):
    table = pyarrow.table({"path": ["a.png", "b.png", "b.png"], "status": ["ok"] * 3})
    monkeypatch.setattr(indexing, "_schema", lambda folder: table.schema)
    monkeypatch.setattr(indexing, "part_tables", lambda folder, columns: [table])
    with pytest.raises(ValueError, match="out' has an image that was there before, 'b.png'"):
        update_index(None, [tmp_path / "out"])


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_part_may_have_no_image_that_can_be_read(partitions, tmp_path):
    model, data = (
        one_block(num_classes=None),
        {"name": f"folder:{write_classes(tmp_path / 'images', count=2)}"},
    )
    for path in [*(tmp_path / "images").rglob("*.png")][:: 1 if partitions == 1 else 4]:
        write_broken(path)
    embed(plan_embeddings(tmp_path / "out", "", model, data, partitions=partitions))
    counts = update_index(open_for_embeddings(tmp_path / "index", [tmp_path / "out"]), [tmp_path / "out"])
    read = 0 if partitions == 1 else 3
    assert counts == {"added": read, "removed": 0, "unreadable": 4 - read}
    if read:
        assert sum(map(len, read_labeled(tmp_path / "out").splits.values())) == read
