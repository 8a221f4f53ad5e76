import pathlib
import shutil

import numpy as np
import pytest
from made.damage import damage_pixels
from made.folders import write_broken, write_masks
from made.photos import photo
from made.refusals import assert_is, in_turn, tables
from made.tables import by_table
from PIL import Image

from keras_vit.data.damage import damaged
from keras_vit.data.datasets import load_dataset
from keras_vit.data.files import UNDECODABLE


def load(root, **options):
    return load_dataset(f"folder:{root}", task="segmentation", **options)


def sizes(dataset):
    return tuple(len(dataset.splits[split]) for split in ("train", "validation", "test"))


def save_mask(path, pixels, dtype="uint8"):
    Image.fromarray(np.asarray(pixels, dtype)).save(path)


def test_images_with_masks_of_their_names_are_a_data_set(tmp_path):
    write_masks(tmp_path, suffix=".jpg")
    (tmp_path / "masks" / "extra.png").write_bytes((tmp_path / "masks" / "00.png").read_bytes())
    (tmp_path / "images" / "notes.txt").write_text("no image")
    dataset = load(tmp_path)
    assert dataset.class_names == ("0", "1", "2") and sizes(dataset) == (7, 1, 2)
    assert {*dataset.ignored_files} == {f"{tmp_path}/masks/extra.png", f"{tmp_path}/images/notes.txt"}
    for samples in dataset.splits.values():
        assert samples.labels is None and not samples.exif
        for image, mask in zip(samples.images, samples.masks):
            assert pathlib.Path(image).stem == pathlib.Path(mask).stem
    for encoded, mask in dataset.split("train").evaluation_records().take(2):
        assert mask.shape == (32, 24, 1) and mask.numpy().max() <= 2 and encoded.numpy()[:2] == b"\xff\xd8"
    found = (
        "3 classes (0, 1, 2): 7 train, 1 validation, 2 test; validation and test held out; 2 files ignored"
    )
    assert found in dataset.summary()


def test_folders_of_splits_may_be_above_images_and_masks(tmp_path):
    """Folders below: tests/data/test_folder_splits.py."""
    for split, count in (("train", 5), ("Val", 3), ("test", 2)):
        write_masks(tmp_path / split, count)
    assert sizes(load(tmp_path)) == (5, 3, 2)


def class_maps(dataset):
    """The path of each mask, and the class map that is read."""
    for samples in dataset.splits.values():
        for path, (_, mask) in zip(samples.masks, samples.evaluation_records()):
            yield path, mask.numpy()[..., 0]


def test_classes_have_names_and_values_without_one_are_ignored(tmp_path):
    write_masks(tmp_path, 4, classes=4)
    (tmp_path / "classes.txt").write_text("-\nsky\n-\ntree\n")
    dataset = load(tmp_path)
    assert dataset.class_names == ("sky", "tree") and not dataset.ignored_files
    for path, classes in class_maps(dataset):
        np.testing.assert_array_equal(classes, np.array([255, 0, 255, 1])[np.asarray(Image.open(path))])


@pytest.mark.parametrize("lines", ["background\t0\nobject\t255", "object\t255\nbackground\t0\n-\t7"])
def test_classes_may_have_values(lines, tmp_path):
    write_masks(tmp_path, 4)
    for path in (tmp_path / "masks").iterdir():
        save_mask(path, 255 * np.minimum(np.asarray(Image.open(path)), 1))
    (tmp_path / "classes.txt").write_text(lines)
    dataset = load(tmp_path)
    for path, classes in class_maps(dataset):
        expected = np.where(np.asarray(Image.open(path)) == 255, "object", "background")
        np.testing.assert_array_equal(np.array(dataset.class_names)[classes], expected)


def test_masks_in_color_have_the_classes_of_their_colors(tmp_path):
    write_masks(tmp_path, 4, classes=3)
    colors = np.uint8([[200, 0, 0], [0, 0, 7], [1, 2, 3]])
    expected = {}
    for path in (tmp_path / "masks").iterdir():
        expected[str(path)] = np.asarray(Image.open(path))
        save_mask(path, colors[expected[str(path)]])
    (tmp_path / "classes.txt").write_text("-\t#c80000\nsky\t#000007\ntree\t#010203\n")
    dataset = load(tmp_path)
    assert dataset.class_names == ("sky", "tree")
    for path, classes in class_maps(dataset):
        np.testing.assert_array_equal(classes, np.array([255, 0, 1])[expected[path]])
    save_mask(tmp_path / "masks" / "03.png", np.full((32, 24, 3), 9))
    found = [found for samples in dataset.splits.values() for found in damaged(samples)]
    assert found == [(str(tmp_path / "masks" / "03.png"), "a color without a class: #090909")]
    with pytest.raises(ValueError, match=r"03.png \(a color without a class: #090909\)"):
        load(tmp_path)


@by_table(
    "text",
    [
        "".join(f"class {number}\t{number}\n" for number in range(256)),
        "a\t0\nb",
        "a\t0\nb\t0",
        "a\t0\nb\t256",
        "a\t#000000\nb\t7",
        "a\t1\t2\nb\t3\t4",
        "\t1\na\t2",
    ],
)
def test_lines_of_classes_are_all_of_one_form(text, tmp_path):
    write_masks(tmp_path, 4)
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(ValueError, match="255 lines NAME, NAME<tab>0 to 255, or NAME<tab>#ff0000"):
        load(tmp_path)


@pytest.mark.parametrize(
    "old, new, names, others",
    [
        ("masks/00.png", "masks/00.jpg", "images/00.png", "masks/00.jpg"),
        ("masks/00.png", "masks/00_mask.png", "images/00.png", "masks/00_mask.png"),
        ("masks", "labels", "images/00.png, images/01.png", "labels"),
    ],
)
def test_masks_of_other_names_or_in_another_folder_are_named(old, new, names, others, tmp_path):
    write_masks(tmp_path, 2)
    (tmp_path / old).rename(tmp_path / new)
    with pytest.raises(ValueError, match=f"have no mask: {names}; there is {others}; expected"):
        load(tmp_path)


def rename(old, new):
    return lambda root: (root / old).rename(root / new)


def replace_mask(pixels, dtype="uint8"):
    return lambda root: save_mask(root / "masks" / "03.png", pixels, dtype)


def write_names(text, encoding="utf-8"):
    return lambda root: (root / "classes.txt").write_text(text, encoding=encoding)


def replace_all(first, others):
    def damage(root):
        for number, path in enumerate((root / "masks").iterdir()):
            save_mask(path, others if number else first)

    return damage


CHECKED = 255 * (np.indices((32, 24)).sum(0) % 2)
IN_COLOR = replace_mask(np.zeros((32, 24, 3)))
DAMAGES = {  # by the first cell of the manual's table
    "no folder": shutil.rmtree,
    "no `images` and `masks`": rename("images", "pictures"),
    "an image without a mask": rename("masks/03.png", "masks/03_L.png"),
    "two images for a mask": lambda root: Image.new("RGB", (24, 32)).save(root / "images" / "03.jpg"),
    "no training images": in_turn(shutil.rmtree, lambda root: write_masks(root, below="test")),
    "a damaged image": lambda root: write_broken(root / "images" / "03.png"),
    "a damaged mask": lambda root: write_broken(root / "masks" / "03.png"),
    "a mask in colors without colors in `classes.txt`": IN_COLOR,
    "a color that `classes.txt` does not name": in_turn(
        IN_COLOR, write_names("sky\t#87ceeb\ntree\t#228b22\n")
    ),
    "a mask of 16 bits": replace_mask(np.zeros((32, 24)), "uint16"),
    "a mask of another size": replace_mask(np.ones((24, 32))),
    "a value without a class": in_turn(write_names("sky\ntree\nroad\n"), replace_mask(np.full((32, 24), 7))),
    "equal names of classes": write_names("sky\nsky\n"),
    "`classes.txt` of another encoding": write_names("himmel\nstraße\nhaus\n", "latin-1"),
    "one class only": replace_all(np.zeros((32, 24)), np.zeros((32, 24))),
    "binary masks of 0 and 255": replace_all(np.full((32, 24), 255), CHECKED),
    "a data set without masks": lambda root: None,  # another one
}


MESSAGES, *_ = tables("segmentation.md")


def test_the_manual_lists_what_is_refused():
    assert [*MESSAGES] == [*DAMAGES]


@by_table("wrong", DAMAGES)
def test_a_wrong_folder_is_refused_with_the_message_of_the_manual(wrong, tmp_path):
    write_masks(tmp_path, 5)
    DAMAGES[wrong](tmp_path)
    with pytest.raises(ValueError) as error:
        load_dataset("digits" if "without masks" in wrong else tmp_path, task="segmentation")
    assert_is(str(error.value), MESSAGES[wrong].replace("PATH", str(tmp_path)))


def test_images_and_masks_are_no_classes(tmp_path):
    write_masks(tmp_path, 3)
    with pytest.raises(ValueError, match="for the task 'segmentation' .*; the task is 'single_label'$"):
        load_dataset(f"folder:{tmp_path}")


def test_unreadable_images_and_masks_can_be_skipped(tmp_path):
    write_masks(tmp_path, 20)
    mask = str(write_broken(tmp_path / "masks/07.png"))
    images = [str(write_broken(tmp_path / "images/03.png")), damage_pixels(tmp_path / "images/11.png")]
    dataset = load(tmp_path, on_bad_image="skip")
    assert dataset.bad_images == dict.fromkeys(images, UNDECODABLE) | {mask: "a damaged PNG file"}
    assert sum(sizes(dataset)) == 17 and not dataset.ignored_files
    for path in tmp_path.glob("masks/*"):
        write_broken(path)
    with pytest.raises(ValueError, match="^no image can be read with its mask; left out: .*03.png"):
        load(tmp_path, on_bad_image="skip")


def test_a_turned_image_has_a_mask_of_its_upright_size(tmp_path):
    write_masks(tmp_path, 4)
    (tmp_path / "images" / "00.png").write_bytes(photo(6, "PNG", np.zeros((24, 32, 3), "uint8")))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (32, 24)).save(tmp_path / "images" / "01.png", "AVIF", exif=exif)
    assert any(samples.exif for samples in load(tmp_path).splits.values())
    save_mask(tmp_path / "masks" / "01.png", np.zeros((24, 32)))
    with pytest.raises(ValueError, match=r"01.png \(32×24 pixels, but its image has 24×32 pixels\)"):
        load(tmp_path)
