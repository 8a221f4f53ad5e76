import pytest
from made.folders import write_classes
from reference.small import one_block


@pytest.fixture(scope="module")
def model():
    return one_block(num_classes=2, class_names=("cat", "dog"))


@pytest.fixture(scope="module")
def places(tmp_path_factory, model):
    """A folder of `images` of the model's classes, and of `model.keras`."""
    folder = tmp_path_factory.mktemp("places")
    write_classes(folder / "images")
    model.save(folder / "model.keras")
    return folder
