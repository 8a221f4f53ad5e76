// The points of an object: decoded from heat maps, and drawn over the picture. The object is the whole picture, or
// what is in a box that is drawn over it. `crops.py` and `estimating.py` of `keras_vit.tasks.keypoints` have the formulas.

const view = {
  follows: true,
  preprocess(picture, {image_size, channels}) {
    const [left, top, across, down] = windowOf(picture, boxOf(picture), image_size), [height, width] = image_size;
    return resampled(picture, weightsOf(top, down, height), weightsOf(left, across, width), channels);
  },
  show({heat_maps: maps}, picture) {
    const threshold = $("threshold").valueAsNumber, box = boxOf(picture);
    const points = pointsOf(maps, windowOf(picture, box, page.preprocessing.image_size));
    const isSure = ({score}) => score >= threshold, sure = points.filter(isSure);
    // Only points that are drawn have a color in the list.
    showRows(points.map((point, i) => [page.labels[i], inside(point.score, 1), percent(point.score), isSure(point) && page.colors[i]]));
    showPoints(sure, box, picture);
    $("threshold-choice").hidden = false;
    $("threshold-value").textContent = `${percent(threshold)}: ${sure.length}`;
    hint.hidden = Boolean($("video").srcObject);
    return points;
  },
};

const MARGIN = 1.25; // of the window around a box, as a factor of its sides
const [SIGMA, RADIUS] = [0.8, 5]; // of the blur before the refinement, in pixels
const [LEAST, MOST] = [1e-3, 50]; // of the values whose logarithms are taken
const EPSILON = 2 ** -23; // keeps the matrix of a flat map regular
const LINE = 3; // the width of the skeleton's lines, in pixels of the screen
const CLICK = 8; // pixels of the screen; a box of a smaller side is a click

const inside = (value, most) => Math.min(Math.max(value, 0), most);

/** Left, top, width and height of the part of a picture that the model receives, by the centers of pixels. */
function windowOf({width, height}, box, [rows, columns]) {
  const [left, top, right, bottom] = box ?? [0, 0, width, height], margin = box ? MARGIN : 1;
  const wide = Math.max(right - left, (bottom - top) * columns / rows);
  const [across, down] = [wide * margin, wide / (columns / rows) * margin];
  return [(left + right - across) / 2, (top + bottom - down) / 2, across, down];
}

/** The bilinear weights of `count` pixels from edge to edge of a window, of an axis. */
function weightsOf(first, extent, count) {
  return Array.from({length: count}, (_, i) => {
    const place = first + extent / 2 + (i - (count - 1) / 2) * extent / Math.max(count - 1, 1);
    const before = Math.floor(place), weights = [before + 1 - place, place - before];
    return [Math.max(before, 0), weights.slice(Math.max(-before, 0))];
  });
}

/** The points of heat maps, `x` and `y` in pixels of the picture, and their scores. */
function pointsOf(maps, [left, top, across, down]) {
  const scale = Math.sqrt(maps.length / page.labels.length / (page.grid[0] * page.grid[1]));
  const size = page.grid.map(side => side * scale);
  return decoded(maps, size, page.labels.length).map(({x, y, score}, number) => ({
    number,
    x: left + x / Math.max(size[1] - 1, 1) * across + 0.5,
    y: top + y / Math.max(size[0] - 1, 1) * down + 0.5,
    score,
  }));
}

/** Points in pixels of heat maps (rows, columns, points), by their centers: the largest values, moved by a Newton step. */
function decoded(maps, [rows, columns], count) {
  return Array.from({length: count}, (_, point) => {
    const map = Float32Array.from({length: rows * columns}, (_, i) => maps[i * count + point]);
    const best = map.reduce((best, value, i) => value > map[best] ? i : best, 0);
    const [row, column] = [Math.floor(best / columns), best % columns];
    const near = logsAround(map, row, column, rows, columns), center = near(0, 0);
    const right = (near(0, 1) - near(0, -1)) / 2, down = (near(1, 0) - near(-1, 0)) / 2;
    const across = near(0, 1) - 2 * center + near(0, -1) + EPSILON;
    const along = near(1, 0) - 2 * center + near(-1, 0) + EPSILON;
    const mixed = (near(1, 1) - near(0, 1) - near(1, 0) + 2 * center - near(0, -1) - near(-1, 0) + near(-1, -1)) / 2;
    const determinant = across * along - mixed ** 2;
    const step = value => determinant ? value / determinant : 0;
    const x = column - step(along * right - mixed * down), y = row - step(across * down - mixed * right);
    return {x, y, score: map[best]};
  });
}

/** The logarithms of the blurred map at the pixel and its neighbors, of which those beyond an edge are the edge's. */
function logsAround(map, row, column, rows, columns) {
  const offsets = Array.from({length: 2 * RADIUS + 1}, (_, i) => i - RADIUS);
  const heights = offsets.map(offset => Math.exp(-0.5 / SIGMA ** 2 * offset ** 2)), sum = heights.reduce((a, b) => a + b);
  // Mirrored at the edges, and rounded to float32 after each axis, as SciPy does.
  const mirrored = (i, side) => (i = (i % (2 * side) + 2 * side) % (2 * side), Math.min(i, 2 * side - 1 - i));
  const blur = value => float32(offsets.reduce((total, offset, i) => total + value(offset) * heights[i] / sum, 0));
  const blurred = (y, x) => blur(right => blur(down => map[mirrored(y + down, rows) * columns + mirrored(x + right, columns)]));
  const logs = [-1, 0, 1].map(down => [-1, 0, 1].map(right => {
    const value = blurred(inside(row + down, rows - 1), inside(column + right, columns - 1));
    return Math.log(Math.min(Math.max(value, LEAST), MOST));
  }));
  return (down, right) => logs[down + 1][right + 1];
}

/** Draws the box, points, and the lines of the skeleton between these. */
function showPoints(points, box, picture) {
  const {context, ratio} = sharpOverlay(picture), {canvas} = context, line = LINE * ratio;
  const at = (x, y) => [x * canvas.width / picture.width, y * canvas.height / picture.height];
  const places = new Map(points.map(({number, x, y}) => [number, at(x, y)]));
  // A light edge shows dark colors on dark pictures.
  const stroke = (color, path) => {
    for (const [strokeStyle, lineWidth] of [["rgb(255 255 255 / 0.6)", 2 * line], [color, line]]) {
      Object.assign(context, {strokeStyle, lineWidth, lineCap: "round"});
      context.stroke(path);
    }
  };
  if (box) {
    const path = new Path2D();
    path.rect(...at(...box), ...at(box[2] - box[0], box[3] - box[1]));
    stroke("black", path);
  }
  for (const [first, second] of page.skeleton) {
    if (!places.has(first) || !places.has(second)) continue;
    const path = new Path2D();
    path.moveTo(...places.get(first));
    path.lineTo(...places.get(second));
    stroke(`rgb(${page.colors[second]})`, path);
  }
  for (const [number, place] of places) {
    const path = new Path2D();
    path.arc(...place, 1.5 * line, 0, 2 * Math.PI);
    stroke("black", path);
    context.fillStyle = `rgb(${page.colors[number]})`;
    context.fill(path);
  }
}

let chosen = null; // the last box: {picture, box}
const boxOf = picture => chosen?.picture === picture ? chosen.box : null;
const hint = document.createElement("span");

/** Lets a box be drawn over the picture; a click takes the whole picture again. */
function prepareBoxes() {
  const frame = $("frame");
  let start = null; // {picture, x, y}
  const place = ({clientX, clientY}, {width, height}) => {
    const area = frame.getBoundingClientRect();
    return [inside((clientX - area.left) / area.width, 1) * width, inside((clientY - area.top) / area.height, 1) * height];
  };
  const boxTo = event => {
    const [x, y] = place(event, start.picture), least = CLICK * start.picture.width / frame.clientWidth;
    const box = [Math.min(x, start.x), Math.min(y, start.y), Math.max(x, start.x), Math.max(y, start.y)];
    return Math.min(box[2] - box[0], box[3] - box[1]) < least ? null : box;
  };
  hint.className = "hint";
  hint.textContent = "A box drawn over the picture chooses an object, and a click the whole picture.";
  $("threshold-choice").append(hint);
  hint.style.display = "block";
  Object.assign(frame.style, {touchAction: "none", cursor: "crosshair"});
  frame.addEventListener("pointerdown", event => {
    if (!window.result || $("video").srcObject) return;
    frame.setPointerCapture(event.pointerId);
    const {picture} = window.result, [x, y] = place(event, picture);
    start = {picture, x, y};
  });
  frame.addEventListener("pointermove", event => {
    if (start) showPoints([], boxTo(event), start.picture);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    frame.addEventListener(kind, event => {
      if (!start) return;
      const {picture} = start, box = kind === "pointerup" ? boxTo(event) : boxOf(picture);
      start = null;
      queue(async () => {
        if (window.result?.picture !== picture) return;
        window.result = null; // It is not that of this box.
        chosen = {picture, box};
        await classify(picture);
      });
    });
  }
}
document.addEventListener("DOMContentLoaded", prepareBoxes);
