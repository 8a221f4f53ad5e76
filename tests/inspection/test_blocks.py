import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from reference.attention_numpy import inspected
from reference.comparing import assert_close
from reference.small import NO_TRANSFORMER, images_for, small

from keras_vit import MaskedPatchPredictor
from keras_vit.inspection import (
    attention_distance,
    attention_maps,
    attention_rollout,
    attention_scores,
    blocks,
    patch_similarity,
)
from keras_vit.inspection.blocks import check_model, stretches, walk
from keras_vit.layers import EncoderBlock

LOOKS = (attention_distance, attention_maps, attention_rollout, attention_scores, patch_similarity)


@pytest.mark.parametrize("name", ["token", "hybrid", "any size", "registers and gap", "other blocks"])
def test_walking_computes_what_the_model_computes(name, golden):
    model, images, _ = inspected(name, golden)
    stages = [f"encoder_block_{i}" for i in range(model.num_layers)]
    expected = model.feature_extractor(stages)(images)
    _, *found = walk(model, images)
    for stage, tokens in zip(stages, found, strict=True):
        assert_close(tokens, expected[stage], 1e-5)


def test_walking_drops_nothing():
    rates = {"dropout_rate": 0.5, "attention_dropout_rate": 0.5, "stochastic_depth_rate": 0.5}
    images = images_for(small())
    for with_rates, without in zip(walk(small(**rates), images), walk(small(), images)):
        assert_close(with_rates, without, 1e-6)


def test_blocks_that_nobody_asks_for_are_not_computed(monkeypatch):
    model, calls = small(), []
    compute = EncoderBlock.call
    monkeypatch.setattr(EncoderBlock, "call", lambda layer, x: calls.append(layer.name) or compute(layer, x))
    attention_distance(model, images_for(model))
    assert calls == ["encoder_block_0"]  # the first block's output is the last one's input


@pytest.mark.parametrize("held, most", [(1, 1), (4 * 2 * 3 * 9 * 4, 3), (10**9, 9)])
def test_a_stretch_stays_under_its_bound_and_none_is_left_out(held, most, monkeypatch):
    monkeypatch.setattr(blocks, "STRETCH", held)
    model = small(image_size=(16, 32))
    layer = model.get_layer("encoder_block_0").attention
    tokens = np.random.default_rng(0).normal(size=(2, 9, 12)).astype("float32")
    parts = [*stretches(layer, tokens)]
    assert max(part.stop - part.start for part, _ in parts) == most
    assert_close(np.concatenate([scores for _, scores in parts], axis=2), layer.scores(tokens), 1e-6)
    assert [i for part, _ in parts for i in range(9)[part]] == [*range(9)]


def test_no_image_is_an_answer_of_none():
    model = small(pooling="map")
    for look in LOOKS:
        found = look(model, np.zeros((0, 16, 16, 3), "float32"))
        assert found.shape == (0, *look(model, images_for(model)).shape[1:])


MEMORY = """
import pathlib, re
import numpy as np
from keras_vit import VisionTransformer, inspection

model = VisionTransformer((None, None), 16, 96, {layers}, 96, 12, pooling="gap")
peaks = []
for side in (32, 1024):
    for look in (inspection.attention_distance, inspection.attention_rollout, inspection.patch_similarity):
        look(model, np.zeros((1, side, side, 3), "float32"))
    status = pathlib.Path("/proc/self/status").read_text()  # getrusage would tell the parent's peak, too
    peaks.append(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="Linux tells the peak there")
@pytest.mark.tensorflow_only("JAX takes more to compile than is measured here")
def test_memory_stays_bounded_at_1024_pixels():
    """One block's scores are 806 MB here, and calling the model takes twice that. In stretches of 67 MB
    it is six of them: logits, softmax, what is made of it, and what the allocator keeps of those."""
    code = MEMORY.format(layers=2 if "FULL" in os.environ else 1)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert 67e6 < int(run.stdout) < 600e6, run.stdout


@pytest.mark.parametrize(
    "shape, told",
    [
        ((16, 16, 3), r"images must be an array of shape \(batch, 16, 16, 3\).*; got \(16, 16, 3\)"),
        ((2, 16, 24, 3), r"\(batch, 16, 16, 3\).*; got \(2, 16, 24, 3\)"),
        ((2, 16, 16, 1), r"\(batch, 16, 16, 3\).*; got \(2, 16, 16, 1\)"),
    ],
)
def test_images_of_another_shape_are_refused(shape, told):
    model = small()
    for look in LOOKS:
        with pytest.raises(ValueError, match=told) as refusal:
            look(model, np.zeros(shape, "float32"))
        assert "\n" not in str(refusal.value)


def test_images_that_the_patch_does_not_divide_are_refused():
    model = small(image_size=(None, None))
    for look in LOOKS:
        with pytest.raises(ValueError, match=r"of 16×20 .* is not divisible by the patch of 8×8$") as refusal:
            look(model, np.zeros((1, 16, 20, 3), "float32"))
        assert "\n" not in str(refusal.value)  # Keras adds lines of its own to what a layer says
    with pytest.raises(ValueError, match=r"\(batch, height, width, 3\).*; got \(1, 16, 16, 4\)"):
        attention_rollout(model, np.zeros((1, 16, 16, 4), "float32"))


def test_what_is_no_image_is_refused():
    model = small()
    for look in LOOKS:
        with pytest.raises(ValueError, match="as model.preprocessing makes them; got list"):
            look(model, ["cat.jpg"])


@pytest.mark.parametrize("make", [keras.models.clone_model, lambda model: model.predict, None])
def test_another_model_is_refused(make):
    model = small(num_classes=None)
    other = make(model) if make else MaskedPatchPredictor(model)
    for look in LOOKS:
        with pytest.raises(ValueError, match="only a VisionTransformer can be looked into; got") as refusal:
            look(other, images_for(model))
        assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match=f"got {type(other).__name__} "):
        check_model(other)


def test_a_model_without_blocks_has_nothing_to_walk_through():
    model = small(**NO_TRANSFORMER)
    with pytest.raises(ValueError, match="0 blocks"):
        next(walk(model, images_for(model)))
