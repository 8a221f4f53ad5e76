"""Runs on `digits_scenes` until the scores of the manual, and the time of a linear head."""

import time

import numpy as np
import pytest

from keras_vit import ImageSegmenter, VisionTransformer
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig

pytestmark = pytest.mark.slow


@pytest.mark.tensorflow_only("TensorFlow's kernels are measured")
def test_a_linear_head_takes_a_fifth_of_the_backbones_time():
    """S/16 at 512 pixels with ADE20K's 150 classes; the logits have the size of the image."""
    import tensorflow as tf

    encoder = VisionTransformer(512, 16, 384, num_layers=12, mlp_dim=1536, num_heads=6)
    segmenter = ImageSegmenter(encoder, num_classes=150, head="linear", head_norm="batch")
    backbone = encoder.feature_extractor(["tokens"], grid=True)
    image, functions = tf.zeros((1, 512, 512, 3)), [tf.function(backbone), tf.function(segmenter)]
    seconds = []
    for _ in range(7):
        for function in functions:
            start = time.process_time()
            function(image)
            seconds.append(time.process_time() - start)
    alone, whole = np.median(np.reshape(seconds, (7, 2))[1:], axis=0)
    assert whole <= 1.2 * alone


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """The run of `digits_scenes`, with its record."""
    return train(
        RunConfig("digits_scenes", RECIPES["digits_scenes"]), tmp_path_factory.mktemp("run") / "up", 0
    )


def test_a_decoder_segments_scenes(scenes):
    assert scenes[1]["test_mean_iou"] >= 0.9


def test_a_detector_finds_the_digits(tmp_path):
    _, record = train(RunConfig("digits_scenes", RECIPES["digits_detect"]), tmp_path / "run", 0)
    assert record["test_ap"] >= 0.6 and record["test_ap50"] >= 0.9


@pytest.mark.parametrize("head, score", [("linear", 0.8), ("mask", 0.9)])
def test_other_heads_segment_scenes_with_its_encoder(head, score, scenes, tmp_path):
    recipe = RECIPES[f"digits_scenes_{head}"]
    config = RunConfig("digits_scenes", recipe, weights=str(scenes[0].model))
    _, record = train(config, tmp_path / "run", 0)
    assert record["test_mean_iou"] >= score
