"""transformers' Depth Anything and DPT, and our depth estimators: outputs, and files in both directions."""

import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import channels_first, images_of, randomized, read_whole
from reference.comparing import assert_close

from keras_vit import DepthEstimator, from_pretrained, save_weights

FORMS = {  # layers, and the blocks that are read, from 1; the widths of the maps if they are others
    "small": (4, [1, 2, 3, 4]),
    "base": (12, [3, 6, 9, 12]),
    "large": (24, [5, 12, 18, 24], [4, 8, 16, 16]),
}
VIT = {"hidden_size": 16, "num_attention_heads": 2, "patch_size": 14, "image_size": 42}
NECK = {"fusion_hidden_size": 12}


def scaled(module):
    """A model with random weights, whose last ReLU lets most values through."""
    module = randomized(module, scale=0.15)
    *_, (_, bias) = module.head.named_parameters()
    with torch.no_grad():
        bias.fill_(1.0)
    return module


def anything(layers=4, blocks=(1, 2, 3, 4), widths=(2, 4, 8, 16), **options):
    backbone = transformers.Dinov2Config(
        **VIT, num_hidden_layers=layers, out_indices=[*blocks], reshape_hidden_states=False, mlp_ratio=2
    )
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone,
        neck_hidden_sizes=[*widths],
        reassemble_hidden_size=16,
        **NECK,
        **options,
    )
    return scaled(transformers.DepthAnythingForDepthEstimation(config))


def dpt(readout="project", **options):
    small = {**VIT, **NECK, "patch_size": 16, "image_size": 64, "num_hidden_layers": 4}
    small |= {"intermediate_size": 40, "backbone_out_indices": [0, 1, 2, 3]}
    small |= {"neck_hidden_sizes": [4, 6, 8, 10], "readout_type": readout}
    config = transformers.DPTConfig(**{**small, **options})
    return scaled(transformers.DPTForDepthEstimation(config))


def dpt_of_dinov2(**options):
    backbone = transformers.Dinov2Config(
        **{**VIT, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "mlp_ratio": 2},
        **{"reshape_hidden_states": False, "apply_layernorm": False},
    )
    config = transformers.DPTConfig(
        backbone_config=backbone, neck_hidden_sizes=[4, 6, 8, 10], hidden_size=16, **NECK, **options
    )
    return scaled(transformers.DPTForDepthEstimation(config))


def depth_of(theirs, images):
    with torch.no_grad():
        return theirs(channels_first(images)).predicted_depth.numpy()


def check_both_directions(theirs, tmp_path, images, changed=lambda depth: depth):
    theirs.save_pretrained(tmp_path / "theirs")
    model = from_pretrained(tmp_path / "theirs")
    assert isinstance(model, DepthEstimator)
    assert_close(model(images)[..., 0], changed(depth_of(theirs, images)))
    save_weights(model, tmp_path / "ours", "huggingface")
    again = read_whole(type(theirs), tmp_path / "ours")
    np.testing.assert_array_equal(depth_of(again, images), depth_of(theirs, images))
    return model, again


@pytest.mark.parametrize("form", FORMS)
def test_depth_anything_is_read_and_written_with_equal_outputs(form, tmp_path):
    theirs = anything(*FORMS[form])
    model, again = check_both_directions(theirs, tmp_path, images_of(42, 42))
    assert model.quantity == "disparity"
    assert model.read_blocks == tuple(block - 1 for block in FORMS[form][1])
    for name in ("neck_hidden_sizes", "fusion_hidden_size", "depth_estimation_type", "patch_size"):
        assert getattr(again.config, name) == getattr(theirs.config, name)


def test_metric_depth_anything_has_its_largest_depth(tmp_path):
    theirs = anything(depth_estimation_type="metric", max_depth=20)
    model, again = check_both_directions(theirs, tmp_path, images_of(42, 42))
    assert (model.quantity, model.max_depth, again.config.max_depth) == ("metric", 20.0, 20)


@pytest.mark.parametrize("readout", ["ignore", "add", "project"])
def test_dpt_is_read_and_written_with_equal_outputs(readout, tmp_path):
    check_both_directions(dpt(readout), tmp_path, images_of(64, 64))


@pytest.mark.parametrize("blocks", [[3, 1, 2, 0], [0, 1, 2, 4]])
def test_dpt_reads_blocks_by_increasing_numbers(blocks, tmp_path):
    theirs = dpt(num_hidden_layers=6, backbone_out_indices=blocks)
    model, _ = check_both_directions(theirs, tmp_path, images_of(64, 64))
    assert model.read_blocks == tuple(sorted(blocks))


@pytest.mark.parametrize("stages, blocks", [([-4, -3, -2, -1], (2, 3, 4, 5)), ([1, 2, 3, 5], (0, 1, 2, 4))])
def test_depth_anything_reads_the_stages_of_its_backbone(stages, blocks, tmp_path):
    model, _ = check_both_directions(anything(6, stages), tmp_path, images_of(42, 42))
    assert model.read_blocks == blocks


def test_the_batch_norms_of_dpt_are_its_residual_units(tmp_path):
    theirs = dpt(use_batch_norm_in_fusion_residual=True)
    for name, buffer in theirs.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(2)) + 0.5)
    theirs.save_pretrained(tmp_path)
    images = images_of(64, 64)
    model = from_pretrained(tmp_path)
    assert model.head_norm == "batch"
    assert_close(model(images)[..., 0], depth_of(theirs, images))


def test_the_depth_of_dpt_with_dinov2_is_resized_to_the_image(tmp_path):
    def resized(depth):
        maps = torch.from_numpy(depth)[:, None]
        return torch.nn.functional.interpolate(maps, size=(42, 42), mode="bilinear")[:, 0].numpy()

    model, again = check_both_directions(
        dpt_of_dinov2(readout_type="project"), tmp_path, images_of(42, 42), resized
    )
    assert not model.encoder.final_norm and not again.config.backbone_config.apply_layernorm
