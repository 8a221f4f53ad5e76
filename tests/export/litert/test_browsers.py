"""LiteRT files of models with every option compute in browsers what the models do."""

import gzip

import numpy as np
import pytest
from made.browser import WEBGPU, chromium, served
from made.exports import BOUNDS, MODELS, pixels
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit.export.checks import CALIBRATED
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import PRECISIONS, export_tflite
from keras_vit.export.web import PARTS

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
    for precision in PRECISIONS:
        options = {"calibration": pixels(5, size, model.in_channels)} if precision in CALIBRATED else {}
        path = export_tflite(saved, folder / f"{precision}.tflite", precision=precision, **options)
        for accelerator, page in pages.items():
            given = [path.name, accelerator, images.ravel().tolist(), images.shape]
            found = dict(page.evaluate(RUN, given))
            expected = run_live(model, images)
            # WebGPU's own bound: its sums are in another order.
            bound = max(BOUNDS[precision], 1e-4 if accelerator == "webgpu" else 0)
            assert_close(np.reshape(found[min(found)], expected.shape), expected, bound)
        path.unlink()
