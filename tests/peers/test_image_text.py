"""transformers' models with two towers and ours: embeddings, logits, losses, gradients and files."""

import json

import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import assert_same_gradients, channels_first, images_of, randomized, read_whole
from peers.transformers_inputs import naflex_inputs, smooth
from reference.comparing import assert_close, numpy

from keras_vit import from_pretrained, save_weights

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 40, "num_attention_heads": 3}
TEXT = {**SIZES, "num_hidden_layers": 3, "vocab_size": 21, "max_position_embeddings": 7}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}
NAFLEX = {**SIZES, "num_patches": 16, "patch_size": 8}
MODELS = {
    "SigLIP": ("SiglipModel", {}, VISION),
    "SigLIP, wider image tower": ("SiglipModel", {"projection_size": 36}, {**VISION, "hidden_size": 36}),
    "SigLIP 2, NaFlex": ("Siglip2Model", {}, NAFLEX),
    "CLIP": ("CLIPModel", {"eos_token_id": 19}, VISION),
    "CLIP, highest id": (
        "CLIPModel",
        {"eos_token_id": 2, "hidden_act": "gelu"},
        {**VISION, "hidden_act": "gelu"},
    ),
}
PAIRS = 4


def made(name):
    kind, text, vision = MODELS[name]
    kind = getattr(transformers, kind)
    more = {"projection_dim": 10} if "CLIP" in name else {}
    config = {"text_config": {**TEXT, **text}, "vision_config": vision, **more}
    model = randomized(kind(kind.config_class(**json.loads(json.dumps(config)))))
    with torch.no_grad():
        model.logit_scale.fill_(1.5)
    return model


def inputs():
    ids = np.random.default_rng(1).integers(3, 19, (PAIRS, 7))
    ids[range(PAIRS), [2, 6, 4, 3]] = 19  # the end of a text
    return images_of(32, 32, batch=PAIRS), ids.astype("int32")


def theirs_of(theirs, images, ids):
    if isinstance(theirs, transformers.Siglip2Model):
        pixels = naflex_inputs(images)
    else:
        pixels = {"pixel_values": channels_first(images)}
    return theirs(input_ids=torch.from_numpy(ids).long(), **pixels, return_loss=True)


def load(theirs, folder):
    theirs.save_pretrained(folder)
    image_size = {"image_size": 32} if isinstance(theirs, transformers.Siglip2Model) else {}
    return from_pretrained(folder, kind="image_text", **image_size)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_and_written_with_equal_outputs_loss_and_gradients(name, tmp_path):
    theirs, (images, ids) = made(name), inputs()
    model = load(theirs, tmp_path / "theirs")
    expected = theirs_of(theirs, images, ids)
    assert_close(model.image_encoder(images), expected.image_embeds.detach().numpy())
    assert_close(model.text_encoder(ids), expected.text_embeds.detach().numpy())
    pairs, logits = numpy(model({"images": images, "ids": ids})), expected.logits_per_image.detach().numpy()
    assert_close(pairs[:, 0] @ pairs[:, 1].T, logits)

    save_weights(model, tmp_path / "ours", "huggingface")
    kind = transformers.CLIPModel if "CLIP" in name else transformers.SiglipModel  # of one size
    again = read_whole(kind, tmp_path / "ours")
    assert_close(theirs_of(again, images, ids).logits_per_image.detach().numpy(), logits)
    pairs = numpy(from_pretrained(tmp_path / "ours", kind="image_text")({"images": images, "ids": ids}))
    assert_close(pairs[:, 0] @ pairs[:, 1].T, logits)

    assert_same_gradients(
        model,
        lambda: model.compute_loss(y_pred=model({"images": images, "ids": ids})),
        theirs,
        expected.loss,
        lambda: load(theirs, tmp_path / "gradients"),
    )


PATCHES = 20
SIDES = ((20, 60), (64, 64), (100, 20), (8, 200))


@pytest.fixture(scope="module")
def naflex(tmp_path_factory):
    """Their model for any aspect ratio, their image processor, and the folder of both."""
    folder, theirs = tmp_path_factory.mktemp("naflex"), made("SigLIP 2, NaFlex")
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=PATCHES)
    for each in (theirs, processor):
        each.save_pretrained(folder)
    return theirs, processor, folder


def photos():
    """Images of several aspect ratios."""
    return [smooth(5, 4, *sides, seed=number) for number, sides in enumerate(SIDES)]


def test_images_of_any_aspect_ratio_are_packed_as_theirs(naflex):
    _, processor, folder = naflex
    found = from_pretrained(folder, max_num_patches=PATCHES).preprocessing(photos())
    expected = processor(photos(), return_tensors="np")
    np.testing.assert_array_equal(found["grids"], expected["spatial_shapes"])
    padding = expected["pixel_attention_mask"] == 0
    assert padding.any() and not found["patches"][padding].any()
    np.testing.assert_array_equal(padding.sum(axis=1), PATCHES - found["grids"].prod(axis=1))
    # They round to integers after the resize of each side.
    assert np.abs(found["patches"] - expected["pixel_values"]).max() <= 1.5 / 255 / 0.5


def test_images_of_any_aspect_ratio_in_one_batch_have_their_outputs(naflex, tmp_path):
    theirs, processor, folder = naflex
    given, ids = processor(photos(), return_tensors="pt"), inputs()[1]
    images = {"patches": given["pixel_values"].numpy(), "grids": given["spatial_shapes"].numpy()}
    model = from_pretrained(folder, kind="image_text", max_num_patches=PATCHES)
    texts = torch.from_numpy(ids).long()
    expected = theirs(input_ids=texts, **given, return_loss=True)
    assert_close(model.image_encoder(images), expected.image_embeds.detach().numpy())
    pairs, logits = numpy(model({"images": images, "ids": ids})), expected.logits_per_image.detach().numpy()
    assert_close(pairs[:, 0] @ pairs[:, 1].T, logits)

    save_weights(model, tmp_path / "ours", "huggingface")
    again = read_whole(transformers.Siglip2Model, tmp_path / "ours")
    assert_close(again(input_ids=texts, **given).logits_per_image.detach().numpy(), logits)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "ours")
    same = processor(photos(), return_tensors="pt")
    np.testing.assert_array_equal(same["pixel_values"], given["pixel_values"])
    vision = save_weights(model.image, tmp_path / "image", "huggingface").parent
    tower = transformers.Siglip2VisionModel.from_pretrained(vision).eval()
    pooled = tower(**given).pooler_output
    assert_close(pooled.detach().numpy(), numpy(model.image(images)))

    def gradients():
        theirs.save_pretrained(tmp_path / "gradients")
        return from_pretrained(tmp_path / "gradients", kind="image_text", max_num_patches=PATCHES)

    def loss():
        return model.compute_loss(y_pred=model({"images": images, "ids": ids}))

    assert_same_gradients(model, loss, theirs, expected.loss, gradients)


@pytest.mark.parametrize("name", ["SigLIP", "SigLIP, wider image tower"])
def test_the_npz_files_of_big_vision_hold_the_same_models(name, tmp_path):
    model, (images, ids) = load(made(name), tmp_path / "theirs"), inputs()
    for scan in (False, True):
        path = save_weights(model, tmp_path / f"{scan}.npz", "big_vision", scan=scan)
        with np.load(path) as arrays:
            assert {"params/t", "params/b", "params/img/embedding/kernel"} <= {*arrays}
        again = from_pretrained(path, kind="image_text")
        np.testing.assert_array_equal(
            again({"images": images, "ids": ids}), model({"images": images, "ids": ids})
        )
