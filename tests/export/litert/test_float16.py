"""Files of models whose tokens have values like DINOv2's have no value that float16 cannot hold."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import SMALL, run_live

import keras_vit
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite

LARGEST = float(np.finfo("float16").max)
HEADS = {
    "dpt": {},
    "disparity": {"quantity": "disparity", "readout": "project"},
    "bins": {"head": "linear"},
    "relative": {"head": "linear", "quantity": "relative"},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Warning. Enabling")
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_values_of_dinov2_overflow_nowhere(head, final_norm, tmp_path):
    options = {**SMALL, "num_classes": None, "num_layers": 2, "final_norm": final_norm}
    encoder = keras_vit.VisionTransformer(**options)
    for index in range(2):  # two channels of every token, as after few blocks of DINOv2
        bias = encoder.get_layer(f"encoder_block_{index}").mlp.dense_1.bias
        bias.assign(np.where(np.arange(bias.shape[0]) < 2, [400.0], [0.0]))
    model = keras_vit.DepthEstimator(encoder, decoder_size=16, head_size=8, **HEADS[head])
    images = pixels(1, model.image_size)
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    path = export_tflite(saved, tmp_path / "m.tflite", precision="float32")
    interpreter = Interpreter(str(path), experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], images)
    interpreter.invoke()
    largest = {}
    for detail in interpreter.get_tensor_details():
        if detail["dtype"] is np.float32:
            largest[detail["name"]] = np.abs(interpreter.get_tensor(detail["index"])).max(initial=0)
    assert max(largest.values()) > 750
    assert {name: value for name, value in largest.items() if not value < LARGEST} == {}
    [output] = interpreter.get_output_details()
    assert_close(interpreter.get_tensor(output["index"]), run_live(model, images), 1e-5)
