"""The folder that is pushed to Hugging Face, loaded by timm and transformers themselves."""

import json

import pytest
from peers.packages import timm, torch, transformers
from peers.torch_models import channels_first
from reference.comparing import assert_close
from reference.small import images_for, small

from keras_vit.weights.push import write_repository

NAMES = ("ant", "bee", "cat", "dog", "eel")
MODELS = [  # that timm's configuration can express
    {"class_names": NAMES, "activation": "gelu_erf"},
    {"pooling": "gap", "norm_after_pooling": True, "mlp_dim": 49, "image_size": (16, 32)},
    {"num_registers": 4, "prefix_positions": False, "layer_scale": 0.1, "qkv_bias": False},
    {"pre_norm": True, "norm_epsilon": 1e-5, "activation": "quick_gelu", "patch_size": (8, 4)},
    {"pooling": "map", "num_classes": None, "in_channels": 1},
]


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_timm_builds_and_loads_what_is_pushed_for_it(options, tmp_path):
    model = small(**options)
    write_repository(model, tmp_path / "it", "me/it", "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'it'}", pretrained=True).eval()
    x = images_for(model)
    with torch.no_grad():
        assert_close(model(x), theirs(channels_first(x)).numpy())
    assert tuple(theirs.pretrained_cfg.get("label_names") or ()) == (model.class_names or ())
    prepared = timm.data.resolve_model_data_config(theirs)
    assert prepared["input_size"] == (model.in_channels, *model.image_size)
    assert tuple(prepared["mean"]) == model.preprocessing.mean


def test_transformers_loads_what_is_pushed_for_it(tmp_path):
    model = small(class_names=NAMES, norm_epsilon=1e-5)
    write_repository(model, tmp_path / "it", "me/it", "huggingface")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "it").eval()
    x = images_for(model)
    with torch.no_grad():
        assert_close(model(x), theirs(channels_first(x)).logits.numpy())
    assert tuple(theirs.config.id2label.values()) == NAMES
    theirs.save_pretrained(tmp_path / "again")  # keeps unknown entries
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["keras_vit"] == {"antialias": False}
