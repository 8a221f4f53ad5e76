"""Every example in a docstring runs and has the output that it shows."""

import doctest
import importlib
import pathlib
import pkgutil
import re
import shutil
import sys

import keras
import numpy as np
import pytest

import keras_vit


def modules():
    yield keras_vit
    for path, name in ((keras_vit.__path__, "keras_vit"), (keras_vit.export.__path__, "keras_vit.export")):
        for info in pkgutil.walk_packages(path, f"{name}."):
            if info.name != "keras_vit.__main__":  # `python -m` warns if it is imported already
                yield importlib.import_module(info.name)


# The example of a plan for TPUs, all of which is skipped, needs JAX and libtpu.
EXAMPLES = {
    test.name: test
    for module in modules()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module)
    if any(doctest.SKIP not in example.options for example in test.examples)
}


SLOW = re.compile(
    r"keras_vit\.(training|export|engine|inspection|reports|embeddings|cli\.(?!export)|losses"
    r"|models\.(pixels|windows|packed)|evaluation|weights\.soups"
    r"|tasks\.(?!\w+\.(labels|scores|instance_scores|checkpoints|huggingface|timm|dpt_head|task)\.)[a-z_]+"
    r"|tasks\.segmentation\.scores\.predict_maps"
    r"|data\.(augmentation|batches|chunked_records|color_palette|damage|decoding|files|readable|remote_files"
    r"|shard_writing|sources))(\.|$)"
)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * bool(SLOW.match(name))) for name in EXAMPLES]


def once_per_model(export, folder):
    """`export`, of which a second call for the same model copies the result of the first."""
    written = {}

    def export_or_copy(model, path, **options):
        call = (id(model), repr(options))
        if call not in written:
            written[call] = export(model, folder / str(len(written)), **options)
        return pathlib.Path(shutil.copytree(written[call], path))

    return export_or_copy


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """The names that an example may use, with `tmp`, an empty folder: imports, a small model, images."""
    from keras_vit.data.datasets import load_dataset
    from keras_vit.export.saved_model import export_saved_model
    from keras_vit.export.tflite import export_tflite
    from keras_vit.training import RECIPES

    tower = {"hidden_size": 24, "num_layers": 1, "mlp_dim": 48, "num_heads": 3}
    text = {"vocabulary_size": 9, "length": 4, **tower}
    return {
        **{"np": np, "keras": keras, "keras_vit": keras_vit, "tf": sys.modules["tensorflow"]},
        **{"Preprocessing": keras_vit.Preprocessing, "RECIPES": RECIPES, "load_dataset": load_dataset},
        "export_saved_model": once_per_model(export_saved_model, tmp_path_factory.mktemp("exported")),
        "export_tflite": export_tflite,
        "model": keras_vit.VisionTransformer(32, 8, 24, 1, 48, 3, num_classes=10),
        "towers": keras_vit.ImageTextModel({"image_size": 32, "patch_size": 8, **tower}, text),
        "images": np.random.default_rng(0).random((4, 32, 32, 3), "float32"),
    }


@pytest.mark.tensorflow_only("the examples show TensorFlow's shapes")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_the_output_that_it_shows(name, namespace, monkeypatch, repository, tmp_path):
    monkeypatch.chdir(tmp_path)  # since some write files
    (tmp_path / "tests").symlink_to(repository / "tests")
    example = EXAMPLES[name]
    namespace["model"].trainable = True  # Some examples freeze it.
    (tmp_path / "new").mkdir()
    example.globs = namespace | {"tmp": tmp_path / "new"} | example.globs
    report = []
    failed, tried = doctest.DocTestRunner().run(example, out=report.append, clear_globs=False)
    assert tried
    assert not failed, "".join(report)


def test_the_examples_are_found():
    assert len(EXAMPLES) >= 50
    assert "keras_vit.models.vit.vision_transformer.VisionTransformer" in EXAMPLES
