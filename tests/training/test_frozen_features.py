"""Frozen layers compute each image once: the batches of features, the head on them, and whole runs."""

import keras
import numpy as np
import pytest
from made.folders import write_masks
from made.workers import end_of
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, images_for, small

import keras_vit
from keras_vit import ImageSegmenter, VisionTransformer
from keras_vit.training import frozen_features
from keras_vit.training.compiling import freeze
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig

ENCODER = {**SMALL, "num_classes": None, "num_layers": 1}


def segmenter(**options):
    encoder = VisionTransformer(**{**ENCODER, **options.pop("encoder", {})})
    model = randomize(ImageSegmenter(encoder, 3, **options))
    freeze(model)
    return model


@pytest.mark.parametrize("kind", ["classes", "linear", pytest.param("up", marks=pytest.mark.slow)])
def test_the_head_on_features_is_the_whole_model(kind):
    if kind == "classes":
        freeze(model := small(num_layers=1))
    else:
        model = segmenter(head=kind, decoder_size=8)
    images = images_for(model)
    expected = numpy(model(images))
    backbone, head = frozen_features.frozen_parts(model)
    model.train_on_features(head)
    assert_close(numpy(model(keras.tree.flatten(backbone(images)))), expected)
    assert len(model.trainable_variables) == len(set(map(id, model.trainable_variables))) > 0


def test_teachers_are_computed_once_and_the_student_at_each_step():
    student, teacher = small(num_layers=1), small(num_layers=1, image_size=24)
    model = keras_vit.DistillationModel(student, [teacher])
    rng = np.random.default_rng(0)
    images = {name: rng.normal(size=(2, *x.shape[1:])).astype("float32") for name, x in model.input.items()}
    expected, (backbone, head) = numpy(model(images)), frozen_features.frozen_parts(model)
    features = keras.tree.flatten(backbone(images))
    assert [feature.shape[1:] for feature in features] == [(16, 16, 3), (5,)]
    model.train_on_features(head)
    assert_close(numpy(model(features)), expected)
    assert {id(variable) for variable in model.trainable_variables} == {id(v) for v in student.weights}


@pytest.mark.parametrize(
    "options",
    [
        {"encoder": {"dropout_rate": 0.1}},
        {"encoder": {"image_size": (None, None)}},
        {"head": "mask", "query_blocks": 1, "num_queries": 4},
    ],
)
def test_features_that_are_random_or_have_no_size_or_are_not_all_frozen_are_not_stored(options):
    assert frozen_features.frozen_parts(segmenter(**options)) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["segment_linear", "linear_probe"])
def test_a_run_on_features_is_the_run_on_images_and_resumes_bit_for_bit(name, tmp_path, monkeypatch, capsys):
    off = {"crop_area": None, "scale_jitter": None, "photometric": 0.0, "flip": False, "image_size": (16, 16)}
    steps = {"total_steps": 8, "warmup_steps": 1, "batch_size": 4, "eval_every": 2, "train_samples": 8}
    recipe = RECIPES[name].with_changes(**off, **steps)
    dataset = f"folder:{write_masks(tmp_path / 'data', count=12, size=(16, 16))}"
    model = {name: value for name, value in ENCODER.items() if name != "num_classes"}
    config = RunConfig(dataset if recipe.task == "segmentation" else "digits", recipe, model)
    ends, line, limits = [], "the frozen layers compute each image once\n", [0] + 2 * [frozen_features.LIMIT]
    for limit, path in zip(limits, ("images", "features", "resumed")):
        monkeypatch.setattr(frozen_features, "LIMIT", limit)
        if path == "resumed":
            with monkeypatch.context() as changes, pytest.raises(KeyboardInterrupt):
                changes.setattr("keras_vit.training.run.finished_model", _interrupt)
                train(config, tmp_path / path, verbose=2)
            (tmp_path / path / "checkpoints" / "step-00000008" / "manifest.json").unlink()
        train(config, tmp_path / path, verbose=2)
        assert (line in capsys.readouterr().out) == (limit > 0)
        ends.append(end_of(tmp_path / path))
    np.testing.assert_equal(ends[2], ends[1])
    for name, value in ends[0][1].items():
        assert_close(ends[1][1][name], value, 1e-5)
    losses = ([row["val_loss"] for row in rows if "val_loss" in row] for rows, *_ in ends[:2])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("labels, count", [("boxes", 1), ("depths", 2)])
def test_a_split_that_is_not_read_in_batches_has_no_features(labels, count, labeled, tmp_path, monkeypatch):
    """A detector is validated by scores of the whole model."""

    def features(model, recipe, *splits):
        assert len(splits) == count
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.training.run.feature_samples", features)
    with pytest.raises(KeyboardInterrupt):
        train(labeled(labels, freeze="encoder_norm"), tmp_path / "run", verbose=0)


def _interrupt(*args):
    raise KeyboardInterrupt
