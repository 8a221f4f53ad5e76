"""The authors' files of Depth Anything 3 for one image."""

import json

import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, images_for

from keras_vit import DepthEstimator, VisionTransformer, from_pretrained, save_weights
from keras_vit.weights.array_files import read_arrays, write_arrays
from keras_vit.weights.layouts import LAYOUTS, check_family

ENCODER = {**SMALL, "num_layers": 4, "layer_scale": 0.1, "num_classes": None, "activation": "gelu_erf"}


@pytest.fixture
def stored(tmp_path):
    """A model, and a folder as the authors have it."""
    options = {"quantity": "relative", "decoder_size": 6, "neck_sizes": (3, 4, 5, 6)}
    model = randomize(DepthEstimator(VisionTransformer(**ENCODER), **options), 0.1)
    encoder = read_arrays(save_weights(model.encoder, tmp_path / "encoder.safetensors", "timm"))
    head = {weight.path: numpy(weight) for layer in model.own_layers() for weight in layer.weights}
    arrays = {
        **{f"model.backbone.pretrained.{key}": array for key, array in encoder.items()},
        **LAYOUTS["timm"].table.write(head),
        "model.backbone.pretrained.mask_token": np.zeros((1, 12), "float32"),
        "model.head.scratch.sky_output_conv2.0.weight": np.zeros((32, 3, 3, 3), "float32"),
    }
    folder = tmp_path / "model"
    folder.mkdir()
    write_arrays(arrays.items(), folder / "model.safetensors", "float32")
    config = {"model_name": "da3mono-large", "config": {"net": {"out_layers": [0, 1, 2, 3]}}}
    (folder / "config.json").write_text(json.dumps(config))
    return model, folder


@pytest.mark.slow
def test_a_model_for_one_image_is_read(stored):
    model, folder = stored
    again = from_pretrained(folder, num_heads=model.encoder.num_heads)
    assert (again.quantity, again.upsampling, again.blocks) == ("relative", "match", (0, 1, 2, 3))
    assert again.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))
    images = images_for(model)
    assert_close(numpy(again(images)), numpy(model(images)), 1e-6)


def test_its_encoder_is_read_alone(stored):
    model, folder = stored
    assert type(from_pretrained(folder, num_classes=0, num_heads=3)) is VisionTransformer


@by_table(
    "key",
    [
        "backbone.pretrained.camera_token",
        "head.scratch.refinenet4_aux.out_conv.weight",
        "da3.backbone.pretrained.cls_token",
    ],
)
def test_models_for_several_views_are_refused(key):
    with pytest.raises(ValueError, match="got a Depth Anything 3 for several views"):
        check_family([f"model.{key}"])
