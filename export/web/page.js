// The page: loads the model, checks what this device computes with it, and computes pictures. Another file defines
// `view`, which shows the outputs of this kind of models:
//   follows: whether what the camera shows is computed, too;
//   preprocess(picture, options): makes the model's input in place of the function of that name, if it is there;
//   show(outputs, picture): shows outputs, arrays by name, in the list and over the picture, an `ImageData`, and
//     returns what tests read.

const page = JSON.parse(document.getElementById("page").textContent);
const NAMES = {webgpu: "WebGPU", wasm: "WebAssembly"};
const MAX_PIXELS = 2 ** 24; // Some browsers have no larger canvas.
// Of the largest output, or of the pixels: wrong results differ by about as much as they are.
const CHECK_BOUND = 0.05;
const PAUSE = 1000; // milliseconds between two messages about the pictures of the camera
const SMALL = "min(20rem, 60vh)"; // the side at which smaller pictures are shown, to have room for what is drawn
const $ = id => document.getElementById(id);

/** The bytes of a file: inside the page, or next to it; unpacked if it is gzipped. */
async function asset(name) {
  const inside = $("asset-" + name);
  const url = inside ? "data:application/octet-stream;base64," + inside.textContent : page.files[name];
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} cannot be loaded (${response.status})`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  // Some servers say that .gz files are encoded, and browsers unpack those.
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

let compiled = null; // {model, accelerator}
let files = null;

async function loadRuntime() {
  const [wasm, glue, model] = await Promise.all(["wasm", "glue", "model"].map(asset));
  self.Module = {wasmBinary: wasm};
  const url = URL.createObjectURL(new Blob([glue], {type: "text/javascript"}));
  await LiteRT.loadLiteRt(url + "#.js"); // It wants the name of a script.
  URL.revokeObjectURL(url);
  files = {model};
}

/** The outputs by name, as arrays, and the milliseconds. */
async function run({model}, input) {
  const [height, width] = page.preprocessing.image_size;
  const start = performance.now();
  const tensor = new LiteRT.Tensor(input, [1, height, width, page.preprocessing.channels]);
  const found = await model.run([tensor]);
  const outputs = {};
  for (const [i, {name}] of model.getOutputDetails().entries()) {
    const host = found[i].accelerator === "wasm" ? found[i] : await found[i].moveTo("wasm");
    const values = host.toTypedArray();
    outputs[name] = view.follows ? values.slice() : Array.from(values);
    host.delete();
  }
  tensor.delete();
  return {outputs, milliseconds: performance.now() - start};
}

/** The input whose outputs the page knows from its export: pseudo-random, the same in Python. */
function checkInput() {
  const [height, width] = page.preprocessing.image_size;
  const values = new Float32Array(height * width * page.preprocessing.channels);
  return values.map((_, i) => (Math.imul(i, 2654435761) >>> 0) / 2 ** 32);
}

/** How far the outputs for the check's input are from those that the page knows, relative to all. */
function checkError(outputs) {
  return Math.max(...Object.entries(page.check).map(([name, {values, step, exact}]) => {
    const found = outputs[name];
    if (exact) return values.filter((value, i) => value !== found[i * step]).length / values.length;
    const errors = values.map((value, i) => Math.abs(value - found[i * step]));
    return Math.max(...errors) / (Math.max(...values.map(Math.abs)) || 1); // A new head's outputs are all 0.
  }));
}

/** Compiles the model; raises an error if this device computes something else than was exported. */
async function compile(accelerator) {
  const model = await LiteRT.loadAndCompile(files.model, {accelerator});
  if (accelerator === "webgpu" && !model.isFullyAccelerated) {
    model.delete();
    throw new Error("it cannot run all of the model");
  }
  const found = {model, accelerator};
  const {outputs} = await run(found, checkInput());
  if (!(checkError(outputs) <= CHECK_BOUND)) {
    model.delete();
    throw new Error("it computes something else than the exported model");
  }
  return found;
}

/** Compiles for the wanted accelerator or, if that fails, for WebAssembly, and says so with the reason. */
async function use(accelerator) {
  const previous = compiled;
  let problem = "";
  try {
    compiled = await compile(accelerator);
  } catch (error) {
    if (accelerator === "wasm") throw error;
    problem = `${NAMES[accelerator]} is not used: ${error.message || error}. `;
    compiled = await compile("wasm");
  }
  previous?.model.delete();
  $("accelerator").value = compiled.accelerator;
  say(`${problem}Ready, on ${NAMES[compiled.accelerator]}.`);
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

/** Shows or hides what is drawn over the picture, as the switch says. */
function showOverlay() {
  $("overlay-choice").hidden = false;
  $("attention").hidden = !$("overlay").checked;
}

/** What draws over the picture, as sharp as the screen is, and its pixels for each of those of the style. */
function sharpOverlay({width, height}) {
  const longest = Math.max(width, height), canvas = $("attention"), frame = $("frame"), ratio = window.devicePixelRatio;
  $("picture").style.width = longest < 320 ? `calc(${SMALL} * ${width / longest})` : "";
  showOverlay();
  [canvas.width, canvas.height] = [frame.clientWidth, frame.clientHeight].map(side => Math.round(side * ratio));
  return {context: canvas.getContext("2d"), ratio};
}

/** Removes the result of the last picture, and the picture unless the camera is on. */
function clearResult() {
  $("classes").replaceChildren();
  $("attention").hidden = $("overlay-choice").hidden = $("threshold-choice").hidden = true;
  $("frame").hidden = !$("video").srcObject;
  window.result = null;
}

/** Runs one task after another, and shows the message of an error in place of a result. */
let last = Promise.resolve();
function queue(task) {
  last = last.then(task).catch(error => {
    clearResult();
    say(`${error.message || error}`, true);
  });
  return last;
}

const percent = fraction => `${(100 * fraction).toFixed(1)} %`;

/** Lists rows of a name, a fraction or null, a text, and a color or nothing. */
function showRows(rows) {
  $("classes").replaceChildren(...rows.map(([name, fraction, text, color]) => {
    const item = document.createElement("li"), line = document.createElement("div");
    line.className = "name";
    for (const [kind, words] of [["label", name], ["value", text]]) {
      const part = document.createElement("span");
      part.className = kind;
      part.textContent = words;
      line.append(part, " ");
    }
    item.append(line);
    if (fraction !== null) {
      const bar = document.createElement("div"), filled = document.createElement("div");
      bar.className = "bar";
      bar.ariaHidden = "true";
      filled.style.width = `${100 * fraction}%`;
      if (color) {
        const key = document.createElement("span");
        key.className = "key";
        key.ariaHidden = "true";
        if (Math.max(...color)) key.style.background = `rgb(${color})`;
        line.firstChild.prepend(key, " ");
      }
      bar.append(filled);
      item.append(bar);
    }
    return item;
  }));
}

/** Computes the outputs for an `ImageData`, and shows them; the last result is also kept for tests. */
async function classify(picture, isQuiet = false) {
  if (!compiled) throw new Error("The model is not loaded.");
  const start = performance.now();
  const input = (view.preprocess ?? preprocess)(picture, page.preprocessing);
  const preparing = performance.now() - start;
  const {outputs, milliseconds} = await run(compiled, input);
  const objects = view.show(outputs, picture);
  if (!isQuiet) say(`${milliseconds.toFixed(1)} ms on ${NAMES[compiled.accelerator]}, and ${preparing.toFixed(1)} ms to prepare the picture.`);
  window.result = {outputs, objects, milliseconds, accelerator: compiled.accelerator, picture, input};
}

/** Shows what `draw` draws, and returns its pixels. */
function shown(width, height, draw) {
  const canvas = $("picture");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", {willReadFrequently: true});
  draw(context);
  $("frame").hidden = canvas.hidden = false;
  $("attention").hidden = true;
  return context.getImageData(0, 0, width, height);
}

async function classifyFile(file) {
  stopCamera();
  let bitmap;
  try {
    // The numbers of the file, in its EXIF orientation, as they are read in training.
    bitmap = await createImageBitmap(file, {colorSpaceConversion: "none", imageOrientation: "from-image"});
  } catch {
    throw new Error("This browser cannot read that file as a picture.");
  }
  const shrink = Math.min(1, Math.sqrt(MAX_PIXELS / (bitmap.width * bitmap.height)));
  const [width, height] = [bitmap.width, bitmap.height].map(side => Math.max(Math.floor(side * shrink), 1));
  const picture = shown(width, height, context => context.drawImage(bitmap, 0, 0, width, height));
  bitmap.close(); // It would keep its memory until it is collected.
  await classify(picture);
}

function firstImage(transfer) {
  return [...transfer?.files ?? []].find(file => file.type.startsWith("image/"));
}

async function startCamera() {
  const video = $("video");
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}});
  } catch (error) {
    throw new Error(`The camera cannot be used: ${error.message}`);
  }
  await video.play();
  $("frame").hidden = video.hidden = $("shutter").hidden = false;
  $("picture").hidden = $("attention").hidden = $("camera").hidden = true;
  if (view.follows) follow();
}

/** Computes what the camera shows, one picture after another, until it is stopped. */
let lastSaid = 0;
function follow() {
  queue(async () => {
    if (!$("video").srcObject) return;
    const isQuiet = performance.now() - lastSaid < PAUSE;
    if (!isQuiet) lastSaid = performance.now();
    await classify(cameraPicture(), isQuiet);
    requestAnimationFrame(follow);
  });
}

/** The pixels that the camera shows, of which the page itself shows the video. */
function cameraPicture() {
  const video = $("video"), {videoWidth: width, videoHeight: height} = video;
  const context = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  context.drawImage(video, 0, 0);
  return context.getImageData(0, 0, width, height);
}

function stopCamera() {
  const video = $("video");
  video.srcObject?.getTracks().forEach(track => track.stop());
  video.srcObject = null;
  video.hidden = $("shutter").hidden = true;
  $("camera").hidden = !navigator.mediaDevices?.getUserMedia;
}

async function takePicture() {
  const video = $("video"), {videoWidth, videoHeight} = video;
  const pixels = shown(videoWidth, videoHeight, context => context.drawImage(video, 0, 0));
  stopCamera();
  await classify(pixels);
}

/**
 * A drawing as a scan of `side` × `side` gray pixels: what is drawn fills the height, or the width if it is
 * wider than high, and is in the middle; each pixel is the mean of its part.
 */
function scanned(canvas, side) {
  const {width, height} = canvas, {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
  const ink = (x, y) => data[4 * (y * width + x)];
  let [left, right, top, bottom] = [width, -1, height, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (ink(x, y) > 127) {
        [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
      }
    }
  }
  if (right < 0) return null;
  const extent = Math.max(right - left, bottom - top) + 1, step = extent / side, samples = 8;
  const origin = [(left + right + 1 - extent) / 2, (top + bottom + 1 - extent) / 2];
  const scan = new ImageData(side, side);
  for (let i = 0; i < side * side; i++) {
    let sum = 0;
    for (let s = 0; s < samples * samples; s++) {
      const x = Math.floor(origin[0] + (i % side + (s % samples + 0.5) / samples) * step);
      const y = Math.floor(origin[1] + (Math.floor(i / side) + (Math.floor(s / samples) + 0.5) / samples) * step);
      if (x >= 0 && x < width && y >= 0 && y < height) sum += ink(x, y);
    }
    const gray = sum / samples ** 2;
    scan.data.set([gray, gray, gray, 255], 4 * i);
  }
  return scan;
}

async function classifyDrawing() {
  const side = page.drawing, scan = scanned($("drawing"), side);
  if (scan) await classify(shown(side, side, context => context.putImageData(scan, 0, 0)));
}

function prepareDrawing() {
  const canvas = $("drawing"), context = canvas.getContext("2d", {willReadFrequently: true});
  const clear = () => {
    context.fillStyle = "black";
    context.fillRect(0, 0, canvas.width, canvas.height);
  };
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
  };
  let point = null;
  const stroke = event => {
    if (!point) return;
    event.preventDefault();
    context.beginPath();
    context.moveTo(...point);
    point = place(event);
    context.lineTo(...point);
    context.stroke();
  };
  Object.assign(context, {strokeStyle: "white", lineWidth: canvas.width / 9, lineCap: "round", lineJoin: "round"});
  clear();
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    point = place(event);
    stroke(event);
  });
  canvas.addEventListener("pointermove", stroke);
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, () => {
      if (!point) return;
      point = null;
      queue(classifyDrawing);
    });
  }
  $("clear").addEventListener("click", () => {
    clear();
    clearResult();
    say("Draw something.");
  });
  $("pad").hidden = $("clear").hidden = false;
}

async function start() {
  await loadRuntime();
  let accelerators = ["wasm"];
  if (await navigator.gpu?.requestAdapter().catch(() => null)) accelerators = ["webgpu", "wasm"];
  $("accelerator").replaceChildren(...accelerators.map(name => new Option(NAMES[name], name)));
  const wanted = location.hash.slice(1);
  await use(accelerators.includes(wanted) ? wanted : accelerators[0]);
  $("accelerator").disabled = false;
}

$("file").addEventListener("change", event => {
  const [file] = event.target.files;
  if (file) queue(() => classifyFile(file));
  event.target.value = ""; // so that the same file can be chosen again
});
document.addEventListener("paste", event => {
  const file = firstImage(event.clipboardData);
  if (file) queue(() => classifyFile(file));
});
document.addEventListener("dragover", event => {
  event.preventDefault();
  $("drop").classList.add("over");
});
document.addEventListener("dragleave", () => $("drop").classList.remove("over"));
document.addEventListener("drop", event => {
  event.preventDefault();
  $("drop").classList.remove("over");
  const file = firstImage(event.dataTransfer);
  if (file) queue(() => classifyFile(file));
});
$("camera").addEventListener("click", () => queue(startCamera));
$("shutter").addEventListener("click", () => queue(takePicture));
$("overlay").addEventListener("change", () => {
  $("attention").hidden = !$("overlay").checked || (view.follows ? $("frame") : $("picture")).hidden;
});
$("threshold").addEventListener("input", () => {
  if (window.result) window.result.objects = view.show(window.result.outputs, window.result.picture);
});
$("accelerator").addEventListener("change", event => queue(async () => {
  await use(event.target.value);
  if (window.result) await classify(window.result.picture);
}));
stopCamera(); // shows the button where there is a camera
if (page.drawing) prepareDrawing();
window.ready = queue(start);
