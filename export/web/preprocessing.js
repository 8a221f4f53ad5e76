// Pictures as `keras_vit.preprocessing.Preprocessing` makes them, with the same pixels: its `resizing.py` has
// the formulas. Positions are rounded to float32 where TensorFlow rounds them.

const float32 = Math.fround;

// By interpolation: the radius of the kernel in pixels, and the weight of a pixel at a distance.
const KERNELS = {
  bilinear: [1, x => Math.max(1 - x, 0)],
  bicubic: [2, x => x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((2.5 - 0.5 * x) * x - 4) * x + 2 : 0],
};

/** Rounds halves to even numbers, as NumPy does. */
function roundEven(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + low % 2 : Math.round(x);
}

/** Of an axis resized from `old` to `size` pixels, for each of `count` pixels from `start`: [first, weights]. */
function axisWeights(old, size, start, count, {interpolation, antialias}) {
  const pixels = Array.from({length: count}, (_, i) => float32(start + i + 0.5));
  if (interpolation === "nearest") {
    return pixels.map(x => [Math.min(Math.floor(float32(x * float32(old / size))), old - 1), [1]]);
  }
  const [radius, kernel] = KERNELS[interpolation];
  const scale = antialias ? float32(1 / float32(size / old)) : float32(old / size);
  const width = antialias ? Math.max(scale, 1) : 1;
  return pixels.map(x => {
    const center = float32(x * scale);
    const first = Math.max(Math.ceil(center - radius * width - 0.5), 0);
    const last = Math.min(Math.floor(center + radius * width - 0.5), old - 1);
    const weights = Array.from({length: last - first + 1}, (_, i) => {
      const distance = Math.abs(first + i + 0.5 - center) / width;
      // Without antialiasing TensorFlow has a table of the cubic's weights.
      return kernel(interpolation === "bicubic" && !antialias ? roundEven(distance * 1024) / 1024 : distance);
    });
    const sum = weights.reduce((a, b) => a + b, 0);
    return [first, weights.map(weight => weight / sum)];
  });
}

/** The (height, width) of a picture with the black below it or at its right. */
function paddedSize({height, width}, {image_size: [rows, columns], resize}) {
  if (resize !== "pad") return [height, width];
  return [Math.max(height, Math.ceil(width * rows / columns)), Math.max(width, Math.ceil(height * columns / rows))];
}

/** Whether the center of the resized picture is cropped. */
function crops({resize}) {
  return resize === "crop" || resize === "squash_crop";
}

/** The size of the whole picture when it is resized, and the top left corner of the part that is kept. */
function resizedWindow(picture, options) {
  const {image_size: [height, width], resize, antialias, crop_rounding, before_crop} = options;
  if (!crops(options)) {
    const [rows, columns] = paddedSize(picture, options);
    return {size: [height * picture.height / rows, width * picture.width / columns], top: 0, left: 0};
  }
  const sides = [picture.height, picture.width];
  const rounded = antialias ? Math.floor : roundEven;
  const covering = sides.map(side => Math.max(...before_crop.map((least, i) => rounded(side * least / sides[i]))));
  const size = resize === "crop" ? covering : before_crop;
  const half = crop_rounding === "even" ? roundEven : Math.floor;
  return {size, top: half((size[0] - height) / 2), left: half((size[1] - width) / 2)};
}

/** Adds a row of an `ImageData` times a weight to `sum`: pixels in 0…255 without alpha; gray by ITU-R BT.601. */
function addRow(sum, {data, width}, y, channels, weight) {
  for (let from = 4 * width * y, to = 0; to < sum.length; from += 4) {
    const [red, green, blue] = [data[from], data[from + 1], data[from + 2]];
    if (channels === 1) {
      sum[to++] += weight * float32(0.299 * red + 0.587 * green + 0.114 * blue);
    } else {
      sum[to++] += weight * red;
      sum[to++] += weight * green;
      sum[to++] += weight * blue;
    }
  }
}

/**
 * The model's input for a picture.
 *
 * `picture` is an `ImageData`, and `options` those of the model's `Preprocessing`. Returns a Float32Array
 * (height, width, channels) in [0, 1]; the exported model normalizes it.
 */
function preprocess(picture, options) {
  const {image_size: [height, width], channels} = options;
  const {size, top, left} = resizedWindow(picture, options);
  const [tall, wide] = paddedSize(picture, options);
  const [resizedTall, resizedWide] = crops(options) ? size : [height, width];
  const rows = axisWeights(tall, resizedTall, top, height, options);
  const columns = axisWeights(wide, resizedWide, left, width, options);
  return resampled(picture, rows, columns, channels);
}

/** The same by the weights of the input's rows and columns: for each [first, weights] of pixels, black outside. */
function resampled(picture, rows, columns, channels) {
  const width = columns.length;
  const input = new Float32Array(rows.length * width * channels);
  const row = new Float64Array(picture.width * channels);
  rows.forEach(([first, weights], y) => {
    row.fill(0);
    weights.forEach((weight, i) => {
      if (first + i < picture.height) addRow(row, picture, first + i, channels, weight); // else padding
    });
    columns.forEach(([first, weights], x) => {
      for (let channel = 0; channel < channels; channel++) {
        let sum = 0;
        weights.forEach((weight, i) => { sum += first + i < picture.width ? weight * row[(first + i) * channels + channel] : 0; });
        // Cubics overshoot, and Pillow clips.
        input[(y * width + x) * channels + channel] = float32(Math.min(Math.max(sum, 0), 255)) / 255;
      }
    });
  });
  return input;
}
