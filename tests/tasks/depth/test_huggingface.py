"""Depth Anything and DPT in transformers' files: what is written, read, kept and refused."""

import hashlib
import json

import numpy as np
import pytest
from made.sampling import some
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, images_for

from keras_vit import DepthEstimator, VisionTransformer, from_pretrained, save_weights
from keras_vit.weights.array_files import read_arrays, write_arrays
from keras_vit.weights.layouts import check_family

DINOV2 = {**SMALL, "num_layers": 4, "layer_scale": 0.1, "mlp_dim": 48, "num_classes": None}
VIT = {**SMALL, "num_layers": 4, "num_classes": None, "final_norm": False}
DPT = {"decoder_size": 6, "neck_sizes": (3, 4, 5, 6)}
DOUBLE = {**DPT, "upsampling": "double", "quantity": "disparity"}
MODELS = {
    "disparity": (DINOV2, {**DPT, "quantity": "disparity", "head_size": 4}),
    "metric": (DINOV2, {**DPT, "max_depth": 20.0}),
    "unnormalized": ({**DINOV2, "final_norm": False}, {**DPT, "quantity": "disparity"}),
    "DPT": (VIT, {**DOUBLE, "readout": "project", "readout_activation": "gelu_tanh"}),
    "DPT with norms": (VIT, {**DOUBLE, "readout": "add", "head_norm": "batch"}),
    "DPT with DINOv2": ({**DINOV2, "final_norm": False}, {**DOUBLE, "readout": "project"}),
}
CLASSES = {
    **dict.fromkeys(("disparity", "metric", "unnormalized"), "DepthAnythingForDepthEstimation"),
    **dict.fromkeys(("DPT", "DPT with norms", "DPT with DINOv2"), "DPTForDepthEstimation"),
}


def made(name, **changes):
    encoder, head = MODELS[name]
    return randomize(DepthEstimator(VisionTransformer(**encoder), **{**head, **changes}), 0.1)


def changed(folder, **values):
    """Other values in a folder's config.json; None removes them."""
    config = json.loads((folder / "config.json").read_text()) | values
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.json").unlink(missing_ok=True)


@pytest.mark.parametrize("name", some(MODELS, 6))
def test_a_model_is_written_and_read(name, tmp_path):
    model = made(name)
    save_weights(model, tmp_path / "model", "huggingface")
    assert json.loads((tmp_path / "model/config.json").read_text())["architectures"] == [CLASSES[name]]
    again = from_pretrained(tmp_path / "model")
    options = {"quantity", "read_blocks", "readout", "upsampling", "head_norm", "head_size", "neck_sizes"}
    assert {n: getattr(again, n) for n in options} == {n: getattr(model, n) for n in options}
    images = images_for(model)
    assert_close(numpy(again(images)), numpy(model(images)), 1e-6)


def test_a_file_without_its_configuration_is_refused(tmp_path):
    file = save_weights(made("disparity"), tmp_path / "model", "huggingface")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="the blocks that its head reads are in config.json alone"):
        from_pretrained(file, sha256=digest)
    for name in ("config.json", "model.json"):
        file.with_name(name).unlink()
    with pytest.raises(ValueError, match="which sha256 does not cover"):
        from_pretrained(file, num_heads=3)


def test_blocks_that_are_read_twice_are_refused(tmp_path):
    model = DepthEstimator(VisionTransformer(**{**DINOV2, "num_layers": 2}), quantity="disparity", **DPT)
    with pytest.raises(ValueError, match="blocks=\\(0, 0, 1, 1\\) \\(supported: each once\\)"):
        save_weights(model, tmp_path / "model", "huggingface")


def test_the_encoder_of_a_file_is_read_alone(tmp_path):
    save_weights(made("metric"), tmp_path / "model", "huggingface")
    for options in ({"kind": "classifier"}, {"num_classes": 0}):
        assert type(from_pretrained(tmp_path / "model", **options)) is VisionTransformer


@pytest.mark.slow
def test_a_head_for_other_depths_keeps_the_decoder(tmp_path):
    model = made("disparity")
    save_weights(model, tmp_path / "model", "huggingface")
    metric = from_pretrained(tmp_path / "model", depth_estimator={"quantity": "metric", "max_depth": 5.0})
    assert metric.initial_weights == ("output_convolution/kernel", "output_convolution/bias")
    for kept in ("fusion_0", "head_convolution"):
        for ours, theirs in zip(metric.get_layer(kept).weights, model.get_layer(kept).weights):
            np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    other = {"quantity": "metric", "activation": "relu"}
    with pytest.raises(ValueError, match="expected a depth_estimator with the same classes"):
        from_pretrained(tmp_path / "model", depth_estimator=other, head="keep")


@pytest.mark.slow
def test_a_new_head_has_none_of_the_files_weights(tmp_path):
    save_weights(made("disparity"), tmp_path / "model", "huggingface")
    linear = from_pretrained(tmp_path / "model", depth_estimator={"head": "linear", "bins": 4})
    assert {*linear.initial_weights} == {"head/kernel", "head/bias"}
    reset = from_pretrained(tmp_path / "model", kind="depth_estimator", depth_estimator={}, head="reset")
    assert len(reset.initial_weights) == sum(len(layer.weights) for layer in reset.own_layers())


REFUSED = {
    "hybrid": (
        "DPT",
        {"is_hybrid": True},
        "is_hybrid must be false, for a DPT of a plain Vision",
    ),
    "projection": ("DPT", {"add_projection": True}, "add_projection must be false"),
    "Swin": (
        "disparity",
        {"backbone_config": {"model_type": "swinv2"}},
        "expected a plain Vision Transformer, 'dinov2', as the backbone; got 'swinv2'",
    ),
    "no backbone": ("disparity", {"backbone_config": None}, "as the backbone; got None"),
    "blocks": ("DPT", {"backbone_out_indices": [1, 2]}, "the blocks that are read must be"),
    "largest depth": ("metric", {"max_depth": "far"}, "must be a number above 0 or None; got .far."),
    "kind of depth": ("metric", {"depth_estimation_type": "stereo"}, "must be one of 'relative', 'metric'"),
    "no object": ("disparity", {"backbone_config": ["dinov2"]}, "as the backbone; got None"),
    "readout": ("DPT with norms", {"readout_type": "mean"}, "readout_type must be one of 'ignore', 'add'"),
    "other map": ("DPT", {"head_in_index": 2}, "config.json: head_in_index must be -1 or 3; got 2"),
    "other map of Depth Anything": (
        "disparity",
        {"head_in_index": 0},
        "head_in_index must be -1 or 3; got 0",
    ),
    "factors": (
        "disparity",
        {"reassemble_factors": [4, 2, 1, 0.25]},
        r"reassemble_factors must be \[4, 2, 1, 0.5\]; got \[4, 2, 1, 0.25\]",
    ),
    "factor of a relative depth": ("disparity", {"max_depth": 20}, "max_depth must be 1 or None; got 20"),
    "bias before a norm": (
        "DPT with norms",
        {"use_bias_in_fusion_residual": True},
        "use_bias_in_fusion_residual must be None or False; got True",
    ),
    "default blocks": (
        "DPT",
        {"backbone_out_indices": None},
        "blocks must be increasing numbers from 0 to 3",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_other_configurations_are_refused(name, tmp_path):
    of, values, message = REFUSED[name]
    save_weights(made(of), tmp_path / "model", "huggingface")
    changed(tmp_path / "model", **values)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("name, indices", some([("DPT", [3, 0, 2, 1]), ("disparity", [-1, 1, -2, 2])], 2))
def test_blocks_are_read_by_increasing_numbers(name, indices, tmp_path):
    save_weights(made(name), tmp_path / "model", "huggingface")
    backbone = json.loads((tmp_path / "model/config.json").read_text()).get("backbone_config")
    values = {"backbone_config": backbone | {"out_indices": indices}} if backbone else None
    changed(tmp_path / "model", **(values or {"backbone_out_indices": indices}))
    assert from_pretrained(tmp_path / "model").read_blocks == (0, 1, 2, 3)


@pytest.mark.slow
def test_blocks_after_the_last_one_that_is_read_are_not_needed(tmp_path):
    encoder, head = MODELS["DPT"]
    encoder = randomize(VisionTransformer(**{**encoder, "num_layers": 6}), 0.1)
    model = randomize(DepthEstimator(encoder, **head, blocks=(0, 1, 2, 4)), 0.1)
    save_weights(model, tmp_path / "model", "huggingface")
    written = from_pretrained(tmp_path / "model")
    assert written.encoder.num_layers == 5
    assert_close(numpy(written(images_for(model))), numpy(model(images_for(model))), 1e-6)

    changed(tmp_path / "model", backbone_out_indices=[0, 1, 2, 3])
    model, again = DepthEstimator(encoder, **head, blocks=(0, 1, 2, 3)), from_pretrained(tmp_path / "model")
    own = {weight.path: weight for weight in written.weights}
    for weight in model.weights:
        weight.assign(own[weight.path])
    assert_close(numpy(again(images_for(model))), numpy(model(images_for(model))), 1e-6)


@pytest.mark.parametrize(
    "key, family",
    [
        ("dpt.embeddings.backbone.bit.embedder.convolution.weight", "a DPT whose backbone is a BiT"),
        ("backbone.encoder.layers.0.blocks.0.layernorm_before.weight", "backbone is a Swin Transformer"),
    ],
)
def test_other_backbones_are_refused(key, family):
    with pytest.raises(ValueError, match=f"expected a Vision Transformer; got .*{family}"):
        check_family([key])


UNWRITTEN = {
    "relative": ({"quantity": "relative"}, "quantity='relative' \\(supported: 'disparity' or 'metric'\\)"),
    "values": ({"quantity": "values", "num_classes": 3}, "num_classes=3 \\(supported: 1\\)"),
    "part of a meter": (
        {"quantity": "metric", "max_depth": 0.5},
        "max_depth=0.5 \\(supported: whole numbers\\)",
    ),
    "readout": ({"readout": "add"}, "readout='add' \\(supported: 'ignore'\\)"),
    "linear": ({"head": "linear"}, "of depth estimators only head='dpt' has a layout"),
    "activation": ({"activation": "exp"}, "activation='exp' with quantity='disparity'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_the_layout_cannot_express_is_refused(name, tmp_path):
    changes, message = UNWRITTEN[name]
    with pytest.raises(ValueError, match=message):
        save_weights(made("disparity", **changes), tmp_path / "model", "huggingface")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "missing, message",
    [
        ("reassemble_stage.layers.3.", "a head of 4 maps and three convolutions; it lacks reassemble_3"),
        ("neck.convs.2.weight", "only in model: reassemble_2/convolution/kernel"),
    ],
)
def test_a_damaged_head_is_refused(missing, message, tmp_path):
    file = save_weights(made("disparity"), tmp_path / "model", "huggingface")
    arrays = {name: x for name, x in read_arrays(file).items() if missing not in name}
    file.with_suffix(".json").unlink()
    write_arrays(arrays.items(), file, "float32")
    with pytest.raises(ValueError, match=message):
        from_pretrained(file.parent)
