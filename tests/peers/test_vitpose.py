"""transformers' ViTPose and ViTPose+, and our keypoint estimators: heat maps and files both ways."""

import json

import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import channels_first, images_of, randomized, read_whole
from reference.comparing import assert_close

from keras_vit import KeypointEstimator, from_pretrained, save_weights
from keras_vit.tasks.keypoints.huggingface import one_expert

NAMES = ("Nose", "L_Eye", "R_Eye", "L_Ear", "R_Ear")
SIZES = {"image_size": [64, 48], "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIGURATIONS = {
    "simple": ({}, True),
    "classic": ({"layer_norm_eps": 1e-6, "qkv_bias": False}, False),
    "ViTPose+": ({"num_experts": 6, "part_features": 4}, True),
}


def vitpose(name):
    options, is_simple = CONFIGURATIONS[name]
    backbone = transformers.VitPoseBackboneConfig(**{**SIZES, "mlp_ratio": 2, "out_indices": [2], **options})
    config = transformers.VitPoseConfig(
        backbone_config=backbone,
        use_simple_decoder=is_simple,
        num_labels=len(NAMES),
        id2label=dict(enumerate(NAMES)),
        edges=[[0, 1], [0, 2]],
    )
    module = randomized(transformers.VitPoseForPoseEstimation(config), scale=0.15)
    generator = torch.Generator().manual_seed(2)
    for key, buffer in module.named_buffers():
        if "running" in key:
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module


def heat_maps(theirs, images, expert=None):
    indices = {} if expert is None else {"dataset_index": torch.full((len(images),), expert)}
    with torch.no_grad():
        return theirs(channels_first(images), **indices).heatmaps.numpy().transpose(0, 2, 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_vitpose_is_read_and_written_with_equal_heat_maps(name, tmp_path):
    theirs, images = vitpose(name), images_of(64, 48)
    theirs.save_pretrained(tmp_path / "theirs")
    model = from_pretrained(tmp_path / "theirs")
    assert isinstance(model, KeypointEstimator)
    assert (model.class_names, model.flip_index) == (NAMES, (0, 2, 1, 4, 3))
    expected = heat_maps(theirs, images, 0 if name == "ViTPose+" else None)
    assert_close(model(images), expected)
    save_weights(model, tmp_path / "ours", "huggingface")
    again = read_whole(type(theirs), tmp_path / "ours")
    assert again.config.id2label == dict(enumerate(NAMES)) and again.config.edges == [[0, 1], [0, 2]]
    assert_close(heat_maps(again, images), expected)


@pytest.mark.slow
def test_each_expert_has_the_heat_maps_of_its_data_set(tmp_path):
    theirs, images = vitpose("ViTPose+"), images_of(64, 48)
    theirs.save_pretrained(tmp_path / "theirs")
    for expert in (1, 5):
        folder = one_expert(tmp_path / "theirs", tmp_path / f"expert {expert}", expert)
        expected = heat_maps(theirs, images, expert)
        assert_close(from_pretrained(folder)(images), expected)
        assert_close(heat_maps(read_whole(type(theirs), folder), images), expected)


@pytest.mark.slow
def test_processors_have_the_size_and_the_colors_of_the_other(tmp_path):
    processor = transformers.VitPoseImageProcessor(
        size={"height": 64, "width": 48}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.1]
    )
    vitpose("simple").save_pretrained(tmp_path / "theirs")
    processor.save_pretrained(tmp_path / "theirs")
    model = from_pretrained(tmp_path / "theirs")
    np.testing.assert_allclose(model.preprocessing.mean, [0.4, 0.5, 0.6], rtol=1e-6)
    save_weights(model, tmp_path / "ours", "huggingface")
    written = json.loads((tmp_path / "ours/preprocessor_config.json").read_text())
    assert written["image_processor_type"] == "VitPoseImageProcessor"
    again = transformers.VitPoseImageProcessor.from_pretrained(tmp_path / "ours")
    image, boxes = np.random.default_rng(0).integers(0, 256, (80, 90, 3), "uint8"), [[[10, 12, 40, 50]]]
    first, second = (p(image, boxes=boxes, return_tensors="np")["pixel_values"] for p in (processor, again))
    np.testing.assert_allclose(second, first, atol=1e-5)
