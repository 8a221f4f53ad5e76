import io
import json
import math
import zipfile

import h5py
import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state
from keras.src.saving import serialization_lib
from reference.comparing import arrays, numpy
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit import from_pretrained
from keras_vit.layers import EncoderBlock
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
    with pytest.raises(ValueError, match="other.keras' holds a Sequential; expected a VisionTransformer"):
        read_model(path)
    with pytest.raises(ValueError, match="expected a VisionTransformer"):
        from_pretrained(path)


@pytest.mark.parametrize("content", [b"", b"no archive", None], ids=["empty", "text", "half"])
def test_a_damaged_file_is_refused_in_a_line(content, tmp_path):
    path = tmp_path / "model.keras"
    if content is None:
        _, path = saved(tmp_path)
        content = path.read_bytes()
        content = content[: len(content) // 2]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a readable .keras file: ") as refused:
        from_pretrained(path)
    assert len(str(refused.value).splitlines()) == 1


# Hostile files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"num_classes": None}, {"num_layers": 1}])
def test_weights_of_layers_that_the_configuration_lacks_are_refused(changes, tmp_path):
    _, path = saved(tmp_path, num_layers=2)
    with_arguments(path, **changes)
    with pytest.raises(ValueError, match=r"not a readable .keras file: its layers hold \d+ arrays; those"):
        read_model(path)


def rewritten(path, **changes):
    """The same file with other entries; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()} | changes
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def with_arguments(path, **changes):
    """The same file with other arguments of the model."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    config["config"].update(changes)
    return rewritten(path, **{"config.json": json.dumps(config)})


HOSTILE = {
    "a list": "[]",
    "null": "null",
    "a number": "1" * 400,
    "no class": "{}",
    "a class of null": '{"registered_name": null, "class_name": null, "config": null}',
    "a class that is a list": '{"registered_name": [], "config": {}}',
    "no arguments": '{"registered_name": "keras_vit>VisionTransformer", "config": null}',
    "arguments in a list": '{"registered_name": "keras_vit>VisionTransformer", "config": []}',
    "deep": "[" * 100_000,
    "deep arguments": '{"registered_name": "keras_vit>VisionTransformer", "config": ' + '{"a":' * 100_000,
    "another class": '{"registered_name": "Sequential", "class_name": "Sequential", "config": {}}',
    "a function": '{"registered_name": "function", "class_name": "function", "config": "exec"}',
    "long": " " * (1 << 24) + "{}",
    "no configuration": None,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_configuration_is_refused_in_one_line(kind, tmp_path):
    path = rewritten(saved(tmp_path)[1], **{"config.json": HOSTILE[kind]})
    message = "model.keras' (is not a readable .keras file: .|holds a )"
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(path)
    assert type(error.value) is ValueError and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 2**20},
        {"num_layers": 10**9},
        {"mlp_dim": 10**400},
        {"num_classes": 2**40},
        {"representation_size": 2**40},
        {"num_registers": 2**40},
        {"position_grid": [2**20, 2**20]},
        {"patch_size": 2**20},
        {"resnet": [2**40], "resnet_width": 64},
    ],
    ids=str,
)
def test_a_model_much_larger_than_its_file_is_refused_before_it_is_built(changes, tmp_path):
    path = with_arguments(saved(tmp_path)[1], **changes)
    with pytest.raises(ValueError, match=r"its \S+ bytes declare \S+; at most 1,073,741,824 are accepted"):
        read_model(path)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e-320, 10**400], ids=["nan", "inf", "tiny", "huge"])
@pytest.mark.parametrize("name", ["norm_epsilon", "layer_scale"])
def test_a_number_that_float32_does_not_hold_is_refused(name, value, tmp_path):
    path = with_arguments(saved(tmp_path)[1], **{name: value})
    with pytest.raises(ValueError, match=f"{name} must be a number"):
        read_model(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_weights_that_declare_more_than_they_store_are_refused(method, tmp_path):
    """HDF5 fills what is not stored: some kilobytes would take 4 GiB, which Keras accepts."""
    _, path = saved(tmp_path, num_classes=2, representation_size=None)
    with zipfile.ZipFile(path) as archive:
        config, weights = archive.read("config.json"), io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights, "r+") as file:
        file.create_dataset("layers/more", (2**30,), "float32", chunks=(2**20,))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", weights.getvalue())
    with pytest.raises(ValueError, match=r"bytes declare 4,29\S+; at most 1,073,741,824 are accepted"):
        read_model(path)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
@pytest.mark.parametrize("link", [False, True])
def test_weights_that_name_another_file_are_refused(link, tmp_path):
    """HDF5's external storage reads any file of the machine, as Keras before 3.13.2 did."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(96)))
    _, path = saved(tmp_path, num_classes=2, representation_size=None)
    with zipfile.ZipFile(path) as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights, "r+") as file:
        found = []
        file.visititems(lambda name, x: found.append(name) if getattr(x, "shape", 0) == (12, 2) else None)
        del file[found[0]]
        if link:
            file[found[0]] = h5py.ExternalLink(secret, "x")
        else:
            file.create_dataset(found[0], (12, 2), "float32", external=[(str(secret), 0, 96)])
    rewritten(path, **{"model.weights.h5": weights.getvalue()})
    with pytest.raises(ValueError, match="not a readable .keras file: A total of 1 objects could not"):
        read_model(path)


def test_remat_is_kept(tmp_path):
    model = small()
    for layer in model.layers:
        if isinstance(layer, EncoderBlock):
            layer.remat = True
    model.save(tmp_path / "model.keras")
    again = read_model(tmp_path / "model.keras")
    assert [again.get_layer(f"encoder_block_{i}").remat for i in range(2)] == [True, True]
    assert not small().get_layer("encoder_block_0").remat


def test_files_are_read_in_safe_mode_whatever_the_process_has_set(tmp_path, monkeypatch):
    _, path = saved(tmp_path)
    load, modes = keras.saving.load_model, []

    def recorded(*arguments, **options):
        modes.append((serialization_lib.in_safe_mode(), options["safe_mode"]))
        return load(*arguments, **options)

    monkeypatch.setattr(keras.saving, "load_model", recorded)
    before = serialization_lib.in_safe_mode()
    keras.config.enable_unsafe_deserialization()
    try:
        for read in (read_model, from_pretrained):
            read(path)
        assert modes == [(True, True)] * 2
        assert serialization_lib.in_safe_mode() is False  # as the process has set it
    finally:
        global_state.set_global_attribute("safe_mode_saving", before)
