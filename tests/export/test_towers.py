"""Exports of the text tower of an image-text model, and of both towers."""

import concurrent.futures
import json

import numpy as np
import pytest
import tensorflow as tf
from made import tokenizers
from reference.comparing import assert_close, randomize

from keras_vit import ImageTextModel, Preprocessing, TextPreprocessing
from keras_vit.export import export_folder, export_image_text, export_text_tflite, open_text
from keras_vit.export.towers import FILE, TEXTS, sample_ids
from keras_vit.export.verify import normalize_as_exports_do

SIZES = {"hidden_size": 12, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
TEXT = ("causal", "eos_id", "norm_after_residual", "pad_id")  # options of the text tower
CLIP = {
    **{"objective": "softmax", "image_projection": 8, "text_projection": 8},
    **{"causal": True, "pooling": "eos", "eos_id": 5},
}


def two_towers(pooling="last", text_preprocessing=None, **options):
    image = {"image_size": 16, "patch_size": 8, **SIZES, "pooling": "gap"}
    text = {"vocabulary_size": 40, "length": 8, **SIZES, "pooling": pooling}
    text |= {name: options.pop(name) for name in TEXT if name in options}
    if text_preprocessing:
        text["vocabulary_size"] = text_preprocessing.vocabulary_size
    return randomize(ImageTextModel(image, text, text_preprocessing=text_preprocessing, **options))


@pytest.fixture(scope="module")
def model():
    return two_towers()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, CLIP], ids=["siglip", "clip"])
def test_a_saved_model_has_the_vectors_and_logits_of_the_live_towers(options, model, tmp_path, rng):
    model = two_towers(**options) if options else model
    signatures = tf.saved_model.load(export_image_text(model, tmp_path / "1")).signatures
    images, ids = rng.uniform(size=(3, 16, 16, 3)).astype("float32"), sample_ids(40, 8)
    vectors = np.asarray(model.image_encoder(normalize_as_exports_do(model, images)))
    texts = np.asarray(model.text_encoder(ids))
    assert_close(signatures["encode_images"](images=tf.constant(images))["embedding"], vectors, 1e-5)
    assert_close(signatures["encode_text"](ids=tf.constant(ids))["embedding"], texts, 1e-5)
    outputs = signatures["zero_shot"](images=tf.constant(images), ids=tf.constant(ids))
    logits = np.asarray(model.similarity(vectors, texts))
    assert_close(outputs["logits"], logits, 1e-5)
    exponents = np.exp(logits.astype("float64"))
    total = exponents.sum(1, keepdims=True) if model.objective == "softmax" else 1 + exponents
    assert_close(outputs["probabilities"], exponents / total, 1e-5)


@pytest.mark.slow
def test_towers_of_packed_patches_are_a_saved_model(tmp_path, rng):
    image = {"image_size": (None, None), "patch_size": 8, **SIZES, "pooling": "map", "position_grid": (2, 2)}
    text = {"vocabulary_size": 40, "length": 8, **SIZES}
    model = randomize(ImageTextModel({**image, "max_num_patches": 5}, text))
    signatures = tf.saved_model.load(export_image_text(model, tmp_path / "1")).signatures
    images, ids = [rng.random((9, 40, 3)), rng.random((20, 20, 3)), rng.random((8, 8, 3))], sample_ids(40, 8)
    packed = {name: tf.constant(array) for name, array in model.preprocessing(images).items()}
    assert_close(signatures["encode_images"](**packed)["embedding"], model.encode_images(images), 1e-5)
    found = signatures["zero_shot"](**packed, ids=tf.constant(ids))["logits"]
    assert_close(found, model.similarity(images, ids), 1e-5)
    held = json.loads((tmp_path / "1" / "assets" / FILE).read_text())
    assert Preprocessing(**held["preprocessing"]) == model.preprocessing
    for refused in (model, model.image):
        with pytest.raises(ValueError, match="unlike export_image_text, needs images of one size"):
            export_folder(refused, tmp_path / "folder")


@pytest.mark.parametrize(
    "precision, bound", [("float32", 1e-5), pytest.param("dynamic_int8", 0.1, marks=pytest.mark.slow)]
)
def test_litert_has_the_vectors_of_texts(precision, bound, model, tmp_path):
    ids = sample_ids(40, 8)
    encode = open_text(export_text_tflite(model, tmp_path / "text.tflite", precision=precision))
    alone = encode(ids)
    assert_close(alone, np.asarray(model.text_encoder(ids)), bound)
    assert encode(ids[:0]).shape == (0, 12)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(encode, [ids] * 100):
            np.testing.assert_array_equal(found, alone)


@pytest.mark.slow
def test_a_bert_is_exported(tmp_path):
    model = two_towers("first", norm_after_residual=True, pad_id=0)
    ids = sample_ids(40, 8)
    ids[:, 5:] = 0
    expected = np.asarray(model.text_encoder(ids))
    for file in (
        export_image_text(model, tmp_path / "1", ("encode_text",)),
        export_text_tflite(model, tmp_path / "text.tflite", precision="float32"),
    ):
        assert_close(open_text(file)(ids), expected, 1e-5)


def test_what_cannot_be_exported_is_refused(model, tmp_path):
    for names, got in ((("encode",), "'encode'"), ((), r"\(\)")):
        with pytest.raises(ValueError, match=f"signatures must be .*; got {got}"):
            export_image_text(model, tmp_path / "1", names)
    with pytest.raises(ValueError, match="precision must be"):
        export_text_tflite(model, tmp_path / "text.tflite", precision="int8")
    with pytest.raises(ValueError, match="must end in .tflite"):
        export_text_tflite(model, tmp_path / "text.onnx")
    (tmp_path / "damaged.tflite").write_bytes(b"TFL3")
    for path in ("none", "damaged.tflite"):
        with pytest.raises(ValueError, match="cannot be opened here"):
            open_text(tmp_path / path)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.tflite"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, CLIP], ids=["siglip", "clip"])
def test_a_folder_holds_both_towers_and_the_tokenizer(options, tmp_path):
    (tmp_path / "spiece.model").write_bytes(tokenizers.sentencepiece_model())
    prepare = TextPreprocessing.from_files(tmp_path, "siglip", length=8)
    model = two_towers(text_preprocessing=prepare, **options)
    formats = ("saved_model", "tflite", "onnx", "hub")
    report = export_folder(model, tmp_path / "out", formats)
    rows = report["formats"]
    text = {name for name in rows if name.startswith(("text_", "image_text_"))}
    assert text == {
        *("text_saved_model", "image_text_saved_model", "text_tflite_float32", "text_tflite_float16"),
        "text_tflite_dynamic_int8",
    }
    for name, row in rows.items():
        bound = {"float16": 5e-3, "int8": 0.1}.get(name.rpartition("_")[2], 1e-5)
        assert row["max_logit_difference"] <= bound, name
    text = tmp_path / "out" / "text"
    assert TextPreprocessing.from_files(text, "siglip") == prepare
    assert TextPreprocessing(**json.loads((text / TEXTS).read_text())) == prepare
    ids = prepare(["a red car", "", "a photo of the cat!"])
    images = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
    vectors = np.asarray(model.image_encoder.predict_on_batch(normalize_as_exports_do(model, images)))
    logits = model.similarity(vectors, ids)
    held = json.loads((text / FILE).read_text())
    assert_close(vectors @ model.encode_text(ids).T * held["scale"] + held["bias"], logits, 1e-5)
    with pytest.raises(ValueError, match="exists; "):
        export_folder(model, tmp_path / "out", ("saved_model",), version=2)
