import numpy as np
from reference.comparing import arrays, assert_same_arrays
from reference.goldens import stored
from reference.small import small
from safetensors.numpy import save_file

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.layouts import LAYOUTS

huggingface = LAYOUTS["huggingface"]


def state_dict(model):
    return huggingface.write(merged_heads(arrays(model)), model.get_config())


def assert_loads_as(model, file, folder):
    save_file(file, folder / "model.safetensors")
    loaded = from_pretrained(folder / "model.safetensors", num_heads=3)
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    assert_same_arrays(arrays(loaded), arrays(model))


def test_a_model_without_a_classifier_has_no_prefix(golden, tmp_path):
    inside = {k.removeprefix("vit."): a for k, a in stored(golden, "hf_vit").items() if k.startswith("vit.")}
    save_file(inside, tmp_path / "bare.safetensors")
    model = from_pretrained(tmp_path / "bare.safetensors", num_heads=3)
    assert (model.num_classes, model.representation_size) == (None, None)
    assert state_dict(model).keys() == inside.keys()


def test_a_pooler_is_skipped_if_there_is_a_classifier(golden):
    """ViTForImageClassification ignores it; some of its files have one."""
    file = stored(golden, "hf_vit")
    shapes = {"weight": (24, 24), "bias": 24}
    poolers = {f"vit.pooler.dense.{leaf}": np.ones(shape) for leaf, shape in shapes.items()}
    mapped = huggingface.read(file | poolers)
    assert (mapped.unknown, {*mapped.skipped}) == ([], {*poolers})
    assert mapped.arrays.keys() == mapped.keys.keys() == huggingface.read(file).arrays.keys()
    alone = {key: array for key, array in (file | poolers).items() if not key.startswith("classifier")}
    assert {*huggingface.read(alone).arrays} >= {"pre_logits/kernel", "pre_logits/bias"}


def test_a_distilled_deit_has_two_classifiers(tmp_path):
    model = small(distillation=True, activation="gelu_erf", norm_epsilon=1e-12)
    file = state_dict(model)
    assert {key for key in file if not key.startswith("deit.")} == {
        f"{name}_classifier.{leaf}" for name in ("cls", "distillation") for leaf in ("weight", "bias")
    }
    assert_loads_as(model, file, tmp_path)


def test_a_distillation_token_without_a_classifier_is_a_register(tmp_path):
    """DeiTForImageClassification has the token but one classifier."""
    model = small(num_registers=1, activation="gelu_erf", norm_epsilon=1e-12)
    file = state_dict(model)
    assert file["deit.embeddings.distillation_token"].shape == (1, 1, 12)
    assert {key for key in file if not key.startswith("deit.")} == {"classifier.weight", "classifier.bias"}
    mapped = huggingface.read(file)
    assert mapped.keys["register_tokens/token"] == "deit.embeddings.distillation_token"
    assert "distillation_token/token" not in {*mapped.arrays, *mapped.keys}
    assert_loads_as(model, file, tmp_path)
