import io
import tarfile

import numpy as np
import pytest
from made.shards import encoded, encoded_mask, read, read_splits, write_tar
from made.tables import by_table
from PIL import Image

from keras_vit.data.batches import training_batches
from keras_vit.data.datasets import load_dataset, title_of
from keras_vit.data.decoding.model_input import decode
from keras_vit.data.samples import worker_slots
from keras_vit.data.shard_files import shards_of, split_of
from keras_vit.data.tar_samples import tar_index
from keras_vit.preprocessing import Preprocessing


def samples(numbers, **of_number):
    """Members of samples: an image each, and what functions of its number return, by suffix."""
    for number in numbers:
        yield f"{number:05}.png", encoded(number)
        for suffix, content in of_number.items():
            yield f"{number:05}.{suffix}", content(number)


def classes(number):
    return f"{number % 3}\n".encode()


@pytest.fixture
def folder(tmp_path):
    """Two tar files of 15 training images, and one of 6 test images, of three classes."""
    for shard in range(2):
        numbers = range(15 * shard, 15 * shard + 15)
        write_tar(tmp_path / "shards" / f"toy-train-{shard:04}.tar", samples(numbers, cls=classes))
    write_tar(tmp_path / "shards" / "toy-test-0000.tar", samples(range(30, 36), cls=classes))
    return tmp_path / "shards"


def load(path, **options):
    return load_dataset(f"webdataset:{path}", **options)


def test_a_folder_of_tar_files_is_a_data_set(folder):
    data = load(folder)
    assert data.summary() == (
        "3 classes (0, 1, 2): 27 train, 3 validation, 6 test; train from toy-train-0000.tar, "
        "toy-train-0001.tar, validation held out, test from toy-test-0000.tar"
    )
    assert data.version.startswith("files ") and title_of(data.name) == "shards"
    assert read(data.split("test").evaluation_records()) == [(n, n % 3) for n in range(30, 36)]
    assert read_splits(data, "train", "validation") == [(n, n % 3) for n in range(30)]
    assert data.split("train").labels.count(0) == 9
    assert data.split("test")[1] == (encoded(31), 1)


def test_training_reads_the_same_batches_with_any_number_of_workers(folder):
    train = load(folder).split("train")
    whole = read(train.training_records(seed=0, first_step=0, steps=9, batch_size=6))
    assert sorted(whole[:27]) == sorted(whole[27:]) != whole[:27]
    parts = [read(train.training_records(0, 0, 9, 6, worker_slots(6, worker, 2))) for worker in (0, 1)]
    steps = [[part[3 * step : 3 * step + 3] for part in parts] for step in range(9)]
    assert [record for first, second in steps for record in first + second] == whole
    assert read(train.training_records(0, 5, 9, 6)) == whole[30:]
    images, labels = next(iter(training_batches(train, Preprocessing(16), 6, seed=0, steps=1, num_classes=3)))
    assert images.shape == (6, 16, 16, 3) and labels.shape == (6, 3)


def test_names_of_classes_and_several_patterns(folder):
    (folder / "classes.txt").write_text("cat\ndog\nowl\n")
    test = folder / "toy-test-0000.tar"
    data = load(f"{folder}/toy-train-{{0000..0001}}.tar::{test}")
    assert data.class_names == ("cat", "dog", "owl") and len(data.split("test")) == 6
    shards = shards_of(f"{folder}/toy-{{train-0000,test-0000}}.tar", ".tar")
    assert [*map(str, shards)] == [f"{folder}/toy-train-0000.tar", str(test)]
    (folder / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match="the names of at least 3 classes, each on a line of .*; got 2"):
        load(folder)


@by_table(
    "path, split",
    [
        ("d/validation/0.tar", "validation"),
        ("d/imagenet-val-03.tar", "validation"),
        ("d/trained.tar", "train"),
        ("d/TEST.tar", "test"),
    ],
)
def test_the_split_is_a_word_of_the_name_or_of_a_folder(path, split):
    assert split_of(path, "d") == split
    assert split_of("test/d/00.tar", "test/d") == "train"  # Folders above do not count.
    with pytest.raises(ValueError, match="'d/train/val.tar' has the names of several splits: train, valid"):
        split_of("d/train/val.tar", "d")


def test_labels_may_be_values_of_json_objects(tmp_path):
    def values(number):
        return {"class_id": number % 3 - (number == 4), "tags": [*range(number % 3)], "age": number / 2}

    path = write_tar(tmp_path / "a.tar", samples(range(40), json=values))
    data = load(path, fields=["label=json:class_id"])
    assert data.class_names == ("0", "1", "2") and data.split("train").labels.count(0) > 8
    assert data.ignored_files == ()
    tags = load(path, fields=["label=json:tags"], task="multi_label")
    assert tags.class_names == ("0", "1")
    assert {n: label for n, label in read(tags.split("test").evaluation_records())}.items() <= {
        n: [float(n % 3 > 0), float(n % 3 > 1)] for n in range(40)
    }.items()
    ages = load(path, fields=["label=json:age"], task="regression")
    assert ages.class_names == ("target_0",)
    assert all(label == [n / 2] for n, label in read(ages.split("train").evaluation_records()))


def test_a_negative_class_skips_the_sample_and_is_reported(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples(range(40), cls=lambda n: b"-1" if n == 4 else classes(n)))
    data = load(path)
    assert data.unlabeled == (f"{path}/00004",) and data.ignored_files == ()
    assert data.summary().endswith(f"; 1 sample of an unknown class left out ({path}/00004)")
    assert sum(map(len, data.splits.values())) == 39


def test_captions_belong_to_their_images_in_each_split(tmp_path):
    path = write_tar(tmp_path / "a.tar", samples(range(40), txt=lambda n: f" picture {n}\n".encode()))
    data = load(path, texts=True)
    assert data.class_names == () and data.summary().startswith("40 captions: 29 train")
    for split, of in data.splits.items():
        for number, label in read(of.evaluation_records()):
            assert data.captions(split)[label] == (f"picture {number}",)


def test_samples_of_one_name_in_two_files_are_two_samples(tmp_path):
    parts = {"png": encoded, "cls": lambda number: number % 2}
    for shard in (0, 1):
        names = [(n, suffix) for n in range(8) for suffix in parts]
        members = [(f"in.side/{n}.{suffix}", parts[suffix](8 * shard + n)) for n, suffix in names]
        write_tar(tmp_path / f"{shard}.tar", members)
    data = load(tmp_path)
    assert read_splits(data, "train", "validation", "test") == [(n, n % 2) for n in range(16)]
    places = [place() for samples in data.splits.values() for place, *_ in samples.stored()]
    assert sorted(places) == [f"{tmp_path}/{shard}.tar/in.side/{n}.png" for shard in (0, 1) for n in range(8)]


def test_images_without_labels_and_a_subset(tmp_path):
    data = load(write_tar(tmp_path / "a.tar", samples(range(40))), labels=False)
    assert data.summary() == (
        "images without labels: 29 train, 3 validation, 8 test; train from a.tar, validation and test "
        "held out"
    )
    assert len(data.split("train").take(range(5))) == 5


def test_masks_are_read_with_their_images(tmp_path):
    def mask(number):
        return encoded_mask(number % 2)

    path = write_tar(tmp_path / "a.tar", samples(range(40), **{"seg.png": mask}))
    with pytest.raises(ValueError, match="masks in tar files need '.*classes.txt', a class name a line"):
        load(path, task="segmentation")
    (tmp_path / "classes.txt").write_text("sky\nsea\n")
    data = load(path, task="segmentation")
    assert data.class_names == ("sky", "sea")
    for number, label in read(data.split("test").evaluation_records()):
        np.testing.assert_equal(label, np.full((6, 8, 1), number % 2))
    image, mask = data.split("test")[0]
    first_image, first_mask = next(data.split("test").evaluation_records().as_numpy_iterator())
    assert image == first_image
    np.testing.assert_equal(mask, first_mask)


IMAGE = ("a.png", encoded(0))
OTHERS = [
    (f"{n}{suffix}", content) for n in range(9) for suffix, content in ((".png", IMAGE[1]), (".cls", b"1"))
]
DAMAGED = {
    "no image": ([("a.cls", b"1")], {}, "/a has no member with an image; its members are cls"),
    "odd name": ([("a\n\x1b.cls", b"1")], {}, r"/a\\n\\x1b has no member with an image; its members are cls"),
    "two images": ([IMAGE, ("a.jpg", b""), ("a.cls", b"1")], {}, "/a has several members with an image"),
    "no label": ([IMAGE], {}, "/a has no member with the suffix cls; its members are png"),
    "no integer": ([IMAGE, ("a.cls", b"cat")], {}, "/a: expected an integer as label; got 'cat'"),
    "id as class": ([IMAGE, ("a.cls", b"99999999")], {}, "below 1,000,000; got 99999999: number them from 0"),
    "no key": ([IMAGE, ("a.json", {"x": 1})], {"fields": ["label=json:y"]}, "/a.json has no 'y'; it has x"),
    "no json": ([IMAGE, ("a.json", b"{")], {"fields": ["label=json:y"]}, "/a.json is damaged: Expecting"),
    "no field": ([IMAGE], {"fields": ["y"]}, "expected one field as label=json:KEY; got y"),
    "empty caption": ([IMAGE, ("a.txt", b" ")], {"texts": True}, "/a: expected a caption; got ''"),
    "text": ([IMAGE, ("a.txt", b"\xff")], {"texts": True}, "/a.txt is no text in UTF-8"),
    "twice": ([IMAGE, ("a.PNG", b"")], {}, "has two members 'a.PNG'"),
    "apart": (
        [*OTHERS[:1], IMAGE, *OTHERS[1:2]],
        {"labels": False},
        "members of '0' do not follow each other",
    ),
    "one class": (OTHERS[:0] + [IMAGE, ("a.cls", b"0")], {}, "the names of at least 2 classes"),
}


@by_table("case", DAMAGED)
def test_a_wrong_sample_is_refused_with_its_file_and_name(case, tmp_path):
    members, options, message = DAMAGED[case]
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(ValueError, match=message) as refused:
        load(path, **options)
    assert "\n" not in str(refused.value)


def test_targets_of_different_lengths_are_refused(tmp_path):
    members = [("a.png", b""), ("a.cls", b"1 2"), ("b.png", b""), ("b.cls", b"1")]
    with pytest.raises(ValueError, match="images in .* have different numbers of targets: 1, 2"):
        load(write_tar(tmp_path / "a.tar", members), task="regression")


def test_a_damaged_tar_file_is_refused_wherever_it_is_cut_off(folder):
    path = folder / "toy-train-0001.tar"
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for size in (0, 100, 512, 700, used // 2, used - 512, used):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"'{path}' is (cut off|damaged)"):
            load(folder)
    path.write_bytes(whole)
    assert len(load(folder).split("train")) == 27


def test_compressed_missing_and_doubled_files_are_refused(folder):
    packed = write_tar(folder / "a.tar.gz", samples(range(3), cls=classes), "w:gz")
    with pytest.raises(ValueError, match="a.tar.gz' is damaged: .* not compressed: unpack .tar.gz"):
        load(packed)
    with pytest.raises(ValueError, match=r"2 of 4 .tar files are missing: .*0002.tar, .*0003.tar"):
        load(f"{folder}/toy-train-{{0000..0003}}.tar")
    with pytest.raises(ValueError, match=r"expected {first..last} with up to 100,000 numbers; got '{9..1}'"):
        load(f"{folder}/{{9..1}}.tar")
    (folder / "empty").mkdir()
    (folder / "empty" / "b.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="no .tar files in .*; it has files of .tar.gz"):
        load(folder / "empty")
    with pytest.raises(ValueError, match="no samples to train on in .*; they have test"):
        load(folder / "toy-test-0000.tar")


def test_a_file_that_becomes_shorter_is_named_when_it_is_read(folder):
    train = load(folder).split("train")
    path = folder / "toy-train-0001.tar"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(Exception, match="toy-train-0001.tar' has changed since the data set was loaded"):
        read(train.evaluation_records())


def test_hidden_members_links_and_folders_are_left_out(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("._0.png", b"x"), *samples(range(9), cls=classes)])
    with tarfile.open(path, "a") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            info = tarfile.TarInfo("other")
            info.type = kind
            tar.addfile(info)
    assert len(tar_index(path)) == 18


@pytest.mark.parametrize("kind", ["AVIF", "TIFF"])
def test_tar_files_may_have_images_that_pillow_reads(kind, tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 30, 30)).save(file, kind)
    pairs = ((kind.lower(), lambda number: file.getvalue()), ("cls", classes))
    members = [(f"{n:02}.{suffix}", content(n)) for n in range(12) for suffix, content in pairs]
    write_tar(tmp_path / "a.tar", members)
    data = load_dataset(f"webdataset:{tmp_path}/a.tar").split("train")
    for records in (data.training_records(0, 0, 1, 2), data.evaluation_records()):
        *_, image, _ = next(iter(records.as_numpy_iterator()))
        assert abs(decode(image).numpy().astype(int) - (200, 30, 30)).max() < 12
