import keras
import numpy as np
import pytest
from reference.comparing import arrays, numpy
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import read_checkpoint, read_model

MODELS = {
    "plain": {},
    "pre_logits": {"representation_size": 8, "layer_scale": 0.1},
    "distilled": {"distillation": True},
    "map": {"pooling": "map", "position_embedding": "sincos2d"},
    "gap": {"pooling": "gap", "class_token": False, "activation": "gelu_erf", "norm_epsilon": 1e-5},
    "no head": {"num_classes": None},
    "hybrid": HYBRID,
    "no transformer": {**HYBRID, **NO_TRANSFORMER},
    "named": {"class_names": ["a", "b", "c", "d", "e"]},
}


def saved(tmp_path, **options):
    model = small(**options)
    model.save(tmp_path / "model.keras")
    return model, tmp_path / "model.keras"


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_every_model_comes_back_as_it_was(options, tmp_path):
    model, path = saved(tmp_path, **options)
    again = from_pretrained(path)
    assert {**again.get_config(), "name": ""} == {**model.get_config(), "name": ""}
    found, expected = arrays(again), arrays(model)
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    images = images_for(model)
    for one, other in zip(keras.tree.flatten(again(images)), keras.tree.flatten(model(images)), strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


def test_positions_are_resized_as_those_of_other_files(tmp_path):
    model, path = saved(tmp_path)
    again = from_pretrained(path, image_size=32)
    table, stored = (arrays(m)["position_embedding/table"][0] for m in (again, model))
    assert table.shape == (1 + 16, 12)
    np.testing.assert_array_equal(table[0], stored[0])
    corners = table[1:].reshape(4, 4, 12)[[0, 0, 3, 3], [0, 3, 0, 3]]
    np.testing.assert_allclose(corners, stored[1:], rtol=1e-6)  # corners stay on corners


@pytest.mark.parametrize("classes", [3, 0])
def test_other_classes_reset_the_head_alone(classes, tmp_path):
    model, path = saved(tmp_path, class_names=["a", "b", "c", "d", "e"])
    again = from_pretrained(path, num_classes=classes)
    assert again.num_classes == (classes or None) and not again.class_names
    found, expected = arrays(again), arrays(model)
    if classes:
        assert found["head/kernel"].shape == (12, 3) and not found["head/kernel"].any()
    for name in {*found} - {"head/kernel", "head/bias"}:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_compiled_model_in_mixed_precision_is_read_without_its_optimizer(tmp_path):
    model = small(dtype="mixed_bfloat16", dropout_rate=0.1)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    checkpoint = read_checkpoint(tmp_path / "model.keras")
    assert {*checkpoint.arrays} == {*arrays(model)}
    assert {array.dtype.name for array in checkpoint.arrays.values()} == {"float32"}


def test_a_file_that_tells_itself_contradicts_the_variant(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(ValueError, match="model.keras: variant Ti/16 says .*, it has "):
        from_pretrained(path, variant="Ti/16")


def test_what_is_no_model_of_ours_is_refused(tmp_path):
    path = tmp_path / "other.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
    with pytest.raises(ValueError, match="other.keras' holds a Sequential; wanted a VisionTransformer"):
        read_model(path)
    with pytest.raises(ValueError, match="wanted a VisionTransformer"):
        from_pretrained(path)


@pytest.mark.parametrize("content", [b"", b"no archive", None], ids=["empty", "text", "half"])
def test_a_damaged_file_is_refused_in_a_line(content, tmp_path):
    path = tmp_path / "model.keras"
    if content is None:
        _, path = saved(tmp_path)
        content = path.read_bytes()
        content = content[: len(content) // 2]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no .keras file that can be read: ") as refused:
        from_pretrained(path)
    assert len(str(refused.value).splitlines()) == 1
