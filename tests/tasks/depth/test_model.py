"""Depth estimators: what their heads read and compute, how they train, and what is saved."""

import keras
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import ENCODERS, SMALL, images_for

from keras_vit import DepthEstimator, VisionTransformer
from keras_vit.tasks.depth.model import default_blocks
from keras_vit.training import SGD

ENCODER = {**SMALL, "num_classes": None}
DPT = {"decoder_size": 6, "neck_sizes": (3, 4, 5, 6), "head_size": 4}
HEADS = {
    "dpt": DPT,
    "double": {**DPT, "upsampling": "double", "quantity": "disparity"},
    "linear": {"head": "linear", "bins": 7},
    "values": {"head": "linear", "quantity": "values", "num_classes": 3, "blocks": (0, 1)},
}
KINDS = ("gap", "registers", "rectangle", "any_size", "DINOv3", "hybrid")  # of encoders


def made(encoder=None, **options):
    """A depth estimator with random weights around a small encoder."""
    return randomize(DepthEstimator(VisionTransformer(**{**ENCODER, **(encoder or {})}), **options), 0.1)


@pytest.mark.parametrize("kind, head", some([(kind, head) for kind in KINDS for head in HEADS], 4))
def test_every_head_computes_values_at_the_size_of_the_image(kind, head):
    model = made({**ENCODERS[kind], "num_layers": 2}, **HEADS[head])
    images = images_for(model, size=(24, 40) if kind == "any_size" else None)
    depth = model(images)
    assert depth.shape == (*images.shape[:3], model.num_classes)
    assert model.compute_output_shape(images.shape) == depth.shape
    assert keras.backend.standardize_dtype(depth.dtype) == "float32"


@pytest.mark.slow
@pytest.mark.parametrize("head", ["dpt", "linear"])
@pytest.mark.parametrize(
    "output, low, high",
    [("metric", 0, 5), ("relative", 0, np.inf), ("disparity", 0, np.inf), ("values", -np.inf, np.inf)],
)
def test_an_output_has_the_range_of_its_kind(head, output, low, high):
    model = made(**DPT, head=head, quantity=output, max_depth=5.0, min_depth=0.5)
    values = numpy(model(images_for(model)))
    assert low <= values.min() and values.max() <= high and np.isfinite(values).all()


@pytest.mark.parametrize("head", ["dpt", "linear"])
def test_the_relu_of_a_new_head_lets_gradients_through(head):
    model = DepthEstimator(VisionTransformer(**ENCODER), head=head, quantity="disparity", **DPT)
    assert numpy(model(images_for(model))).min() > 0.5


@by_table(
    "layers, blocks", [(1, (0, 0, 0, 0)), (2, (0, 0, 1, 1)), (12, (2, 5, 8, 11)), (24, (4, 11, 17, 23))]
)
def test_four_blocks_at_equal_distances_are_read(layers, blocks):
    assert default_blocks("dpt", layers) == blocks


def test_the_blocks_that_are_given_are_read():
    model = made({"num_layers": 5}, blocks=(0, 1, 3, 4), **DPT)
    images = images_for(model)
    tokens = model.feature_extractor(["encoder_block_3", "readout_2"])(images)
    norm = model.encoder.get_layer("encoder_norm")
    expected = numpy(norm(tokens["encoder_block_3"]))[:, -4:].reshape(2, 2, 2, -1)
    assert_close(numpy(tokens["readout_2"]), expected)


def test_the_tokens_of_an_encoder_without_a_last_norm_are_read_as_they_are():
    model = made({"num_layers": 4, "final_norm": False}, **DPT)
    tokens = model.feature_extractor(["encoder_block_1", "readout_1"])(images_for(model))
    assert_close(numpy(tokens["readout_1"]), numpy(tokens["encoder_block_1"])[:, -4:].reshape(2, 2, 2, -1))


def test_the_head_can_be_computed_from_its_inputs():
    model = made(**DPT, readout="project")
    images = images_for(model)
    features = keras.Model(model.input, model.head_inputs)(images)
    head = keras.Model([*model.head_inputs, model.input], model.output)
    found = head([*features, keras.ops.convert_to_tensor(images)])
    assert_close(numpy(found), numpy(model(images)))


def test_the_depth_of_an_image_of_the_models_size_is_the_models():
    model = made(**HEADS["linear"])
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype("uint8")
    expected = numpy(model(model.preprocessing(pixels[np.newaxis])))[0]
    for whole in (False, True):
        assert_close(model.estimate(pixels, whole=whole)[0], expected)


REFUSED = {
    "outputs": ({"num_classes": 2}, "quantity='metric' is one number for each pixel; got num_classes=2"),
    "head": ({"head": "up"}, "head must be one of 'dpt', 'linear'; got 'up'"),
    "output": ({"quantity": "depth"}, "quantity must be one of 'metric', 'relative', 'disparity'"),
    "blocks": ({"blocks": (0, 1)}, "head='dpt' reads 4 blocks; got blocks=\\(0, 1\\)"),
    "missing block": ({"blocks": (0, 1, 2, 3)}, "blocks must be increasing numbers from 0 to 1"),
    "neck": ({"neck_sizes": (3, 4, 5)}, "neck_sizes must be"),
    "depths": (
        {"head": "linear", "min_depth": 3.0, "max_depth": 2.0},
        "max_depth must be a number above 3.0",
    ),
}


@pytest.mark.slow
@by_table("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        DepthEstimator(VisionTransformer(**ENCODER), **options)


def test_a_readout_needs_a_class_token():
    encoder = VisionTransformer(**{**ENCODER, "class_token": False, "pooling": "gap"})
    with pytest.raises(ValueError, match="readout='add' needs an encoder with a class token"):
        DepthEstimator(encoder, readout="add")


def test_micro_batches_of_a_batch_norm_are_refused():
    model = made(**DPT, head_norm="batch")
    with pytest.raises(ValueError, match="head_norm='batch' needs the whole batch at once"):
        model.compile(SGD(0.1), "mse", accumulation_steps=2)
