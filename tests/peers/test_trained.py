"""A trained DINOv2 ViT-S/14 on photographs, beside transformers and the ONNX file that holds its weights."""

import pytest
from made import trained
from peers.packages import onnx, onnxruntime, torch, transformers  # noqa: F401
from real_precision import differences, our_tokens, peer_tokens, photographs

pytestmark = pytest.mark.slow


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
