"""ViTPose in transformers' files: what is written, read, kept and refused."""

import errno
import json
import os

import numpy as np
import pytest
from made.sampling import some
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, images_for

from keras_vit import KeypointEstimator, VisionTransformer, from_pretrained, save_weights
from keras_vit.tasks.keypoints.huggingface import one_expert
from keras_vit.weights.array_files import read_arrays, write_arrays

ENCODER = {**SMALL, "image_size": (24, 16), "mlp_dim": 24, "num_classes": None, "pooling": "gap"}
ENCODER |= {"patch_padding": 2, "norm_epsilon": 1e-3, "num_layers": 1}
NAMES = ("nose", "left_eye", "right_eye")
KEPT = ("head", "num_classes", "class_names", "flip_index", "skeleton", "sigmas")
MODELS = {
    "names": {"class_names": NAMES, "flip_index": (0, 2, 1), "skeleton": ((0, 1), (0, 2))},
    "numbers": {"flip_index": (1, 0, 2), "sigmas": (0.1, 0.2, 0.3)},
    "classic": {"head": "classic", "class_names": NAMES, "flip_index": (1, 0, 2)},
}


def made(name="names", changes=(), **options):
    encoder = VisionTransformer(**{**ENCODER, **dict(changes)})
    return randomize(KeypointEstimator(encoder, 3, **{"head": "simple", **MODELS[name], **options}), 0.1)


def changed(folder, **values):
    """Other values in a folder's config.json; those of `backbone` are the backbone's."""
    config = json.loads((folder / "config.json").read_text())
    config["backbone_config"] |= values.pop("backbone", {})
    (folder / "config.json").write_text(json.dumps(config | values))
    (folder / "model.json").unlink()


def with_experts(folder, part=5, count=3):
    """Make of a saved model a ViTPose+, whose first expert has the weights of the model."""
    arrays = read_arrays(folder / "model.safetensors")
    rng = np.random.default_rng(3)
    for key in [key for key in arrays if ".fc2." in key]:
        whole = arrays[key]
        arrays[key] = whole[:-part]
        for i in range(count):
            other = rng.standard_normal(whole[-part:].shape).astype("float32")
            arrays[key.replace("fc2", f"experts.{i}")] = other if i else whole[-part:]
    changed(folder, backbone={"num_experts": count, "part_features": part})
    write_arrays(arrays, folder / "model.safetensors")
    return arrays


@pytest.mark.parametrize("name", some(MODELS, 3))
def test_a_model_is_written_and_read(name, tmp_path):
    model = made(name)
    save_weights(model, tmp_path / "model", "huggingface")
    again = from_pretrained(tmp_path / "model")
    assert {n: getattr(again, n) for n in KEPT} == {n: getattr(model, n) for n in KEPT}
    assert (again.encoder.patch_padding, again.encoder.norm_epsilon) == (2, 1e-3)
    images = images_for(model)
    assert_close(numpy(again(images)), numpy(model(images)), 1e-6)


def test_points_that_exchange_their_places_are_found_by_their_names(tmp_path):
    save_weights(made(), tmp_path / "model", "huggingface")
    labels = {"0": "L_Eye", "1": "Nose", "2": "R_Eye"}
    changed(tmp_path / "model", id2label=labels, edges=[[2, 0]])
    model = from_pretrained(tmp_path / "model")
    assert (model.class_names, model.flip_index) == (tuple(labels.values()), (2, 1, 0))
    assert model.skeleton == ((2, 0),)


def test_all_patches_have_the_first_position(tmp_path):
    model = made()
    file = save_weights(model, tmp_path / "model", "huggingface")
    arrays = read_arrays(file)
    key = "backbone.embeddings.position_embeddings"
    assert arrays[key].shape == (1, 1 + 6, 12)
    first = np.linspace(-1, 1, 12, dtype="float32")
    arrays[key] = np.concatenate([arrays[key][:, :1] + first, arrays[key][:, 1:] - first], axis=1)
    file.with_suffix(".json").unlink()
    write_arrays(arrays, file)
    images = images_for(model)
    assert_close(numpy(from_pretrained(file.parent)(images)), numpy(model(images)))


def test_the_first_expert_is_read_and_others_are_chosen(tmp_path):
    model, images = made(), images_for(made())
    save_weights(model, tmp_path / "plus", "huggingface")
    arrays = with_experts(tmp_path / "plus")
    assert_close(numpy(from_pretrained(tmp_path / "plus")(images)), numpy(model(images)), 1e-6)
    chosen = from_pretrained(one_expert(tmp_path / "plus", tmp_path / "third", dataset_index=2))
    kernel = numpy(chosen.encoder.get_layer("encoder_block_0").weights[-2])
    layer = "backbone.encoder.layer.0.mlp.{}.weight".format
    np.testing.assert_array_equal(kernel[:, :-5], arrays[layer("fc2")].T)
    np.testing.assert_array_equal(kernel[:, -5:], arrays[layer("experts.2")].T)
    assert chosen.preprocessing == model.preprocessing


def test_an_expert_that_does_not_exist_is_refused(tmp_path):
    save_weights(made(), tmp_path / "model", "huggingface")
    with pytest.raises(ValueError, match="expected a ViTPose\\+ with several experts; got 1"):
        one_expert(tmp_path / "model", tmp_path / "other")
    with_experts(tmp_path / "model")
    with pytest.raises(ValueError, match="dataset_index must be one of 0, 1, 2; got 3"):
        one_expert(tmp_path / "model", tmp_path / "other", dataset_index=3)
    with pytest.raises(ValueError, match="model' exists; '.*' is free"):
        one_expert(tmp_path / "model", tmp_path / "model")
    assert not (tmp_path / "other").exists()


def test_a_write_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    def fill_the_disk(arrays, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save_weights(made(), tmp_path / "model", "huggingface")
    with_experts(tmp_path / "model")
    monkeypatch.setattr("keras_vit.tasks.keypoints.huggingface.write_arrays", fill_the_disk)
    with pytest.raises(OSError, match="other' cannot be written: No space left on device"):
        one_expert(tmp_path / "model", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_encoder_of_a_file_is_read_alone(tmp_path):
    save_weights(made(), tmp_path / "model", "huggingface")
    encoder = from_pretrained(tmp_path / "model", num_classes=0)
    assert type(encoder) is VisionTransformer and encoder.patch_padding == 2


REFUSED = {
    "backbone": ({"backbone_config": {"model_type": "swin"}}, "expected 'vitpose_backbone' as the backbone"),
    "block": ({"backbone": {"out_indices": [0]}}, "out_indices must end with the last block, 1; got \\[0\\]"),
    "scale": ({"scale_factor": 2}, "scale_factor must be 4; got 2"),
    "names": ({"id2label": {"0": "nose"}}, "id2label must name the 3 points of the head; got 1"),
    "lines": ({"edges": [[0, 3]]}, "expected a skeleton of pairs of numbers below 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_other_configurations_are_refused(name, tmp_path):
    values, message = REFUSED[name]
    save_weights(made(), tmp_path / "model", "huggingface")
    changed(tmp_path / "model", **values)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path / "model")


UNWRITTEN = {
    "padding": ({"patch_padding": 0}, {}, "patch_padding=0 \\(supported: 2\\)"),
    "class token": ({"class_token": True}, {}, "class_token=True \\(supported: False\\)"),
    "ratio": ({"mlp_dim": 20}, {}, "mlp_dim=20 \\(supported: multiples of hidden_size=12\\)"),
    "width": ({}, {"head": "classic", "decoder_width": 8}, "decoder_width=8 \\(supported: 256\\)"),
}


@pytest.mark.parametrize("name", some(UNWRITTEN, 2))
def test_what_the_layout_cannot_express_is_refused(name, tmp_path):
    changes, options, message = UNWRITTEN[name]
    with pytest.raises(ValueError, match=message):
        save_weights(made(changes=changes, **options), tmp_path / "model", "huggingface")
    assert not (tmp_path / "model").exists()


def test_a_layout_of_encoders_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keypoint estimators are written in one layout, 'huggingface'"):
        save_weights(made(), tmp_path / "model.safetensors", "timm")
