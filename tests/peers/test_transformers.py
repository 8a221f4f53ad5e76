"""transformers' models and ours compute the same from the same files, in both directions."""

import inspect
import json
import re

import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import assert_same_stages, channels_first, images_of, randomized, read_whole
from peers.transformers_inputs import naflex_inputs, smooth
from PIL import Image
from reference.comparing import assert_close

from keras_vit import from_pretrained, save_weights

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
DINOV2 = {"mlp_ratio": 2, "num_labels": 5}
DINOV3 = {"num_register_tokens": 4}
BEIT = {"use_relative_position_bias": True}
MAE = {
    **{"mask_ratio": 0.0, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1},
    **{"decoder_num_attention_heads": 2, "decoder_intermediate_size": 20},
}
TEXT = {
    **{name: SIZES[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size")},
    **{"num_hidden_layers": 1, "vocab_size": 50, "max_position_embeddings": 7},
}
TOWERS = {"text_config": TEXT, "vision_config": SIZES}
NAFLEX = {**{name: size for name, size in SIZES.items() if name != "image_size"}, "num_patches": 16}
NAMES = {0: "cat", 1: "dog", 2: "fish, any", 3: "bird", 4: "LABEL_4"}
# class, options besides SIZES
MODELS = {
    "ViTModel": ("ViTModel", {}),
    "ViTModel, no pooler": ("ViTModel", {}),
    "ViT, gelu": ("ViTForImageClassification", {"num_labels": 5}),
    "ViT, tanh": ("ViTForImageClassification", {"num_labels": 5, "hidden_act": "gelu_pytorch_tanh"}),
    "ViT, quick": ("ViTForImageClassification", {"num_labels": 5, "hidden_act": "quick_gelu"}),
    "ViT, no biases": ("ViTForImageClassification", {"num_labels": 5, "qkv_bias": False}),
    "ViT, epsilon": ("ViTForImageClassification", {"num_labels": 5, "layer_norm_eps": 0.01}),
    "ViT, rectangle": ("ViTForImageClassification", {"num_labels": 5, "image_size": (16, 40)}),
    "ViT, gray": ("ViTForImageClassification", {"num_labels": 5, "num_channels": 1}),
    "ViT, names": ("ViTForImageClassification", {"id2label": NAMES}),
    "DeiTModel": ("DeiTModel", {}),
    "DeiT": ("DeiTForImageClassification", {"num_labels": 5}),
    "DeiT, teacher": ("DeiTForImageClassificationWithTeacher", {"num_labels": 5}),
    "DeiT, rectangle": ("DeiTForImageClassificationWithTeacher", {"num_labels": 5, "image_size": (40, 16)}),
    "I-JEPA model": ("IJepaModel", {}),
    "I-JEPA": ("IJepaForImageClassification", {"num_labels": 5, "layer_norm_eps": 1e-6}),
    "DINOv2 model": ("Dinov2Model", {"mlp_ratio": 2}),
    "DINOv2": ("Dinov2ForImageClassification", DINOV2),
    "DINOv2, gated": ("Dinov2Model", {"mlp_ratio": 4, "use_swiglu_ffn": True}),
    "DINOv2, no biases": ("Dinov2Model", {"mlp_ratio": 1, "qkv_bias": False}),
    "DINOv2, border": ("Dinov2Model", {"mlp_ratio": 2, "image_size": 37}),
    "registers model": ("Dinov2WithRegistersModel", {"mlp_ratio": 2, "num_register_tokens": 3}),
    "registers": ("Dinov2WithRegistersForImageClassification", DINOV2),
    "registers, gated": ("Dinov2WithRegistersForImageClassification", {**DINOV2, "use_swiglu_ffn": True}),
    "DINOv3": ("DINOv3ViTModel", DINOV3),
    "DINOv3, gated": ("DINOv3ViTModel", {**DINOV3, "use_gated_mlp": True, "hidden_act": "silu"}),
    "DINOv3, rectangle": ("DINOv3ViTModel", {**DINOV3, "image_size": (16, 40), "rope_theta": 30.0}),
    "DINOv3, key biases": ("DINOv3ViTModel", {"key_bias": True}),
    "DINOv3, no biases": (
        "DINOv3ViTModel",
        dict.fromkeys(("query_bias", "value_bias", "proj_bias", "mlp_bias"), False),
    ),
    "BEiT": ("BeitForImageClassification", {**BEIT, "num_labels": 5}),
    "BEiT, token": ("BeitForImageClassification", {**BEIT, "num_labels": 5, "use_mean_pooling": False}),
    "BEiT, no scale": ("BeitModel", {**BEIT, "layer_scale_init_value": 0.0}),
    **{
        f"DINOv3, no {name}": ("DINOv3ViTModel", {name: False})
        for name in ("query_bias", "value_bias", "proj_bias", "mlp_bias")
    },
    "SigLIP": ("SiglipVisionModel", {}),
    "SigLIP, border": ("SiglipVisionModel", {"image_size": 37, "hidden_act": "gelu"}),
    "CLIP": ("CLIPVisionModel", {}),
    "CLIP, gelu": ("CLIPVisionModel", {"hidden_act": "gelu", "layer_norm_eps": 1e-6}),
    "CLIP, projection": ("CLIPVisionModelWithProjection", {"projection_dim": 6}),
}
ARGUMENTS = {"ViTModel, no pooler": {"add_pooling_layer": False}}  # of the class
# Models that are written as another class, and that class.
READ = {
    "MSN model": ("ViTMSNModel", {}, "ViTModel"),
    "MSN": ("ViTMSNForImageClassification", {"num_labels": 5}, "ViTForImageClassification"),
    "MAE": ("ViTMAEModel", {"mask_ratio": 0.0}, "ViTModel"),
    "MAE, decoder": ("ViTMAEForPreTraining", MAE, "ViTModel"),
    "SigLIP, no head": ("SiglipVisionModel", {"vision_use_head": False}, "IJepaModel"),
    "SigLIP, two towers": ("SiglipModel", TOWERS, "SiglipVisionModel"),
    "SigLIP, classifier": (
        "SiglipForImageClassification",
        {**TOWERS, "num_labels": 5},
        "IJepaForImageClassification",
    ),
    "CLIP, two towers": ("CLIPModel", {**TOWERS, "projection_dim": 6}, "CLIPVisionModelWithProjection"),
    "SigLIP 2": ("Siglip2VisionModel", NAFLEX, "SiglipVisionModel"),
    "SigLIP 2, no head": ("Siglip2VisionModel", {**NAFLEX, "vision_use_head": False}, "IJepaModel"),
    "SigLIP 2, two towers": ("Siglip2Model", {**TOWERS, "vision_config": NAFLEX}, "SiglipVisionModel"),
    "SigLIP 2, classifier": (
        "Siglip2ForImageClassification",
        {**TOWERS, "vision_config": {**NAFLEX, "num_channels": 1}, "num_labels": 5},
        "IJepaForImageClassification",
    ),
}
UNWRITTEN = {  # by no type, for this reason
    "CLIP, classifier": ("CLIPForImageClassification", {**TOWERS, "num_labels": 5}, "final_norm=False"),
    "DiT": (
        "BeitForImageClassification",
        {"use_absolute_position_embeddings": True, "use_mask_token": True, "num_labels": 5},
        "position_embedding='learned'",
    ),
}
MODELS |= {**READ, **UNWRITTEN}


def made(name):
    kind, changes, *_ = MODELS[name]
    kind = getattr(transformers, kind)
    sizes = {} if "vision_config" in changes or "num_patches" in changes else SIZES
    if "mlp_ratio" in changes:
        sizes = {size: value for size, value in sizes.items() if size != "intermediate_size"}
    # transformers changes the dicts.
    config = kind.config_class(**json.loads(json.dumps({**sizes, **changes})))
    return randomized(kind(config, **ARGUMENTS.get(name, {})))


def images_for(theirs):
    config = getattr(theirs.config, "vision_config", theirs.config)
    size = config.image_size if hasattr(config, "image_size") else 32
    return images_of(*(size if isinstance(size, tuple | list) else (size, size)), config.num_channels)


def stages_of(theirs, images):
    """The outputs of the model by the names of our stages."""
    kind = type(theirs).__name__
    inputs = naflex_inputs(images) if "iglip2" in kind else {"pixel_values": channels_first(images)}
    if "MAE" in kind:  # Sorted by this, the patches stay in their order.
        patches = images.shape[1] // 8 * (images.shape[2] // 8)
        inputs["noise"] = torch.arange(float(patches)).repeat(len(images), 1)
    with torch.no_grad():
        parts = [part for name, part in theirs.named_children() if name != "text_model"]
        base = next((part for part in parts if hasattr(part, "embeddings")), theirs)
        if images.shape[1:3] != images_for(theirs).shape[1:3]:
            resizes = "interpolate_pos_encoding" in inspect.signature(base.forward).parameters
            inputs |= {"interpolate_pos_encoding": True} if resizes else {}
        computed = base(**inputs)
        stages = {"tokens": computed.last_hidden_state}
        if theirs is base or kind in ("SiglipModel", "Siglip2Model"):
            if computed.get("pooler_output") is not None:
                stages["representation"] = computed.pooler_output
        elif hasattr(theirs, "visual_projection"):
            stages["logits"] = theirs.visual_projection(computed.pooler_output)
        elif "noise" not in inputs:
            stages["logits"] = theirs(**inputs).logits
        return stages


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_and_written_with_equal_outputs(name, tmp_path):
    """As the class that was read, with all arrays and the same ones, or as the class of its row in READ."""
    theirs = made(name)
    theirs.save_pretrained(tmp_path / "theirs")
    model, images = from_pretrained(tmp_path / "theirs"), images_for(theirs)
    expected = stages_of(theirs, images)
    assert_same_stages(model, images, expected)
    if name in UNWRITTEN:
        with pytest.raises(ValueError, match=UNWRITTEN[name][2]):
            save_weights(model, tmp_path / "ours", "huggingface")
        return
    save_weights(model, tmp_path / "ours", "huggingface")
    if name in READ:
        again = getattr(transformers, READ[name][2]).from_pretrained(tmp_path / "ours").eval()
    else:
        again = read_whole(type(theirs), tmp_path / "ours", **ARGUMENTS.get(name, {}))
        # The position of the class token is added to it.
        changed = "mask_token|cls_token|position_embeddings" if "registers" in name else "mask_token"
        for key, array in theirs.state_dict().items():
            if not re.search(changed, key):
                torch.testing.assert_close(again.state_dict()[key], array, rtol=0, atol=0)
    computed = stages_of(again, images)
    assert name in READ or computed.keys() == expected.keys()
    for stage, array in expected.items():  # their two names of the tanh form round differently
        assert_close(computed[stage].numpy(), array)


@pytest.mark.parametrize("image_size", [(224, 224), (336, 448), (None, None)], ids=str)
def test_dinov3_of_size_s_computes_the_same(image_size, tmp_path):
    torch.manual_seed(1)
    theirs = transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(num_register_tokens=4)).eval()
    theirs.save_pretrained(tmp_path)
    images = images_of(*(image_size if image_size[0] else (160, 272)), batch=1)
    ours = from_pretrained(tmp_path, image_size=image_size)
    assert_same_stages(ours, images, stages_of(theirs, images))


IN_MEMORY = ("ViTModel", "DeiT, teacher", "MSN", "DINOv2, gated", "DINOv3, gated", "SigLIP", "CLIP")


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_state_dict_in_memory_names_is_loaded(name, tmp_path):
    """transformers 5 has other names in memory, and so in a state dict saved with torch."""
    theirs = made(name)
    theirs.config.architectures = [type(theirs).__name__]
    theirs.config.save_pretrained(tmp_path)
    state = theirs.state_dict()
    torch.save({"state_dict": state}, tmp_path / "pytorch_model.bin")
    images = images_for(theirs)
    assert_same_stages(from_pretrained(tmp_path), images, stages_of(theirs, images))


SQUARE = {"height": 32, "width": 32}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS = {
    "ViT's": ("ViTImageProcessor", {"size": SQUARE}),
    "ViT's, other mean": ("ViTImageProcessor", {"size": SQUARE, **IMAGENET, "resample": 3}),
    "DeiT's": ("DeiTImageProcessor", {"size": {"shortest_edge": 36}, "crop_size": SQUARE, "resample": 3}),
    "DINOv2's": ("BitImageProcessor", {"size": {"shortest_edge": 36}, "crop_size": SQUARE, **IMAGENET}),
    "DINOv3's": ("DINOv3ViTImageProcessor", {"size": SQUARE}),
    "SigLIP's": ("SiglipImageProcessor", {"size": SQUARE}),
    "CLIP's": ("CLIPImageProcessor", {"size": {"shortest_edge": 36}, "crop_size": SQUARE}),
}
PROCESSED = {"DINOv2's": "DINOv2 model", "DINOv3's": "DINOv3", "SigLIP's": "SigLIP", "CLIP's": "CLIP"}


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_image_is_preprocessed_as_transformers_does(name, tmp_path):
    """By ours from their preprocessor_config.json, and by them from ours."""
    kind, options = PROCESSORS[name]
    theirs = getattr(transformers, kind)(**options)
    made(PROCESSED.get(name, "ViT, gelu")).save_pretrained(tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_pretrained(tmp_path / "theirs")
    save_weights(ours, tmp_path / "ours", "huggingface")
    again = getattr(transformers, kind).from_pretrained(tmp_path / "ours")

    image = smooth(12, 9, 119, 90)  # since theirs are cut off at the bounds of a byte
    computed = np.asarray(ours.preprocessing(image[np.newaxis]))[0]
    for processor in (theirs, again):
        expected = processor(Image.fromarray(image), return_tensors="np")["pixel_values"][0]
        expected = expected.transpose(1, 2, 0)
        assert computed.shape == expected.shape
        # They round to integers after the resize of each side.
        bound = 1.5 / 255 / min(theirs.image_std)
        assert np.abs(computed - expected).max() <= bound


def test_a_square_image_is_preprocessed_as_for_siglip_2_of_any_size(tmp_path):
    made("SigLIP 2").save_pretrained(tmp_path)
    theirs = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    theirs.save_pretrained(tmp_path)
    image = smooth(9, 9, 90, 90)
    computed = from_pretrained(tmp_path).preprocessing(image[np.newaxis])
    expected = theirs(Image.fromarray(image), return_tensors="np")["pixel_values"]
    assert np.abs(naflex_inputs(computed)["pixel_values"].numpy() - expected).max() <= 1.5 / 255 / 0.5
