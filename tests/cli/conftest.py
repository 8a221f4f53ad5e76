import json
import types

import pytest
from made.commands import json_of, keras_vit, refused, script  # noqa: F401
from made.folders import write_classes
from made.undrawn import undrawn_figures
from reference.small import one_block


@pytest.fixture(scope="session")
def weights(golden):
    return golden / "token.npz"


@pytest.fixture(scope="session")
def model(shared_folder):
    """A `.keras` file of a model of these two classes."""

    def make(folder):
        one_block(num_classes=2, class_names=("cat", "dog")).save(folder / "model.keras")

    return shared_folder("cat_or_dog", make) / "model.keras"


@pytest.fixture(scope="session")
def images(shared_folder):
    """A data set of two classes with 10 images each."""
    return shared_folder("two_classes", lambda folder: write_classes(folder / "images")) / "images"


SHORT = ("--recipe", "finetune", "--total_steps", 3, "--batch_size", 4, "--set", "eval_every=2")
SHORT = (*SHORT, "--seed", "5", "--set", "warmup_steps=1", "--set", "flip=False")


@pytest.fixture(scope="session")
def finetune(weights, images):
    """The arguments of the shared run, without its workdir."""
    return ("finetune", "--weights", weights, "--dataset", f"folder:{images}", *SHORT)


@pytest.fixture(scope="session")
def run(shared_folder, keras_vit, finetune):  # noqa: F811
    """A finished run's folder, and what the command printed."""

    def make(folder):
        with undrawn_figures():
            done = keras_vit(*finetune, "--workdir", folder / "run")
        (folder / "done.json").write_text(json.dumps(vars(done)))

    folder = shared_folder("finetuned", make)
    return folder / "run", types.SimpleNamespace(**json.loads((folder / "done.json").read_text()))
