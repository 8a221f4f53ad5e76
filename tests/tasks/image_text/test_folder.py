"""Folders of images and captions: their layouts, splits and errors."""

import json

import pytest
from made.folders import write_broken, write_captions
from made.photos import photo
from made.refusals import assert_is, in_turn, tables
from made.tables import by_table

from keras_vit.data import load_dataset
from keras_vit.data.files import UNDECODABLE
from keras_vit.data.fingerprint import differences, fingerprint


def load(root, **options):
    return load_dataset(f"folder:{root}", texts=True, **options)


def captions_of(dataset):
    """The captions by file, with the split."""
    return {
        image.rpartition("/")[2]: (split, dataset.texts.wordings[split][label])
        for split, samples in dataset.splits.items()
        for image, label in zip(samples.images, samples.labels)
    }


@pytest.mark.parametrize("table", ["metadata.csv", "metadata.jsonl"])
def test_an_image_has_the_captions_of_its_rows(table, tmp_path):
    dataset = load(write_captions(tmp_path, 20, table=table))
    found = captions_of(dataset)
    assert len(found) == 20 and not dataset.ignored_files
    for number in range(20):
        words = f"{('dark', 'bright')[number % 2]} {number}"
        assert found[f"{number:02d}.png"][1] == (f"a photo of {words}", f"some {words}")
    assert [len(samples) for samples in dataset.splits.values()] == [15, 1, 4]
    assert dataset.summary() == "40 captions: 15 train, 1 validation, 4 test; validation and test held out"
    again = load(tmp_path, seed=1)
    assert captions_of(load(tmp_path)) == found != captions_of(again)


def test_a_caption_of_json_has_any_separators_of_lines(tmp_path):
    root = write_captions(tmp_path, 10, table="metadata.jsonl", captions=1)
    caption = "a cat\u2028and\x85a dog"
    row = json.dumps({"file_name": "03.png", "text": caption}, ensure_ascii=False)
    lines = (root / "metadata.jsonl").read_text().splitlines()
    (root / "metadata.jsonl").write_text("\r\n".join([*lines[:3], row, *lines[4:]]), encoding="utf-8")
    assert captions_of(load(root))["03.png"][1] == (caption,)


def test_a_column_or_a_folder_is_the_split(tmp_path):
    root = write_captions(tmp_path / "column", 6, captions=1)
    lines = (root / "metadata.csv").read_text().splitlines()
    splits = ["split", "train", "train", "VALID", "validation", "test", ""]
    (root / "metadata.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(lines, splits)))
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        write_captions(tmp_path / "folders" / split, count, captions=1)
    (tmp_path / "folders" / "train" / "notes.txt").write_text("no image")
    found = {name: load(tmp_path / name) for name in ("column", "folders")}
    for name, dataset in found.items():
        assert [len(samples) for samples in dataset.splits.values()] == [3, 2, 1], name
    assert captions_of(found["column"])["03.png"] == ("validation", ("a photo of bright 3",))
    assert [path[-9:] for path in found["folders"].ignored_files] == ["notes.txt"]


def test_one_table_may_be_of_all_folders(tmp_path):
    rows = ["file_name,text"]
    for split in ("train", "validation", "test"):
        (write_captions(tmp_path / split, 2) / "metadata.csv").unlink()
        rows += [f"{split}/00.png,one of {split}", f"{split}/01.png,two of {split}"]
    (tmp_path / "metadata.csv").write_text("\n".join(rows))
    wordings = load(tmp_path).texts.wordings
    assert wordings == {split: ((f"one of {split}",), (f"two of {split}",)) for split in wordings}


def test_unreadable_images_can_be_skipped_and_turned_ones_are_read(tmp_path):
    write_captions(tmp_path, 20)
    bad = str(write_broken(tmp_path / "03.png"))
    (tmp_path / "04.png").write_bytes(photo(6, "PNG"))
    dataset = load(tmp_path, on_bad_image="skip")
    assert dataset.bad_images == {bad: UNDECODABLE} and "03.png" not in captions_of(dataset)
    assert all(samples.exif for samples in dataset.splits.values())


def test_a_changed_caption_changes_the_fingerprint(tmp_path):
    before = fingerprint(load(write_captions(tmp_path, 20)))
    labels = before["files"]["label"].to_pylist()
    assert '["a photo of dark 0", "some dark 0"]' in labels
    table = tmp_path / "metadata.csv"
    table.write_text(table.read_text().replace("some dark 0", "any dark 0"))
    (found,) = differences(before, fingerprint(load(tmp_path)))
    assert found.startswith("1 file of another label in")


def test_a_caption_may_have_commas_and_line_separators(tmp_path):
    write_captions(tmp_path, 5, captions=1)
    table = tmp_path / "metadata.csv"
    table.write_text(table.read_text().replace("a photo of dark 0", '"a ""dark"", \u2028small photo"'))
    assert captions_of(load(tmp_path))["00.png"][1] == ('a "dark", \u2028small photo',)


def change(old, new):
    def damage(root):
        content = (root / "metadata.csv").read_bytes()
        assert old in content
        (root / "metadata.csv").write_bytes(content.replace(old, new, 1))

    return damage


def in_test(root):
    """All images are in the test split."""
    head, *lines = (root / "metadata.csv").read_text().splitlines()
    (root / "metadata.csv").write_text("\n".join([f"{head},split", *(f"{line},test" for line in lines)]))


def write_json(root):
    (root / "metadata.csv").unlink()
    (root / "metadata.jsonl").write_text('{"file_name": "00.png", "text": "dark"}\n["01.png", "bright"]\n')


DAMAGES = {
    "no table": lambda root: (root / "metadata.csv").unlink(),
    "two tables": lambda root: (root / "metadata.jsonl").write_text(""),
    "a missing column": change(b"text", b"caption"),
    "a row of another length": change(b"some dark 0", b"some, dark 0"),
    "a missing image": change(b"00.png,some", b"99.png,some"),
    "an empty caption": change(b"some dark 0", b" "),
    "a row twice": change(b"some dark 0", b"a photo of dark 0"),
    "an unknown split": in_turn(in_test, change(b",test", b",trial")),
    "an image in two splits": in_turn(in_test, change(b",test", b",train")),
    "no training images": in_test,
    "too few images": change(b"01.png,a photo of bright 1\n01.png,some bright 1\n", b""),
    "a line that is no object": write_json,
    "a quotation mark that is not closed": change(b"some dark 0", b'"some dark 0'),
    "an image outside of the folder": change(b"01.png", b"../1.png"),
    "another encoding": change(b"some dark 0", "größer".encode("latin-1")),
    "a damaged image": lambda root: write_broken(root / "00.png"),
}
MESSAGES, *_ = tables("image_text.md")


def test_the_manual_lists_what_is_refused():
    assert [*MESSAGES] == [*DAMAGES]


@by_table("wrong", DAMAGES)
def test_a_wrong_folder_is_refused_with_the_message_of_the_manual(wrong, tmp_path):
    DAMAGES[wrong](write_captions(tmp_path, 2))
    with pytest.raises(ValueError) as error:
        load(tmp_path)
    assert_is(str(error.value), MESSAGES[wrong].replace("PATH", str(tmp_path)))
