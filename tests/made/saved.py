"""Fixtures of exports of the `model` of a file of tests."""

import pytest

from keras_vit.export import export_saved_model, export_tflite


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """The SavedModel of the `model` of a file of tests."""
    return export_saved_model(model, tmp_path_factory.mktemp("saved") / "1", warmup=())


@pytest.fixture(scope="module")
def litert(saved, tmp_path_factory):
    """The same in LiteRT, in float32."""
    return export_tflite(saved, tmp_path_factory.mktemp("litert") / "m.tflite", precision="float32")
