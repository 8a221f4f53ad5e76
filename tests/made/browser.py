"""A headless Chromium, and a server for it."""

import contextlib
import functools
import http.server
import io
import shutil

import numpy as np
import pytest
from made.servers import serving
from PIL import Image

# A GPU in software: slow, and right.
WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--ignore-gpu-blocklist")
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")  # a moving test picture
PHONE, DESK = ({"width": 390, "height": 844}, {"width": 1280, "height": 800})


@contextlib.contextmanager
def chromium(*options):
    """A browser of playwright, which must be installed."""
    executable = shutil.which("chromium")
    assert executable, "install chromium (apt-get install chromium) for this test"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("install playwright (requirements-peers.txt) for this test")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", *options])
        yield browser
        browser.close()


@contextlib.contextmanager
def served(folder):
    """The URL of a folder on a server that does nothing but send its files."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Handler, directory=folder)
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def opened(browser, url, **options):
    """An exported page that has loaded its model, and the requests and errors so far, which go on."""
    tab, requests, errors = browser.new_page(**options), [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(url)
    tab.evaluate("ready")
    return tab, requests, errors


def wait(tab, condition):
    """Wait for a condition. Playwright's own function evaluates a string, which the page does not allow."""
    pause = "await new Promise(done => setTimeout(done, 20))"
    tab.evaluate(f"async () => {{ while (!({condition})) {pause}; }}")


# Of a place in pixels of the picture, the color of what is drawn over it.
DRAWN = """([x, y]) => {
  const canvas = $("attention"), {picture} = result;
  const at = [x * canvas.width / picture.width, y * canvas.height / picture.height].map(Math.floor);
  return Array.from(canvas.getContext("2d").getImageData(...at, 1, 1).data);
}"""


# The picture of a page as the bytes of a PNG file, and a value; the camera changes both while it waits.
SHOWN = """async () => {
  const {picture} = result, value = VALUE, canvas = new OffscreenCanvas(picture.width, picture.height);
  canvas.getContext("2d").putImageData(picture, 0, 0);
  const bytes = new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer());
  return [Array.from(bytes), value];
}"""


def picture_with(tab, value):
    """The picture of a page, uint8 (height, width, 3), and the value of a JavaScript expression."""
    content, found = tab.evaluate(SHOWN.replace("VALUE", value))
    return np.array(Image.open(io.BytesIO(bytes(content))).convert("RGB")), found


@contextlib.contextmanager
def ready(folder, accelerator):
    """A tab with a page that computes on an accelerator, may use the camera and has no errors."""
    with served(folder) as url, chromium(*WEBGPU, *CAMERA) as browser:
        tab, _, errors = opened(browser, f"{url}/#{accelerator}", permissions=["camera"])
        name = {"webgpu": "WebGPU", "wasm": "WebAssembly"}[accelerator]
        assert tab.inner_text("#status") == f"Ready, on {name}."
        yield tab
        assert not errors


def hide_and_show_overlay(tab):
    """Check the switch of what is drawn over the picture."""
    tab.uncheck("#overlay")
    assert tab.is_hidden("#attention")
    tab.check("#overlay")


def follow_camera(tab, width=100):
    """Turn the camera on, whose pictures are wider than this, and wait for the result of the next one."""
    tab.click("#camera")
    wait(tab, f"!$('video').hidden && result.picture.width > {width}")
    tab.evaluate("window.result = null")
    wait(tab, "window.result")
    assert tab.is_visible("#attention") and tab.is_visible("#video")


def take_picture(tab):
    """Take the picture of the camera, and wait for its result."""
    tab.click("#shutter")
    wait(tab, "$('video').hidden && !$('picture').hidden")
    tab.evaluate("last")


def analyzed(page, file):
    """Tabs of an exported page that show a file, on a GPU and on the CPU; then each shows the camera."""
    with served(page) as url, chromium(*WEBGPU, *CAMERA) as browser:
        for accelerator, name in (("webgpu", "WebGPU"), ("wasm", "WebAssembly")):
            tab, _, errors = opened(browser, f"{url}/#{accelerator}", permissions=["camera"])
            assert tab.inner_text("#status") == f"Ready, on {name}."
            tab.set_input_files("#file", file)
            tab.evaluate("last")
            yield tab
            hide_and_show_overlay(tab)
            follow_camera(tab)
            take_picture(tab)
            assert not errors
            tab.close()


def overlay(tab, height, width):
    """The colors that are drawn over the picture: (height, width, 4)."""
    code = f"Array.from($('attention').getContext('2d').getImageData(0, 0, {width}, {height}).data)"
    return np.reshape(tab.evaluate(code), (height, width, 4))
