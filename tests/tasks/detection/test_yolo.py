import re

import pytest
from made.box_folders import load, objects_of, write_images, write_yolo
from made.tables import by_table

LINE = "0 0.5 0.5 0.25 0.5"


def write(root, config, folders=("images",)):
    """Images with a box each, and `data.yaml`."""
    for folder in folders:
        write_images(root / folder)
        labels = root / folder.replace("images", "labels")
        labels.mkdir(parents=True, exist_ok=True)
        for number in range(12):
            (labels / f"{number:02}.txt").write_text(LINE)
    (root / "data.yaml").write_text(config)


def sizes(data):
    return {split: len(samples) for split, samples in data.splits.items()}


NORTH, SOUTH, EAST = (f"images/{name}" for name in ("north", "south", "east"))
BOTH = {"train": NORTH, "validation": SOUTH}
# What data.yaml has besides the names → the folder of each split.
CONFIGS = {
    "folders": (f"train: {NORTH}\nval: {SOUTH}\n", BOTH),
    "a path": ("path: images\ntrain: north\nval: south\ntest:\n", BOTH),
    "a path of another machine": (f"path: /home/me/data\ntrain: {NORTH}\nval: {SOUTH}\ntest: null\n", BOTH),
    "paths of another machine": (f"train: /home/me/{NORTH}/\nval: /home/me/{SOUTH}\n", BOTH),
    "Roboflow": (f"train: ../{NORTH}\nval: ../{SOUTH}\n", BOTH),
    "lists": (f"train: [{NORTH}]\nval:\n- ./{SOUTH}\ntest: [{EAST}]\n", {**BOTH, "test": EAST}),
}


@by_table("config", CONFIGS)
def test_the_folders_of_splits_are_those_of_the_config(config, tmp_path):
    text, folders = CONFIGS[config]
    write(tmp_path, f"{text}names: [cat]", (NORTH, SOUTH, EAST))
    data = load(tmp_path, seed=None)
    assert sizes(data) == dict.fromkeys(folders, 12)
    for split, folder in folders.items():
        assert all(f"/{folder}/" in path for path in data.split(split).images)
        assert data.split_sources[split] == f"from {folder}"


def test_folders_state_the_splits_that_the_config_does_not(tmp_path):
    folders = [f"images/{name}" for name in ("train", "val", "test", "extra")]
    write(tmp_path, "train: images/train\nval: images/val\nnames: [cat]", folders)
    data = load(tmp_path, seed=None)
    assert sizes(data) == {"train": 12, "validation": 12, "test": 12}
    assert data.split_sources["test"] == "from images/test" and len(data.ignored_files) == 24
    for path in (tmp_path / "labels/test").iterdir():
        path.unlink()
    assert sizes(load(tmp_path, seed=None)) == {"train": 12, "validation": 12}


def test_splits_may_be_lists_of_images(tmp_path):
    write(tmp_path, "train: train.txt\nval: lists/val.txt\nnames: [cat]")
    (tmp_path / "train.txt").write_text("".join(f"./images/{number:02}.png\n" for number in range(8)))
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/val.txt").write_text("../images/08.png\n\n/home/me/images/09.png\nimages/10.png")
    data = load(tmp_path, seed=None)
    assert sizes(data) == {"train": 8, "validation": 3}
    assert [path[-6:-4] for path in data.split("validation").images] == ["08", "09", "10"]
    assert data.ignored_files == (f"{tmp_path}/images/11.png", f"{tmp_path}/labels/11.txt")
    assert "train from train.txt, validation from lists/val.txt" in data.summary()


def test_labels_may_be_beside_their_images(tmp_path):
    write(tmp_path, "train: train\nval: val\nnames: [cat]", ("train", "val"))
    assert sizes(load(tmp_path, seed=None)) == {"train": 12, "validation": 12}


# Each of 30 lists holds the one before nine times.
NESTED = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
BOMB = f"a0: &a0 [x]\n{NESTED}names: [*a29, dog]"
NAMES = "expected names, a list of the classes or one by number"
SOURCE = "expected a folder or a list of images in 'ROOT'; got"


@pytest.mark.slow
@by_table(
    "config, message",  # what data.yaml has
    [
        (f"train: {NORTH}\nval: {NORTH}\nnames: [cat]", "val: 'ROOT/images/north/00.png' is in train, too"),
        (f"train: {NORTH}\nval: images/west\nnames: [cat]", f"data.yaml, val: {SOURCE} 'images/west'"),
        (f"train: {NORTH}\nval: labels\nnames: [cat]", "data.yaml, val: no images in 'ROOT/lab"),
        ("train: /etc\nnames: [cat]", f"data.yaml, train: {SOURCE} '/etc'"),
        ("train: {a: b}\nnames: [cat]", f"{SOURCE} another value"),
        (
            "train: list.txt\nnames: [cat]",
            "list.txt, line 1: expected an image in 'ROOT'; got 'images/99.png'",
        ),
        (f"val: {SOUTH}\nnames: [cat]", "has no images to train on; it has validation"),
        ("names: [cat, dog, cat]", "expected another name for each class; got twice cat"),
        ("names:\n  0: cat\n  0: dog\n", "not a readable YAML file: a key is there twice"),
        ("names: [cat]\nnames: [dog]\n", "not a readable YAML file: a key is there twice"),
        *((names, NAMES) for names in ("names: cat", "names: [[cat]]", BOMB)),
        ("a: &a [*a]\nnames: [cat]", "' is not a readable YAML file: found unconstr"),
        ("names: " + "[" * 20_000, "data.yaml' is not a readable YAML file: values nested too deeply"),
        ("names: [cat]\nkpt_shape: 5", "expected kpt_shape of two numbers; got another value"),
    ],
)
def test_wrong_configs_are_refused(config, message, tmp_path):
    write(tmp_path, config, (NORTH, SOUTH))
    (tmp_path / "list.txt").write_text("images/99.png")
    with pytest.raises(ValueError, match=re.escape(message.replace("ROOT", str(tmp_path)))) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_several_configs_say_the_same(tmp_path):
    write(tmp_path, "names: [cat]\ntrain: images")
    for config in ("names:\n  0: cat\ntrain: /home/me/images", "epochs: 3"):
        (tmp_path / "other.yaml").write_text(config)
        assert load(tmp_path).class_names == ("cat",)
    for config in ("names: [dog]\ntrain: images", "names: [cat]"):
        (tmp_path / "other.yaml").write_text(config)
        with pytest.raises(ValueError, match="^expected one file with names of classes and splits; got "):
            load(tmp_path)


def test_names_are_texts(tmp_path):
    write(tmp_path, "names: [no, 1.0]")
    assert load(tmp_path).class_names == ("no", "1.0")


@pytest.mark.parametrize("number", ["0.0", "0e0"])
def test_a_class_may_be_written_as_a_float(number, tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels/00.txt").write_text(LINE.replace("0", number, 1))
    assert objects_of(load(tmp_path, seed=None).split("train"))[0] == [("cat", 15, 5, 25, 15)]


WORDS = ["1.5", "-1", "nan", "inf", "²", "2"]  # which are no classes


@by_table(
    "line, message",
    [
        *((LINE.replace("0", word, 1), f"00.txt, line 1 (unknown class '{word}')") for word in WORDS),
        ("1 20 10 4 4", "(outside of its image of 40×20 pixels: left, top"),
        ("1 0.5 0.5 0.1", "00.txt, line 1: expected 4 numbers of a box; got ['0.5', '0.5', '0.1']"),
        ("1 0.5 0.5 0.1 big", "00.txt, line 1: expected 4 numbers of a box; got"),
        ("1 0.5 0.5 0.1 0.1 0.1", "00.txt, line 1: expected a box of 4 numbers, or the corners of a polygon"),
    ],
)
def test_wrong_lines_are_refused(line, message, tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels/00.txt").write_text(line)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path)


def test_key_points_are_left_out(tmp_path):
    write(tmp_path, "names: [cat]\nkpt_shape: [2, 3]")
    for path in (tmp_path / "labels").iterdir():
        path.write_text(f"{LINE} 0.9 0.9 2 0.1 0.1 0")
    assert objects_of(load(tmp_path, seed=None).split("train"))[0] == [("cat", 15, 5, 25, 15)]
    path.write_text(f"{LINE} 0.9 0.9")
    with pytest.raises(ValueError, match="expected a box of 4 numbers and 6 of key points; got 6"):
        load(tmp_path)
