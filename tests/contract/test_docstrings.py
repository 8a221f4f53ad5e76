"""Every example in a docstring runs and shows what it says."""

import doctest
import importlib
import pkgutil

import keras
import numpy as np
import pytest

import keras_vit

PACKAGES = ("layers", "models", "weights", "variants", "preprocessing")


def modules():
    for package in PACKAGES:
        module = importlib.import_module(f"keras_vit.{package}")
        yield module
        for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
            yield importlib.import_module(info.name)


EXAMPLES = {
    test.name: test
    for module in modules()
    for test in doctest.DocTestFinder(exclude_empty=True).find(
        module, extraglobs={"np": np, "keras": keras, "keras_vit": keras_vit}
    )
    if test.examples
}


@pytest.mark.tensorflow_only("the examples show TensorFlow's shapes")
@pytest.mark.parametrize("name", [*EXAMPLES])
def test_an_example_shows_what_happens(name, monkeypatch, repository):
    monkeypatch.chdir(repository)
    report = []
    failed, tried = doctest.DocTestRunner().run(EXAMPLES[name], out=report.append, clear_globs=False)
    assert tried
    assert not failed, "".join(report)


def test_the_examples_are_found():
    assert len(EXAMPLES) >= 20
    assert "keras_vit.models.vit.VisionTransformer" in EXAMPLES
