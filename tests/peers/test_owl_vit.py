"""transformers' OWL-ViT and OWLv2, and our detectors by words: outputs, and files in both directions."""

import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import channels_first, images_of, randomized, read_whole
from reference.comparing import assert_close, numpy
from reference.small import compute

from keras_vit import ObjectDetector, from_pretrained, save_weights
from keras_vit.engine.adapting import copy_with_weights

TEXT = {
    **{"vocab_size": 50, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "max_position_embeddings": 6, "bos_token_id": 1, "eos_token_id": 49},
}
VISION = {
    **{"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 3},
    **{"image_size": 32, "patch_size": 8},
}
IDS = np.array([[1, 5, 9, 49, 0, 0], [1, 4, 49, 0, 0, 0], [0, 0, 0, 0, 0, 0]])  # the last is padding
BOUND = 3e-6
both = pytest.mark.parametrize("version", ["OwlViT", "Owlv2"])


def made(version, **vision):
    config = getattr(transformers, f"{version}Config")(
        projection_dim=16, text_config=TEXT, vision_config={**VISION, **vision}
    )
    return randomized(getattr(transformers, f"{version}ForObjectDetection")(config))


def theirs_of(model, images, ids=IDS):
    """Their outputs, by our names of stages."""
    ids = np.tile(ids, (len(images), 1))
    with torch.no_grad():
        found = model(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor((ids > 0).astype("int64")),
            pixel_values=channels_first(images),
            interpolate_pos_encoding=True,
        )
    stages = {"boxes": found.pred_boxes, "logits": found.logits}
    if "objectness_logits" in found:
        stages["objectness"] = found.objectness_logits[..., None]
    return {name: x.numpy() for name, x in stages.items()}


def assert_same(model, images, expected):
    for name, found in compute(model, images, [*expected]).items():
        found, is_padding = numpy(found), expected[name] <= -1e6  # of the logits; theirs are smaller
        np.testing.assert_array_equal(found == -1e6, is_padding)
        assert_close(found[~is_padding], expected[name][~is_padding], BOUND)


def of_ids(model, ids=IDS):
    """The detector of other token ids."""
    changes = {"class_ids": ids, "num_classes": len(ids), "class_names": None}
    return copy_with_weights(model, {**model._config(), "encoder": model.encoder.get_config(), **changes})


@both
def test_a_model_is_read_and_written_with_equal_outputs(version, tmp_path):
    theirs, images = made(version), images_of(32, 32)
    theirs.save_pretrained(tmp_path / "theirs")
    model = from_pretrained(tmp_path / "theirs")
    assert isinstance(model, ObjectDetector) and model.needs_texts
    assert_same(of_ids(model), images, theirs_of(theirs, images))

    save_weights(model, tmp_path / "ours", "huggingface")
    again = read_whole(type(theirs), tmp_path / "ours")
    for name, expected in theirs_of(theirs, images).items():
        np.testing.assert_array_equal(theirs_of(again, images)[name], expected, err_msg=name)
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "layer_norm_eps", "hidden_act")
    for part in ("text_config", "vision_config"):
        ours, known = (getattr(each.config, part) for each in (again, theirs))
        assert [getattr(ours, name) for name in sizes] == [getattr(known, name) for name in sizes]


@both
def test_the_classes_of_texts_are_theirs_without_a_text_tower(version, tmp_path):
    theirs, images = made(version), images_of(32, 32)
    theirs.save_pretrained(tmp_path)
    model = of_ids(from_pretrained(tmp_path), IDS[:2])
    expected = theirs_of(theirs, images, IDS[:2])
    expected.pop("objectness", None)
    assert_same(model.exported(), images, expected)


@both
def test_the_positions_of_a_smaller_image_are_the_upper_left_ones(version, tmp_path):
    """As in the authors' code, in scenic."""
    theirs, images = made(version), images_of(16, 16)
    theirs.save_pretrained(tmp_path)
    small, prefix = made(version, image_size=16), version.lower()
    state, key = theirs.state_dict(), f"{prefix}.vision_model.embeddings.position_embedding.weight"
    table = state[key]
    state[key] = torch.cat([table[:1], table[1:].reshape(4, 4, -1)[:2, :2].reshape(4, -1)])
    small.load_state_dict(state)
    truncated = {"position_interpolation": "truncate"}
    model = of_ids(from_pretrained(tmp_path, image_size=16, **truncated))
    assert_same(model, images, theirs_of(small, images))
    with pytest.raises(ValueError, match="expected a grid of at most 4×4 for 'truncate'; got 8×8"):
        from_pretrained(tmp_path, image_size=64, **truncated)


@both
def test_an_image_query_is_theirs(version, tmp_path):
    theirs, pixels = made(version), np.random.default_rng(3).uniform(0, 1, (5, 32, 32, 3)).astype("float32")
    theirs.save_pretrained(tmp_path)
    model = from_pretrained(tmp_path)
    images = channels_first(model.preprocessing(pixels))
    with torch.no_grad():
        grid, *_ = theirs.image_embedder(pixel_values=images)
        expected, *_ = theirs.embed_image_query(grid.reshape(5, 16, -1), grid)
    found = model.image_queries(pixels)
    np.testing.assert_allclose(found, expected.numpy().reshape(5, 16), rtol=BOUND, atol=BOUND)
