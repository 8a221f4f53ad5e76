import re
import shutil

import pytest
from made.box_folders import OBJECTS, load, objects_of, write_images, write_voc
from made.tables import by_table

ALL = range(12)


def write(root, folder="ImageSets/Main", **lists):
    """Images with boxes, and lists of some."""
    write_voc(root)
    (root / folder).mkdir(parents=True)
    for name, numbers in lists.items():
        (root / folder / f"{name}.txt").write_text("".join(f"{number:02}\n" for number in numbers))


def numbers_of(data):
    return {split: sorted(int(path[-6:-4]) for path in of.images) for split, of in data.splits.items()}


# The lists → the numbers of the images of each split, without what is held out.
LISTS = {
    "all": (
        {"train": ALL[:4], "val": ALL[4:8], "trainval": ALL[:8], "test": ALL[8:]},
        {"train": ALL[:4], "validation": ALL[4:8], "test": ALL[8:]},
    ),
    "train and val": ({"train": ALL[:8], "val": ALL[8:]}, {"train": ALL[:8], "validation": ALL[8:]}),
    "trainval": ({"trainval": ALL[:8]}, {"train": ALL[:8]}),
    "trainval and test": ({"trainval": ALL[:8], "test": ALL[8:]}, {"train": ALL[:8], "test": ALL[8:]}),
    "train and trainval": (
        {"train": ALL[:4], "trainval": ALL[:8]},
        {"train": ALL[:4], "validation": ALL[4:8]},
    ),
    "val and trainval": ({"val": ALL[:4], "trainval": ALL[:8]}, {"train": ALL[4:8], "validation": ALL[:4]}),
}


def test_sides_with_a_zero_among_them_are_edges(tmp_path):
    write_voc(tmp_path)
    for path in tmp_path.glob("Annotations/*.xml"):
        text = re.sub(r"(<[xy]min>)(\d+)", lambda side: f"{side[1]}{int(side[2]) - 1}", path.read_text())
        path.write_text(text)
    assert objects_of(load(tmp_path, seed=None).split("train")) == dict(enumerate(OBJECTS))


@pytest.mark.parametrize("folder", ["ImageSets/Main", "ImageSets"])
@pytest.mark.parametrize("lists", LISTS)
def test_lists_state_the_splits(lists, folder, tmp_path):
    named, splits = LISTS[lists]
    write(tmp_path, folder, cat_train=ALL, **named)
    data = load(tmp_path, seed=None)
    assert numbers_of(data) == {split: list(numbers) for split, numbers in splits.items()}
    assert all(f"from {folder}/" in data.split_sources[split] for split in splits)


@by_table(
    "lists, message",
    [
        ({"train": ALL[:4], "val": ALL[3:]}, r"val.txt: '03' is in .*/train.txt, too$"),
        ({"trainval": ALL[:9], "test": ALL[8:]}, r"trainval.txt: '08' is in .*/test.txt"),
        ({"train": ALL[:4], "val": ALL[4:8], "trainval": ALL}, "'08' is neither in train nor in val$"),
        ({"train": range(14)}, r"train.txt: 2 image\(s\) have no XML file: 12, 13$"),
        ({"test": ALL[:4]}, "has no images to train on; it has test$"),
    ],
)
def test_lists_that_contradict_each_other_are_refused(lists, message, tmp_path):
    write(tmp_path, **lists)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_the_lists_of_several_years_are_about_their_own_images(tmp_path):
    write(tmp_path / "VOC2007", trainval=ALL[:4], test=ALL[4:8])
    write(tmp_path / "VOC2012", trainval=ALL[4:8])
    data = load(tmp_path, seed=None)
    assert numbers_of(data) == {"train": [*ALL[:8]], "test": [*ALL[4:8]]}
    assert all("/VOC2007/" in path for path in data.split("test").images)


@pytest.mark.parametrize("folder", ["{split}/{name}", "{name}/{split}"])
def test_splits_may_have_images_of_equal_names(folder, tmp_path):
    write_voc(tmp_path / "made")
    for split in ("train", "val"):
        for name in ("JPEGImages", "Annotations"):
            target = tmp_path / "data" / folder.format(split=split, name=name)
            shutil.copytree(tmp_path / "made" / name, target)
    data = load(tmp_path / "data", seed=None)
    assert numbers_of(data) == {"train": [*ALL], "validation": [*ALL]}
    assert all("/val/" in path for path in data.split("validation").images)


def test_images_may_have_another_suffix_than_their_labels_say(tmp_path):
    write_voc(tmp_path)
    for path in (tmp_path / "JPEGImages").iterdir():
        path.unlink()
    write_images(tmp_path / "JPEGImages", ".PNG")
    assert len(load(tmp_path, seed=None).split("train")) == 12


def test_a_file_has_the_encoding_that_it_says(tmp_path):
    write_voc(tmp_path)
    path = tmp_path / "Annotations/00.xml"
    text = path.read_text().replace("dog", "hérisson")
    path.write_bytes(f'<?xml version="1.0" encoding="latin-1"?>{text}'.encode("latin-1"))
    assert load(tmp_path).class_names == ("cat", "dog", "hérisson")


@pytest.mark.parametrize("size", ["0", "", "  "])
def test_an_unknown_size_is_not_compared(size, tmp_path):
    write_voc(tmp_path)
    path = tmp_path / "Annotations/00.xml"
    path.write_text(path.read_text().replace("<width>40<", f"<width>{size}<"))
    assert len(load(tmp_path, seed=None).split("train")) == 12


@by_table(
    "old, new, message",
    [
        ("<difficult>0<", "<difficult>no<", "object 0: expected 0 or 1 for whether .* is a crowd; got 'no'"),
        ("<width>40<", "<width>²<", "size: expected a width and a height in pixels; got ²,"),
        ("<name>dog</name>", "", "object 0: expected the name of a class; got ''"),
        ("<xmin>5</xmin>", "", "object 0: expected 4 numbers of a box; got"),
    ],
)
def test_wrong_values_are_refused_with_their_place(old, new, message, tmp_path):
    write_voc(tmp_path)
    path = tmp_path / "Annotations/00.xml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=f"Annotations/00.xml, {message}"):
        load(tmp_path)
