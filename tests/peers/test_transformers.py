"""transformers' ViT and DeiT and ours compute the same from the same files, in both directions."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; see requirements-peers.txt")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; see requirements-peers.txt"
)

from peers.torch_models import assert_same_stages, channels_first, images_of, randomised  # noqa: E402
from reference.comparing import assert_close  # noqa: E402

from keras_vit import from_pretrained, save_weights  # noqa: E402

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
NAMES = {0: "cat", 1: "dog", 2: "fish, any", 3: "bird", 4: "LABEL_4"}
# class, options besides SIZES, arguments of the class
MODELS = {
    "ViTModel": ("ViTModel", {}, {}),
    "ViTModel, no pooler": ("ViTModel", {}, {"add_pooling_layer": False}),
    "ViT, gelu": ("ViTForImageClassification", {"num_labels": 5}, {}),
    "ViT, tanh": ("ViTForImageClassification", {"num_labels": 5, "hidden_act": "gelu_pytorch_tanh"}, {}),
    "ViT, quick": ("ViTForImageClassification", {"num_labels": 5, "hidden_act": "quick_gelu"}, {}),
    "ViT, no biases": ("ViTForImageClassification", {"num_labels": 5, "qkv_bias": False}, {}),
    "ViT, epsilon": ("ViTForImageClassification", {"num_labels": 5, "layer_norm_eps": 0.01}, {}),
    "ViT, rectangle": ("ViTForImageClassification", {"num_labels": 5, "image_size": (16, 40)}, {}),
    "ViT, grey": ("ViTForImageClassification", {"num_labels": 5, "num_channels": 1}, {}),
    "ViT, names": ("ViTForImageClassification", {"id2label": NAMES}, {}),
    "DeiTModel": ("DeiTModel", {}, {}),
    "DeiT": ("DeiTForImageClassification", {"num_labels": 5}, {}),
    "DeiT, teacher": ("DeiTForImageClassificationWithTeacher", {"num_labels": 5}, {}),
    "DeiT, rectangle": (
        "DeiTForImageClassificationWithTeacher",
        {"num_labels": 5, "image_size": (40, 16)},
        {},
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def made(name):
    kind, changes, arguments = MODELS[name]
    config = getattr(transformers, kind.split("Model")[0].split("For")[0] + "Config")(**{**SIZES, **changes})
    return randomised(getattr(transformers, kind)(config, **arguments))


def images_for(theirs):
    size = theirs.config.image_size
    return images_of(*(size if isinstance(size, tuple | list) else (size, size)), theirs.config.num_channels)


def stages_of(theirs, images):
    """The outputs of the model by the names of our stages."""
    with torch.no_grad():
        computed = theirs(pixel_values=channels_first(images), output_hidden_states=True)
        if "logits" in computed:
            base = theirs.vit if hasattr(theirs, "vit") else theirs.deit
            return {"tokens": base(channels_first(images)).last_hidden_state, "logits": computed.logits}
        stages = {"tokens": computed.last_hidden_state}
        if computed.pooler_output is not None:
            stages["representation"] = computed.pooler_output
        return stages


@every_model
def test_a_model_of_theirs_is_loaded(name, tmp_path, record_property):
    theirs = made(name)
    theirs.save_pretrained(tmp_path)
    images = images_for(theirs)
    assert_same_stages(from_pretrained(tmp_path), images, stages_of(theirs, images), record_property)


@every_model
def test_a_model_of_ours_is_loaded_by_them(name, tmp_path):
    """No array is missing or unused."""
    theirs = made(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs")
    save_weights(ours, tmp_path / "ours", "huggingface")
    again, report = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, **MODELS[name][2]
    )
    assert not {what: keys for what, keys in report.items() if keys}
    for key, array in theirs.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], array, rtol=0, atol=0)
    images = images_for(theirs)
    expected = stages_of(theirs, images)
    computed = stages_of(again.eval(), images)
    assert computed.keys() == expected.keys()
    for stage, array in computed.items():  # their two names of the tanh form round differently
        assert_close(array.numpy(), expected[stage])


@pytest.mark.parametrize("name", ["ViTModel", "DeiT, teacher"])
def test_a_state_dict_in_memory_names_is_loaded(name, tmp_path):
    """transformers 5 has other names in memory, and so in a state dict saved with torch."""
    theirs = made(name)
    theirs.config.architectures = [type(theirs).__name__]
    theirs.config.save_pretrained(tmp_path)
    state = theirs.state_dict()
    torch.save({"state_dict": state}, tmp_path / "pytorch_model.bin")
    images = images_for(theirs)
    assert_same_stages(from_pretrained(tmp_path), images, stages_of(theirs, images))


def test_a_mask_token_is_refused_by_name(tmp_path):
    """It belongs to masked pretraining."""
    config = transformers.ViTConfig(**SIZES)
    randomised(transformers.ViTModel(config, use_mask_token=True)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="only in file: embeddings.mask_token"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["Beit", "Dinov2"])
def test_another_kind_of_model_is_refused(kind, tmp_path):
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model; expected transformers' 'vit' or 'deit'|in no known layout"):
        from_pretrained(tmp_path)


SQUARE = {"height": 32, "width": 32}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS = {
    "ViT's": ("ViTImageProcessor", {"size": SQUARE}),
    "ViT's, other mean": ("ViTImageProcessor", {"size": SQUARE, **IMAGENET, "resample": 3}),
    "DeiT's": (
        "DeiTImageProcessor",
        {"size": {"shortest_edge": 36}, "crop_size": SQUARE, "resample": 3},
    ),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_image_is_preprocessed_as_transformers_does(name, tmp_path):
    """By ours from their preprocessor_config.json, and by them from ours."""
    from PIL import Image

    kind, options = PROCESSORS[name]
    theirs = getattr(transformers, kind)(**options)
    made("ViT, gelu").save_pretrained(tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs")
    save_weights(ours, tmp_path / "ours", "huggingface")
    again = getattr(transformers, kind).from_pretrained(tmp_path / "ours")

    rng = np.random.default_rng(0)
    small = rng.integers(
        64, 192, (12, 9, 3), "uint8"
    )  # bicubic values stay within a byte, where theirs are cut off
    image = np.asarray(Image.fromarray(small).resize((90, 120), Image.Resampling.BICUBIC))
    computed = np.asarray(ours.preprocessing(image[np.newaxis]))[0]
    for processor in (theirs, again):
        expected = processor(Image.fromarray(image), return_tensors="np")["pixel_values"][0].transpose(
            1, 2, 0
        )
        assert computed.shape == expected.shape
        # They round to integers after the resize of each side.
        bound = 1.5 / 255 / min(theirs.image_std)
        assert np.abs(computed - expected).max() <= bound
