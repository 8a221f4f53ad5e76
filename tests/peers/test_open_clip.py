"""open_clip's models with two towers and ours: embeddings, logits, losses, gradients and files."""

import json

import numpy as np
import pytest
from made import tokenizers
from peers.packages import open_clip, torch
from peers.torch_models import assert_same_gradients, channels_first, images_of, randomized
from peers.transformers_inputs import smooth
from PIL import Image
from reference.comparing import assert_close, numpy
from safetensors.torch import save_file

from keras_vit import (
    ImageTextModel,
    TextPreprocessing,
    TextTransformer,
    VisionTransformer,
    from_pretrained,
    save_weights,
)
from keras_vit.variants import parse_variant

TEXT = {"context_length": 7, "vocab_size": 21, "width": 24, "heads": 3, "layers": 3}
VISION = {"image_size": 32, "patch_size": 8, "width": 36, "layers": 2, "head_width": 12, "mlp_ratio": 2.5}
SIGLIP_TEXT = {
    **{**TEXT, "no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}},
    "act_kwargs": {"approximate": "tanh"},
}
SIGLIP_IMAGE = {"timm_model_pretrained": False, "timm_pool": "map", "timm_proj": "none"}
MODELS = {
    "CLIP, quick GELU": {"embed_dim": 10, "quick_gelu": True, "vision_cfg": VISION, "text_cfg": TEXT},
    "CLIP, end token, under text": {
        **{"embed_dim": 10, "vision_cfg": VISION, "custom_text": True, "init_logit_bias": -10},
        "text_cfg": {**TEXT, "pool_type": "eos", "eos_id": 19, "mlp_ratio": 2.0},
    },
    "SigLIP": {
        **{"embed_dim": 96, "custom_text": True, "init_logit_bias": -10, "text_cfg": SIGLIP_TEXT},
        "vision_cfg": {**SIGLIP_IMAGE, "image_size": 160, "timm_model_name": "test_vit3"},
    },
    "timm, linear layer": {
        **{"embed_dim": 10, "custom_text": True, "text_cfg": TEXT},
        "vision_cfg": {
            **SIGLIP_IMAGE,
            **{"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "token"},
            "timm_proj": "linear",
        },
    },
}
HEADS = {"SigLIP": {"num_heads": 3}, "timm, linear layer": {"num_heads": 2}}  # timm's constructors know them
WRITTEN = ("CLIP, quick GELU", "CLIP, end token, under text")
PAIRS = 4


def made(name, folder):
    """(open_clip's model with random weights, ours)."""
    folder.mkdir()
    config = json.loads(json.dumps(MODELS[name]))
    images = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "resize_mode": "squash"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": images}))
    # timm's small towers are deep: with larger weights, rounding errors grow beyond the bound.
    theirs = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    theirs = randomized(theirs, scale=0.1 if "timm_model_name" in config["vision_cfg"] else 0.3)
    with torch.no_grad():
        theirs.logit_scale.fill_(1.5)
    return theirs, load(theirs, name, folder)


def load(theirs, name, folder):
    """Our model with the parameters of theirs, in the folder of its configuration."""
    save_file(theirs.state_dict(), folder / "open_clip_model.safetensors")
    return from_pretrained(folder, kind="image_text", **HEADS.get(name, {}))


def inputs(model):
    ids = np.random.default_rng(1).integers(3, 19, (PAIRS, 7))
    ids[range(PAIRS), [2, 6, 4, 3]] = 19  # the end of a text
    # Of different colors: the gradient of softmax is a difference of images, and would otherwise cancel out.
    colors = np.random.default_rng(3).uniform(-2, 2, (PAIRS, 1, 1, 3)).astype("float32")
    return 0.3 * images_of(*model.image_size, batch=PAIRS) + colors, ids.astype("int32")


def theirs_of(theirs, images, ids):
    """(image embeddings, text embeddings, logits)."""
    images, ids = channels_first(images), torch.from_numpy(ids).long()
    with torch.no_grad():
        encoded = theirs.encode_image(images, normalize=True), theirs.encode_text(ids, normalize=True)
        return [each.numpy() for each in (*encoded, theirs.get_logits(images, ids)[0])]


def test_an_image_is_preprocessed_as_open_clip_does(tmp_path):
    """By ours from their configuration, and by them from ours; torchvision rounds 5.5 to 6."""
    name = "CLIP, quick GELU"
    theirs, _ = made(name, tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "open_clip_config.json").read_text())
    config["preprocess_cfg"]["resize_mode"] = "shortest"
    (tmp_path / "theirs" / "open_clip_config.json").write_text(json.dumps(config))
    ours = load(theirs, name, tmp_path / "theirs")
    save_weights(ours, tmp_path / "ours", "open_clip")

    image = smooth(9, 12, 90, 121)  # since theirs are cut off at the bounds of a byte; 32×43 before the crop
    computed = ours.preprocessing(image)[0]
    for folder in ("theirs", "ours"):
        _, transform = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / folder}")
        expected = transform(Image.fromarray(image)).numpy().transpose(1, 2, 0)
        # Pillow rounds to integers after the resize of each side.
        assert np.abs(computed - expected).max() <= 1.5 / 255 / min(ours.preprocessing.std)


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_logits_losses_and_gradients_are_theirs(name, tmp_path):
    theirs, model = made(name, tmp_path / "theirs")
    images, ids = inputs(model)
    by_image, by_text, logits = theirs_of(theirs, images, ids)
    assert_close(model.image_encoder(images), by_image)
    assert_close(model.text_encoder(ids), by_text)
    assert_close(model.similarity(by_image, by_text), logits)
    preprocessing = model.preprocessing
    assert (preprocessing.resize, preprocessing.interpolation) == ("squash", "bicubic")
    assert (preprocessing.mean, preprocessing.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))

    criterion = open_clip.loss.SigLipLoss() if model.objective == "sigmoid" else open_clip.ClipLoss()
    loss = criterion(*theirs(channels_first(images), torch.from_numpy(ids).long()))
    assert_same_gradients(
        model,
        lambda: model.compute_loss(y_pred=model({"images": images, "ids": ids})),
        theirs,
        loss,
        lambda: load(theirs, name, tmp_path / "theirs"),
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_a_model_of_ours_is_loaded_by_them(name, tmp_path):
    theirs, model = made(name, tmp_path / "theirs")
    save_weights(model, tmp_path / "ours", "open_clip")
    again = open_clip.create_model(f"local-dir:{tmp_path / 'ours'}").eval()
    images, ids = inputs(model)
    for computed, expected in zip(theirs_of(again, images, ids), theirs_of(theirs, images, ids)):
        assert_close(computed, expected)
    assert again.visual.preprocess_cfg["resize_mode"] == "squash"
    pairs = from_pretrained(tmp_path / "ours", kind="image_text")({"images": images, "ids": ids})
    assert_close(numpy(pairs), numpy(model({"images": images, "ids": ids})))


def test_a_siglip_of_published_sizes_is_loaded_by_them(tmp_path):
    sizes = {**parse_variant("B/32"), "class_token": False, "pooling": "map", "activation": "gelu_tanh"}
    text = {"vocabulary_size": 21, "length": 7, "hidden_size": 24, "num_layers": 2, "mlp_dim": 40}
    text = TextTransformer(**text, num_heads=3)
    model = ImageTextModel(VisionTransformer(256, **sizes), text, text_projection=768, projection_bias=True)
    save_weights(model, tmp_path / "ours", "open_clip")
    theirs = open_clip.create_model(f"local-dir:{tmp_path / 'ours'}").eval()
    images, ids = inputs(model)
    by_image, by_text, _ = theirs_of(theirs, images, ids)
    assert_close(model.image_encoder(images), by_image)
    assert_close(model.text_encoder(ids), by_text)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_the_tokenizer_is_saved_for_them(family, tmp_path):
    (tmp_path / "files").mkdir()
    spiece = {"spiece.model": tokenizers.sentencepiece_model()}
    for name, content in (tokenizers.clip_files() if family == "clip" else spiece).items():
        (tmp_path / "files" / name).write_bytes(content)
    _, model = made("CLIP, quick GELU", tmp_path / "theirs")
    model.text_preprocessing = TextPreprocessing.from_files(tmp_path / "files", family, length=7)
    save_weights(model, tmp_path / "ours", "open_clip")
    theirs = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'ours'}")
    texts = ["a photo of a cat", "A RED CAR", "don't", "cat dog house tree bird small large blue green"]
    np.testing.assert_array_equal(theirs(texts).numpy(), model.text_preprocessing(texts))
    again = from_pretrained(tmp_path / "ours", kind="image_text").text_preprocessing
    np.testing.assert_array_equal(again(texts), model.text_preprocessing(texts))
