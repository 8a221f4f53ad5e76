"""OWL-ViT and OWLv2 in scenic's files."""

import re

import ml_dtypes
import msgpack
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, TEXT

from keras_vit import ObjectDetector, VisionTransformer, from_pretrained, save_weights
from keras_vit.weights.array_files import digest_in, read_arrays, write_arrays
from keras_vit.weights.flax_files import read_msgpack, write_msgpack

CLIP = {"pre_norm": True, "activation": "quick_gelu", "norm_epsilon": 1e-5, "num_classes": None}
HEAD = {"merge_class_token": True, "merge_norm_epsilon": 1e-6, "head_activation": "gelu_tanh"}
TOWER = {"causal": True, "pooling": "argmax", "activation": "quick_gelu", "norm_epsilon": 1e-5}


def words(objectness=True, **options):
    options = {"query_size": 6, **HEAD, "objectness": objectness, **options}
    encoder = VisionTransformer(**{**SMALL, **CLIP})
    return randomize(ObjectDetector(encoder, text={**TEXT, **TOWER}, **options))


def like_owl_vit(key):
    """Keys of OWL-ViT's files, whose norms are numbered from 1."""
    key = re.sub(r"ln_([01])/", lambda found: f"ln_{int(found[1]) + 1}/", key)
    return key.replace("params/", "optimizer/target/").replace("resblocks_", "resblocks.")


def like_owlv2(key):
    return key.replace("resblocks_", "resblocks.")


@pytest.mark.parametrize(
    "renamed, objectness", some([(str, True), (like_owl_vit, False), (like_owlv2, True)], 3)
)
def test_a_detector_is_written_and_read(renamed, objectness, tmp_path, rng):
    model = words(objectness)
    save_weights(model, tmp_path / "model.msgpack", "scenic")
    (tmp_path / "model.json").unlink()
    arrays = {renamed(key): array for key, array in read_arrays(tmp_path / "model.msgpack").items()}
    others = {"global_step": np.int32(5), "optimizer/state/x": np.ones(2, "float32")}
    write_msgpack({**arrays, **others}.items(), tmp_path / "model.msgpack")
    again = from_pretrained(tmp_path / "model.msgpack")
    assert {name: getattr(again, name) for name in HEAD} == HEAD and again.objectness == objectness
    assert again.preprocessing.resize == "pad" and again.preprocessing.interpolation == "bilinear"
    ids = rng.integers(1, 11, (2, 5))
    images = rng.standard_normal((2, 16, 16, 3)).astype("float32")
    ours, read = (m.with_queries("ab", m.encode_text(ids))(images) for m in (model, again))
    assert_close(read, numpy(ours), 1e-6)


def test_the_configuration_beside_a_file_belongs_to_it(tmp_path):
    save_weights(words(), tmp_path / "a.msgpack", "scenic")
    assert from_pretrained(tmp_path / "a.msgpack").encoder.norm_epsilon == 1e-5
    save_weights(words(), tmp_path / "b.msgpack", "scenic")
    text = (tmp_path / "b.json").read_text()
    (tmp_path / "a.json").write_text(re.sub(r'"digest": "\w', '"digest": "_', text))
    with pytest.raises(ValueError, match="was saved with other weights"):
        from_pretrained(tmp_path / "a.msgpack")


def test_a_safetensors_file_that_begins_like_msgpack_has_its_digest(tmp_path):
    """Its first byte is part of the length of the header."""
    for length in range(16, 400):
        write_arrays({"a" * length: np.ones(2, "float32")}, tmp_path / "x.safetensors", digest="0a1b")
        if (tmp_path / "x.safetensors").read_bytes()[0] == 0x88:
            break
    assert (tmp_path / "x.safetensors").read_bytes()[0] == 0x88
    assert digest_in(tmp_path / "x.safetensors") == "0a1b"
    assert [*read_arrays(tmp_path / "x.safetensors")] == ["a" * length]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"merge_norm_epsilon": None}, r"merge_norm_epsilon=None \(supported: 1e-06\)"),
        ({"head_activation": "gelu_erf"}, r"head_activation='gelu_erf' \(supported: 'gelu_tanh'\)"),
    ],
)
def test_what_scenic_computes_otherwise_is_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_weights(words(**options), tmp_path / "model.msgpack", "scenic")
    with pytest.raises(ValueError, match="the layout 'scenic' cannot express this model"):
        save_weights(VisionTransformer(**SMALL), tmp_path / "model.msgpack", "scenic")
    assert not [*tmp_path.iterdir()]


def test_arrays_of_flax(tmp_path):
    path = tmp_path / "arrays.msgpack"
    arrays = {"a/b": np.arange(6, dtype="float32").reshape(2, 3), "c": np.ones(2, ml_dtypes.bfloat16)}
    write_arrays(arrays, path, dtype="bfloat16")
    assert read_arrays(path)["a/b"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read_arrays(path)["a/b"].astype("float32"), arrays["a/b"])
    content = {"shape": {"0": 4}, "chunks": {"0": [1.0, 2.0], "1": [3.0, 4.0]}}
    path.write_bytes(msgpack.packb({"x": {"__msgpack_chunked_array__": True, **content}}))
    np.testing.assert_array_equal(read_msgpack(path)["x"], [1, 2, 3, 4])


def packed(*array):
    return msgpack.packb({"x": msgpack.ExtType(1, msgpack.packb(array))})


@by_table(
    "content, message",
    [
        (packed((3,), "float32", bytes(8)), r"it has 8 bytes for an array \(3,\) of float32"),
        (packed((1,), "object", bytes(8)), "bytes for an array"),
        (
            msgpack.packb({"x": msgpack.ExtType(7, b"")}),
            "a msgpack extension of type 7; expected arrays of Flax",
        ),
        (msgpack.packb({5: 1.0}), "its keys must be strings; got 5"),
        (packed((1,), "float32", bytes(4))[:-2], "is no checkpoint that can be read"),
    ],
)
def test_damaged_files_are_refused_in_one_line(content, message, tmp_path):
    (tmp_path / "x.msgpack").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_arrays(tmp_path / "x.msgpack")
    assert len(str(error.value).splitlines()) == 1
