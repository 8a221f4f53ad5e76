import numpy as np
import pytest
from made.folders import BROKEN, write_classes
from reference.small import small

from keras_vit.data.datasets import load_dataset
from keras_vit.embeddings import embed, plan_embeddings, read_labeled
from keras_vit.evaluation import few_shot, few_shot_of_vectors, knn, knn_accuracy, representations


@pytest.fixture(scope="module")
def model():
    return small(num_classes=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty images of two classes, of which one is damaged."""
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, count=20)
    (folder / "dog" / "03.png").write_bytes(BROKEN)
    return folder


def read(model, folder, out, task="single_label", **options):
    options = {"partitions": 3, "dtype": "float32", **options}
    embed(plan_embeddings(out, "", model, {"name": f"folder:{folder}", "task": task}, **options))
    return read_labeled(out)


@pytest.mark.slow
def test_the_splits_are_those_of_the_data_set_and_so_are_all_accuracies(model, folder, tmp_path):
    images = load_dataset(f"folder:{folder}", on_bad_image="skip")
    found = read(model, folder, tmp_path / "out")
    assert found.class_names == images.class_names
    for split in ("train", "validation", "test"):
        features, labels = representations(model, images.split(split))
        np.testing.assert_array_equal(found.split(split).labels, labels)
        np.testing.assert_allclose(found.split(split).vectors, features, atol=1e-5)
    train, test = found.split("train"), found.split("test")
    arrays = train.vectors, train.labels, test.vectors, test.labels
    for k in (None, 3):
        expected = few_shot(model, images, shots=(2, 5), seeds=(0, 4), k=k)
        assert few_shot_of_vectors(*arrays, "ab", (2, 5), (0, 4), k=k) == expected
    assert knn_accuracy(*arrays, k=5) == knn(model, images.split("train"), images.split("test"), k=5)


def test_images_are_held_out_by_the_seed_of_the_models_training(folder, tmp_path):
    read(small(num_classes=None, split_seed=3), folder, tmp_path / "out", partitions=1)
    default, of_training, of_another = (
        read_labeled(tmp_path / "out", *seed).split("test").vectors for seed in ((), (3,), (0,))
    )
    np.testing.assert_array_equal(default, of_training)
    assert not np.array_equal(default, of_another)


@pytest.mark.slow
def test_splits_of_the_folder_stay_as_they_are(model, tmp_path):
    for split, count in (("train", 4), ("test", 3)):
        write_classes(tmp_path / "images" / split, count=count)
    found = read(model, tmp_path / "images", tmp_path / "out")
    sizes = {split: len(of) for split, of in found.splits.items()}
    assert sizes == {"train": 6, "validation": 2, "test": 6}


@pytest.mark.slow
def test_what_has_no_vectors_or_class_ids_is_refused(model, folder, tmp_path):
    with pytest.raises(ValueError, match="no column 'embedding'; compute it with --outputs pooled"):
        read(model, folder, tmp_path / "tokens", outputs=("tokens",))
    flat = write_classes(tmp_path / "flat", names=("",), count=4)
    with pytest.raises(ValueError, match="no column 'label'; compute it with labeled images"):
        read(model, flat, tmp_path / "unlabeled")
    (flat / "labels.csv").write_text("file,cat,dog\n" + "".join(f"0{n}.png,1,0\n" for n in range(4)))
    with pytest.raises(ValueError, match="expected single labels; .* has several numbers for each image"):
        read(model, flat, tmp_path / "several", task="multi_label", partitions=1)
