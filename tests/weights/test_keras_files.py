import io
import json
import math
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib, serialization_lib
from made.archives import rezipped
from made.tables import by_table
from reference.comparing import arrays, randomize
from reference.small import DECODER, HEAD, SMALL, TEXT, images_for, one_block, small

from keras_vit import (
    DINO,
    ImageSegmenter,
    ImageTextModel,
    MaskedAutoencoder,
    VisionTransformer,
    from_pretrained,
)
from keras_vit.weights.array_resizing import resized_positions
from keras_vit.weights.checkpoint import read_checkpoint, read_model


def saved(tmp_path, **options):
    model = one_block(**options)
    model.save(tmp_path / "model.keras")
    return model, tmp_path / "model.keras"


def test_it_is_adapted_as_other_files_are(tmp_path):
    model, path = saved(tmp_path, class_names=["a", "b", "c", "d", "e"])
    again = from_pretrained(path, image_size=32, num_classes=3)
    assert (again.num_classes, again.class_names) == (3, None)
    found, expected = arrays(again), arrays(model)
    table, stored = found.pop("position_embedding/table"), expected.pop("position_embedding/table")
    np.testing.assert_array_equal(table, resized_positions(stored, (2, 2), (4, 4)))
    assert found.pop("head/kernel").shape == (12, 3)
    for name in found.keys() - {"head/bias"}:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_compiled_model_in_mixed_precision_is_read_without_its_optimizer(tmp_path):
    model = one_block(dtype="mixed_bfloat16", dropout_rate=0.1)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    checkpoint = read_checkpoint(tmp_path / "model.keras")
    assert {*checkpoint.arrays} == {*arrays(model)}
    assert {array.dtype.name for array in checkpoint.arrays.values()} == {"float32"}


def test_a_file_that_tells_itself_contradicts_the_variant(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(ValueError, match="model.keras: variant Ti/16 says .*, it says "):
        from_pretrained(path, variant="Ti/16")


def test_what_is_no_model_of_ours_is_refused(tmp_path):
    path = tmp_path / "other.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
    with pytest.raises(ValueError, match="other.keras' is .*: it holds a Sequential; expected a Vision"):
        read_model(path)


# Hostile files ------------------------------------------------------------------------------------


def test_weights_of_layers_that_the_configuration_lacks_are_refused(tmp_path):
    path = with_arguments(saved(tmp_path)[1], num_classes=None)
    with pytest.raises(ValueError, match=r"not a readable .keras file: its layers hold \d+ arrays; those"):
        read_model(path)


def with_arguments(path, **changes):
    """The same file with other arguments of the model."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    config["config"].update(changes)
    return rezipped(path, **{"config.json": json.dumps(config)})


OURS = '{"registered_name": "keras_vit>VisionTransformer", "config": '
HOSTILE = {
    "a list": "[]",
    "no class": "{}",
    "a class that is a list": '{"registered_name": [], "config": {}}',
    "arguments in a list": OURS + "[]}",
    "deep arguments": OURS + '{"a":' * 100_000,
    "another class": '{"registered_name": "Sequential", "class_name": "Sequential", "config": {}}',
    "a function": '{"registered_name": "function", "class_name": "function", "config": "exec"}',
    "long": " " * (1 << 24) + "{}",
    "no configuration": None,
}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("small"), num_classes=2)[1]


@pytest.fixture
def file(small_file, tmp_path):
    """A copy of a file, to be changed."""
    return shutil.copy(small_file, tmp_path / "model.keras")


@by_table("kind", HOSTILE)
def test_a_hostile_configuration_is_refused_in_one_line(kind, file):
    path = rezipped(file, **{"config.json": HOSTILE[kind]})
    with pytest.raises(ValueError, match="model.keras' is not a readable .keras file: .") as error:
        from_pretrained(path)
    assert type(error.value) is ValueError and "\n" not in str(error.value)


ENCODER = {**SMALL, "num_layers": 1, "num_classes": None}
LARGE = {**ENCODER, "hidden_size": 2**20}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, options, changes",
    [
        (None, {}, {"hidden_size": 2**20}),
        (None, {}, {"num_layers": 10**9}),
        (None, {}, {"mlp_dim": 10**400}),
        (None, {}, {"position_grid": [2**20, 2**20]}),
        (None, {}, {"resnet": [2**40], "resnet_width": 64}),
        (MaskedAutoencoder, DECODER, {"decoder_hidden_size": 2**20}),
        (MaskedAutoencoder, DECODER, {"decoder_num_layers": 10**9}),
        (MaskedAutoencoder, DECODER, {"decoder_mlp_dim": 2**40}),
        (DINO, HEAD, {"out_dim": 2**40}),
        (DINO, HEAD, {"hidden_dim": 2**20}),
        (ImageTextModel, {"text": TEXT}, {"text": {**TEXT, "vocabulary_size": 2**40}}),
        (ImageSegmenter, {"num_classes": 2}, {"num_classes": 2**40}),
        (ImageSegmenter, {"num_classes": 2, "head": "up", "decoder_size": 4}, {"decoder_size": 2**40}),
        (ImageSegmenter, {"num_classes": 2, "head": "mask", "query_blocks": 1}, {"num_queries": 2**40}),
        # A wrong size of the head does not hide that of the encoder.
        (ImageSegmenter, {"num_classes": 2}, {"num_classes": -(2**60), "encoder": LARGE}),
        (ImageSegmenter, {"num_classes": 2}, {"num_classes": math.nan, "encoder": LARGE}),
    ],
)
def test_a_model_much_larger_than_its_file_is_refused_before_it_is_built(kind, options, changes, tmp_path):
    model = VisionTransformer(**ENCODER)
    if kind:
        model = kind(model, **options)
        assert 0 < model.min_own_parameters(model.get_config()) <= model.count_params()
    model.save(tmp_path / "model.keras")
    path = with_arguments(tmp_path / "model.keras", **changes)
    with pytest.raises(ValueError, match=r"its \S+ bytes declare \S+; at most 1,073,741,824 are accepted"):
        read_model(path)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
@pytest.mark.parametrize("link", [False, True])
def test_weights_that_name_another_file_are_refused(link, file, tmp_path):
    """HDF5's external storage reads any file of the machine, as Keras before 3.13.2 did."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(96)))
    with zipfile.ZipFile(file) as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights, "r+") as stored:
        found = []
        stored.visititems(lambda name, x: found.append(name) if getattr(x, "shape", 0) == (12, 2) else None)
        del stored[found[0]]
        if link:
            stored[found[0]] = h5py.ExternalLink(secret, "x")
        else:
            stored.create_dataset(found[0], (12, 2), "float32", external=[(str(secret), 0, 96)])
    rezipped(file, **{"model.weights.h5": weights.getvalue()})
    with pytest.raises(ValueError, match="not a readable .keras file: A total of 1 objects could not"):
        read_model(file)


def test_remat_is_kept(tmp_path):
    model = one_block()
    model.get_layer("encoder_block_0").remat = True
    model.save(tmp_path / "model.keras")
    assert read_model(tmp_path / "model.keras").get_layer("encoder_block_0").remat


def test_files_are_read_in_safe_mode_whatever_the_process_has_set(file, monkeypatch):
    make, modes = saving_lib._model_from_config, []

    def recorded(*arguments):
        modes.append((serialization_lib.in_safe_mode(), arguments[-1]))
        return make(*arguments)

    monkeypatch.setattr(saving_lib, "_model_from_config", recorded)
    before = serialization_lib.in_safe_mode()
    keras.config.enable_unsafe_deserialization()
    try:
        read_model(file)
        read_checkpoint(file)
        assert modes == [(True, True)] * 2
        assert serialization_lib.in_safe_mode() is False  # as the process has set it
    finally:
        global_state.set_global_attribute("safe_mode_saving", before)


@pytest.mark.slow
@pytest.mark.parametrize("image_size", [None, 32])
def test_relative_positions_without_a_table_are_read_and_resized(image_size, tmp_path):
    model = randomize(small(relative_positions=True, position_embedding="none"))
    model.save(tmp_path / "model.keras")
    loaded = from_pretrained(tmp_path / "model.keras", image_size=image_size)
    size = image_size or model.image_size[0]
    assert loaded.image_size == (size, size)
    if image_size is None:
        x = images_for(model)
        np.testing.assert_array_equal(loaded.predict_on_batch(x), model.predict_on_batch(x))
