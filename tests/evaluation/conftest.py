import pytest
from made.folders import write_classes

from keras_vit.data.datasets import load_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A data set of a folder with images of three classes."""
    root = write_classes(tmp_path_factory.mktemp("data") / "images", ("a", "b", "c"), count=15)
    return load_dataset(f"folder:{root}")
