"""LiteRT and ONNX files of models with every option compute what the live model does."""

import gzip

import numpy as np
import pytest
from made.browser import WEBGPU, chromium, served
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import HYBRID, NEWER, NO_TRANSFORMER, one_block, run_live

from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.web import PARTS
from keras_vit.layers import attention

MODELS = {
    "quick_gelu": {"activation": "quick_gelu"},
    "sincos2d": {"position_embedding": "sincos2d", "prefix_positions": False},
    "erf": {"activation": "gelu_erf"},
    "tanh": {"activation": "gelu_tanh"},
    "gap": {"pooling": "gap", "representation_size": 6},
    "map": {"pooling": "map"},
    "registers": {"num_registers": 2, "image_size": (16, 24), "layer_scale": 0.1},
    "distillation": {"distillation": True},
    "hybrid": {**HYBRID, "resnet": (1, 1)},
    "root block": {**HYBRID, "resnet": ()},
    "no transformer": {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)},
    "dropout": {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "stochastic_depth_rate": 0.3},
    "no head": {"num_classes": None},
    "gray": {"in_channels": 1},
    "chunked attention": {},
    "any size": {"image_size": (None, None), "position_grid": (4, 4)},
    **NEWER,
    "any size, rotary": {**NEWER["EVA-02-B"], "image_size": (None, None), "position_grid": (4, 4)},
    "mixed": {**NEWER["DINOv3-S"], "rotary": "mixed"},
    "rotary without prefix": {"rotary": "dinov3", "pooling": "gap"},
    "relative": {"relative_positions": True, "key_bias": False, "image_size": (19, 24)},
    "grouped queries": {"num_heads": 6, "num_kv_heads": 2, "qk_norm": True, "norm": "rms"},
    "post-norm": {"post_norm": True, "attention_sub_norm": True, "patch_norm": True},
    "no last norm": {
        **{"rotary": {"kind": "axial", "offset": 1, "reference_grid": 3}, "final_norm": False},
    },
    "palette": {
        **{"palette": 10, "causal": True, "image_size": (4, 6), "patch_size": 1},
        **{"pooling": "gap", "norm": "rms"},
    },
}
FAST = ("EVA-02-B", "tanh", "map", "gray", "dropout", "chunked attention")
# This is converted to LiteRT only.
ALSO = ("DINOv3-S", "grouped queries", "post-norm", "distillation", "any size")
# Relative to the largest logit. Rounding to integers costs such small models much; test_quantization.py has a
# trained one.
BOUNDS = {"float32": 1e-5, "float16": 5e-3, "dynamic_int8": 0.1, "int8": 0.5}


def convert(saved, folder, precisions, calibration, onnx=True):
    """A LiteRT file of each precision and maybe an ONNX file, with the bounds of their errors."""
    for precision in precisions:
        options = {"calibration": calibration} if precision == "int8" else {}
        path = export_tflite(saved, folder / f"{precision}.tflite", precision=precision, **options)
        yield path, BOUNDS[precision]
    if onnx:
        yield export_onnx(saved, folder / "model.onnx"), 1e-5


@pytest.mark.parametrize(
    "names", [FAST, *(pytest.param(names, marks=pytest.mark.slow) for names in (ALSO, *zip(MODELS)))]
)
def test_litert_and_onnx_compute_what_the_model_does(names, tmp_path, monkeypatch):
    if "chunked attention" in names:
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 10)  # two queries at a time
    model = one_block(**{option: value for name in names for option, value in MODELS[name].items()})
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    sizes = [(32, 32), (24, 48)] if model.image_size[0] is None else [model.image_size]
    images = [pixels(batch, size, model.in_channels) for size in sizes for batch in (1, 5)]
    outputs = {"logits", "probabilities"} if model.num_classes else {"representation"}
    precisions = BOUNDS if len(names) == 1 else ["float32"]
    for path, bound in convert(saved, tmp_path, precisions, images[1], names != ALSO):
        exported = open_exported(path)
        fixed = path.suffix == ".tflite"
        assert exported.description == (describe(model).with_size(sizes[0]) if fixed else describe(model))
        for batch in images[: 2 if fixed else None]:
            found = exported.outputs(batch)
            assert {*found} == outputs
            assert_close(found[min(outputs)], run_live(model, batch), bound)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_the_outputs_fit_the_task(task, tmp_path):
    model, images = one_block(), pixels(2)
    saved = export_saved_model(model, tmp_path / "1", task=task, warmup=())
    for path, bound in convert(saved, tmp_path, ["float32", "int8"], images):
        found, live = open_exported(path).outputs(images), run_live(model, images)
        if task == "regression":
            assert {*found} == {"values"}
            assert_close(found["values"], live, bound)
            continue
        assert {*found} == {"logits", "probabilities"}
        exponents = np.exp(found["logits"].astype("float64"))
        scores = exponents / (exponents.sum(1, keepdims=True) if task == "single_label" else 1 + exponents)
        np.testing.assert_allclose(found["probabilities"], scores, atol=max(bound / 30, 1e-6))


RUN = """
async ([file, accelerator, values, shape]) => {
  window.loaded ??= LiteRT.loadLiteRt("/litert_wasm_compat_internal.js");
  await window.loaded;
  const model = await LiteRT.loadAndCompile(file, {accelerator});
  if (accelerator === "webgpu" && !model.isFullyAccelerated) throw new Error("not all on the GPU");
  const input = new LiteRT.Tensor(new Float32Array(values), shape);
  const outputs = await Promise.all((await model.run([input])).map(output => output.moveTo("wasm")));
  return model.getOutputDetails().map((detail, i) => [detail.name, [...outputs[i].toTypedArray()]]);
}
"""


@pytest.fixture(scope="module")
def browsers(tmp_path_factory):
    """A folder that is served, and pages with LiteRT.js, on WebAssembly and on WebGPU."""
    folder = tmp_path_factory.mktemp("site")
    script = (PARTS / "litert" / "litert.js").read_text()
    (folder / "index.html").write_text(f"<!doctype html><meta charset=utf-8><script>{script}</script>")
    for kind in ("js", "wasm"):
        content = gzip.decompress((PARTS / "litert" / f"litert_wasm.{kind}.gz").read_bytes())
        (folder / f"litert_wasm_compat_internal.{kind}").write_bytes(content)
    with served(folder) as url, chromium(*WEBGPU) as browser:
        pages = {accelerator: browser.new_page() for accelerator in ("wasm", "webgpu")}
        for page in pages.values():
            page.set_default_timeout(120_000)
            page.goto(url)
        yield folder, pages


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_browsers_compute_what_the_model_does(name, browsers, tmp_path):
    folder, pages = browsers
    model = one_block(**MODELS[name])
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    size = (32, 32) if model.image_size[0] is None else model.image_size
    images = pixels(1, size, model.in_channels)
    for path, bound in convert(saved, folder, BOUNDS, pixels(5, size, model.in_channels), onnx=False):
        for accelerator, page in pages.items():
            given = [path.name, accelerator, images.ravel().tolist(), images.shape]
            found = dict(page.evaluate(RUN, given))
            expected = run_live(model, images)
            # WebGPU's own bound: its sums are in another order.
            allowed = max(bound, 1e-4) if accelerator == "webgpu" else bound
            assert_close(np.reshape(found[min(found)], expected.shape), expected, allowed)
        path.unlink()
