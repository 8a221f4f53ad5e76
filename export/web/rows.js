// Class scores or values of a picture: a list of the best scores or of all values, and attention rollout over the picture.

const TOP = 5;

const view = {
  follows: false,
  show(outputs, picture) {
    showRows(bestRows(outputs));
    showAttention(outputs.rollout, picture);
  },
};

/** The rows of the list: the best classes first, or all values. */
function bestRows({probabilities, values}) {
  if (values) return values.map((value, i) => [page.labels[i] ?? `value ${i}`, null, value.toPrecision(4)]);
  const rows = probabilities.map((value, i) => [page.labels[i], value, percent(value)]);
  return rows.sort((a, b) => b[1] - a[1]).slice(0, TOP);
}

/** Draws how much each patch contributed over the part of the picture that the model saw. */
function showAttention(rollout, picture) {
  $("overlay-choice").hidden = true;
  if (!rollout) return;
  const [rows, columns] = page.grid, {image_size: [height, width]} = page.preprocessing;
  const {size, top, left} = resizedWindow(picture, page.preprocessing);
  const grid = new OffscreenCanvas(columns, rows), largest = Math.max(...rollout) || 1;
  const shade = new ImageData(columns, rows);
  rollout.forEach((value, i) => { shade.data[4 * i + 3] = 210 * (1 - value / largest); });
  grid.getContext("2d").putImageData(shade, 0, 0);
  const canvas = $("attention"), context = canvas.getContext("2d");
  [canvas.width, canvas.height] = [size[1], size[0]];
  context.fillStyle = "rgb(0 0 0 / 0.82)"; // What was cropped away is as dark as what gets no attention.
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.clearRect(left, top, width, height);
  context.drawImage(grid, left, top, width, height);
  showOverlay();
}
