"""A trained DINOv2 ViT-S/14 on photographs, beside transformers and the ONNX file that holds its weights."""

import keras
import numpy as np
import pytest
from made import trained
from peers.packages import onnx, onnxruntime, torch, transformers  # noqa: F401
from real_precision import BACKENDS, compared, differences, our_tokens, peer_tokens, photographs

import keras_vit
from keras_vit.export import export_folder, open_exported

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("trained_folder")]
SIDE = 112


@pytest.fixture(scope="module")
def crops():
    """Two crops of each photograph for training: images and classes."""
    return trained.crops("train", 2, SIDE)


@pytest.fixture
def encoder(trained_folder):
    return keras_vit.from_pretrained(trained_folder, image_size=SIDE)


def vectors(model, images):
    x = model.preprocessing(images)
    return model.feature_extractor(["representation"]).predict(x, verbose=0)["representation"]


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize("size", [(518, 518), (224, 224), (322, 490), (112, 224), (98, 98)], ids=str)
def test_tokens_of_any_size_are_those_of_transformers_in_float64(size, trained_folder):
    images = photographs(size)[: 1 if size == (518, 518) else 2]
    expected = peer_tokens(trained_folder, images.astype("float64"))
    rounding, _ = differences(peer_tokens(trained_folder, images), expected)  # 5.3e-6 at 98 pixels
    for image_size in (size, (None, None)):
        difference, _ = differences(our_tokens(trained_folder, images, image_size=image_size), expected)
        assert difference < max(5e-6, 1.5 * rounding)


def test_tokens_are_those_of_the_onnx_file(trained_folder):
    file = onnx.load(trained.onnx_file())
    *_, norm = (node for node in file.graph.node if node.name.startswith("/backbone/layernorm"))
    file.graph.output.append(onnx.helper.make_tensor_value_info(norm.output[0], onnx.TensorProto.FLOAT, None))
    images = photographs((224, 224))
    inputs = {file.graph.input[0].name: images.transpose(0, 3, 1, 2)}
    (expected,) = onnxruntime.InferenceSession(file.SerializeToString()).run([norm.output[0]], inputs)
    assert differences(our_tokens(trained_folder, images, image_size=224), expected)[0] < 5e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_in_16_bits_keep_their_directions(backend):
    cosines = {dtype: cosine for dtype, (_, cosine) in compared(backend, (SIDE, SIDE)).items()}
    assert cosines["float32"] > 1 - 1e-6
    assert cosines["mixed_bfloat16"] > 0.99 and cosines["mixed_float16"] > 0.9999


@pytest.mark.parametrize(
    "name, precisions, bound",
    [
        *(("saved_model", (), 1e-5), ("onnx", (), 1e-5)),
        *(("tflite", ("float32",), 1e-5), ("tflite", ("float16",), 5e-3)),
        *(("openvino", ("float32",), 1e-5), ("openvino", ("bfloat16",), 5e-2)),
    ],
    ids=str,
)
def test_an_export_in_floats_computes_the_vectors_of_photographs(name, precisions, bound, encoder, tmp_path):
    options = {"precisions": precisions} if precisions else {}
    report = export_folder(encoder, tmp_path / "export", (name,), images=2, **options)
    *_, path = (row["path"] for row in report["formats"].values())
    images = trained.crops("any", 1, SIDE)[0]
    outputs, expected = open_exported(path).predict_on_batch(images), vectors(encoder, images)
    assert np.abs(outputs - expected).max() < bound * np.abs(expected).max()


def test_lora_learns_the_photographs_and_keeps_the_trained_weights(trained_folder, crops, tmp_path):
    model = keras_vit.from_pretrained(trained_folder, image_size=SIDE, num_classes=16)
    before = {variable.path: variable.numpy() for variable in model.weights}
    model.enable_lora(4)
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = model.preprocessing(crops[0]), crops[1]
    losses = model.fit(images, labels, batch_size=8, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    changed = {v.path for v in model.weights if v.path in before and (v.numpy() != before[v.path]).any()}
    assert {path.split("/")[-2] for path in changed} <= {"head"}
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(images[:4]), model.predict(images[:4]), atol=1e-5)


def test_vectors_of_a_quantized_model_keep_their_directions(encoder):
    images = trained.crops("any", 1, SIDE)[0]
    expected = vectors(encoder, images)
    encoder.quantize("int8")
    assert cosines(vectors(encoder, images), expected).min() > 0.98
