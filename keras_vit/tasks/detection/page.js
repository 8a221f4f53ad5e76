// The objects of a detector: decoded from its outputs, and drawn over the picture.

const view = {
  follows: true,
  show(outputs, picture) {
    const threshold = $("threshold").valueAsNumber;
    const objects = objectsOf(outputs, picture, page.preprocessing, threshold);
    showRows(objects.map(({number, score}) => [page.labels[number], score, percent(score), page.colors[number]]));
    showObjects(objects, picture);
    $("threshold-choice").hidden = false;
    $("threshold-value").textContent = `${percent(threshold)}: ${objects.length}`;
    return objects;
  },
};

const MAX_OBJECTS = 100; // in a picture, as `detect` of `keras_vit.models.detection` has by default
const TEXT = 14; // the height of an object's text, in pixels of the screen

/**
 * The pairs of a patch and a class with at least this score, by decreasing score.
 *
 * `boxes` are (patches, 4): left, top, right and bottom, as fractions of the model's input; `logits` and `scores`
 * are (patches, classes). Returns objects of `box`, in pixels of the picture, `score` and `number`, the class.
 */
function objectsOf({boxes, logits, scores}, picture, options, threshold) {
  const classes = logits.length / (boxes.length / 4), best = [];
  for (let i = 0; i < scores.length; i++) if (scores[i] >= threshold) best.push(i);
  best.sort((a, b) => logits[b] - logits[a]);
  const {size, top, left} = resizedWindow(picture, options), {image_size: [height, width]} = options;
  const inside = (value, side) => Math.min(Math.max(value, 0), side);
  const x = value => inside((value * width + left) * picture.width / size[1], picture.width);
  const y = value => inside((value * height + top) * picture.height / size[0], picture.height);
  return best.slice(0, MAX_OBJECTS).map(i => {
    const patch = Math.floor(i / classes), box = boxes.slice(4 * patch, 4 * patch + 4);
    return {box: [x(box[0]), y(box[1]), x(box[2]), y(box[3])], score: scores[i], number: i % classes};
  }).filter(({box}) => box[2] > box[0] && box[3] > box[1]); // not of padding
}

/** Draws the boxes, classes and scores over the picture. */
function showObjects(objects, picture) {
  const {width, height} = picture, {context, ratio} = sharpOverlay(picture), {canvas} = context, line = 2 * ratio;
  Object.assign(context, {font: `${TEXT * ratio}px system-ui, sans-serif`, textBaseline: "top"});
  // The best are drawn last, over the others.
  for (const {box, score, number} of [...objects].reverse()) {
    const [left, top, right, bottom] = box.map((v, i) => i % 2 ? v * canvas.height / height : v * canvas.width / width);
    const color = page.colors[number], text = `${page.labels[number]} ${percent(score)}`;
    context.fillStyle = `rgb(${color})`;
    // A light edge shows dark colors on dark pictures.
    for (const [style, lineWidth] of [["rgb(255 255 255 / 0.6)", 2 * line], [context.fillStyle, line]]) {
      Object.assign(context, {strokeStyle: style, lineWidth});
      context.strokeRect(left, top, right - left, bottom - top);
    }
    const words = context.measureText(text).width + 2 * line, tall = TEXT * ratio + line;
    const [x, y] = [Math.max(Math.min(left, canvas.width - words), 0), Math.max(top - tall, 0)];
    context.fillRect(x, y, words, tall);
    context.fillStyle = color[0] + color[1] + color[2] > 380 ? "black" : "white";
    context.fillText(text, x + line, y + line / 2);
  }
}
