import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from made.tables import by_table
from PIL import Image
from reference.attention_numpy import inspected
from reference.comparing import assert_close
from reference.small import images_for, small

from keras_vit import MaskedPatchPredictor
from keras_vit.export.description import describe
from keras_vit.export.exported_model import exported_model
from keras_vit.inspection import (
    attention_distance,
    attention_maps,
    attention_rollout,
    attention_weights,
    blocks,
    filter_components,
    patch_norms,
    patch_similarity,
    position_similarity,
)
from keras_vit.inspection.blocks import model_input, pooling_input, score_chunks, walk
from keras_vit.layers import EncoderBlock

OF_IMAGES = (attention_distance, attention_maps, attention_rollout, attention_weights, patch_similarity)


@pytest.mark.parametrize("name", ["token", "any size", "registers and gap"])
def test_the_inputs_of_blocks_are_the_models(name, golden):
    model, images, _ = inspected(name, golden)
    stages = [f"encoder_block_{i}" for i in range(model.num_layers)]
    expected = model.feature_extractor(stages)(images)
    _, *found = walk(model, images)
    for stage, (_, tokens, _) in zip(stages, found, strict=True):
        assert_close(tokens, expected[stage], 1e-5)


def test_the_pooling_reads_the_blocks_without_a_last_norm():
    tokens = np.ones((1, 5, 12))
    assert pooling_input(small(pooling="map", final_norm=False), tokens) is tokens


def test_the_inputs_of_blocks_are_those_of_inference():
    rates = {"dropout_rate": 0.5, "attention_dropout_rate": 0.5, "stochastic_depth_rate": 0.5}
    images = images_for(small())
    for (_, with_rates, _), (_, without, _) in zip(walk(small(**rates), images), walk(small(), images)):
        assert_close(with_rates, without, 1e-6)


def test_unneeded_blocks_are_not_computed(monkeypatch):
    model, calls = small(), []
    compute = EncoderBlock.call

    def call(layer, *args, **kwargs):
        calls.append(layer.name)
        return compute(layer, *args, **kwargs)

    monkeypatch.setattr(EncoderBlock, "call", call)
    attention_distance(model, images_for(model))
    assert calls == ["encoder_block_0"]  # the first block's output is the last one's input


@pytest.mark.parametrize("size, most", [(1, 1), (4 * 2 * 3 * 9 * 4, 3), (10**9, 9)])
def test_chunks_are_bounded_and_cover_all_queries(size, most, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK_BYTES", size)
    layer = small(image_size=(16, 32)).get_layer("encoder_block_0").attention
    tokens = np.random.default_rng(0).normal(size=(2, 9, 12)).astype("float32")
    chunks = [*score_chunks(layer, tokens)]
    assert max(chunk.stop - chunk.start for chunk, _ in chunks) == most
    assert_close(np.concatenate([scores for _, scores in chunks], axis=2), layer.scores(tokens), 1e-6)
    assert [i for chunk, _ in chunks for i in range(9)[chunk]] == [*range(9)]


def test_an_empty_batch_gives_an_empty_array():
    model = small(pooling="map")
    for function in OF_IMAGES:
        found = function(model, np.zeros((0, 16, 16, 3), "float32"))
        assert found.shape == (0, *function(model, images_for(model)).shape[1:])


MEMORY = """
import pathlib, re
import numpy as np
from keras_vit import VisionTransformer, inspection

model = VisionTransformer((None, None), 16, 96, 2, 96, 12, pooling="gap")
peaks = []
for side in (32, 1024):
    for name in ("attention_distance", "attention_rollout", "patch_similarity"):
        getattr(inspection, name)(model, np.zeros((1, side, side, 3), "float32"))
    status = pathlib.Path("/proc/self/status").read_text()  # getrusage includes the parent's peak
    peaks.append(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc"
)
@pytest.mark.tensorflow_only("JAX takes more to compile than is measured here")
def test_memory_is_bounded_at_1024_pixels():
    """One block's scores are 806 MB here, and calling the model takes twice that. A chunk is 67 MB, of which
    six are held: logits, softmax, products, and what the allocator keeps."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert 67e6 < int(run.stdout) < 600e6, run.stdout


@by_table(
    "image_size, images, message",
    [
        (16, np.zeros((16, 16, 3)), r"images of shape \(batch, 16, 16, 3\), from .*; got \(16, 16, 3\)"),
        (16, np.zeros((2, 16, 24, 3)), r"\(batch, 16, 16, 3\).*; got \(2, 16, 24, 3\)"),
        (16, np.zeros((2, 16, 16, 1)), r"\(batch, 16, 16, 3\).*; got \(2, 16, 16, 1\)"),
        (16, ["none.jpg"], "no such image file: none.jpg"),
        ((None, None), np.zeros((1, 16, 16, 4)), r"\(batch, height, width, 3\).*16, 4\)"),
    ],
)
def test_other_input_is_refused_in_one_line(image_size, images, message):
    model = small(image_size=image_size)
    for function in OF_IMAGES:
        with pytest.raises(ValueError, match="^.*" + message):  # a dot matches no newline
            function(model, images)


def test_raw_images_are_the_models_input(tmp_path):
    model = small()
    photo = np.random.default_rng(0).integers(0, 256, (30, 40, 3), "uint8")
    Image.fromarray(photo).save(tmp_path / "photo.png")
    expected = model.preprocessing(photo)
    for images in (tmp_path / "photo.png", [Image.fromarray(photo)], photo):
        assert_close(model_input(model, images), expected, 1e-6)
    for function in (*OF_IMAGES, patch_norms):
        assert_close(function(model, tmp_path / "photo.png"), function(model, expected), 1e-6)


def opened_export(model):
    return exported_model(describe(model), compute=dict)


@pytest.mark.parametrize(
    "make", [keras.models.clone_model, MaskedPatchPredictor, opened_export, lambda model: None]
)
def test_another_model_is_refused_in_one_line(make):
    model = small(num_classes=None)
    other = make(model)
    functions = {function: (images_for(model),) for function in OF_IMAGES}
    for function, arguments in {**functions, filter_components: (), position_similarity: ()}.items():
        with pytest.raises(ValueError, match=f"^expected a VisionTransformer; got {type(other).__name__} "):
            function(other, *arguments)
