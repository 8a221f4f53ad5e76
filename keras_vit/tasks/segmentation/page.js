// A class for each pixel: the fractions of the classes, and their colors over the picture.

const OPACITY = 128; // of the classes' colors, of 255

const view = {
  follows: true,
  show({class_map: map}) {
    const rows = areas(map).map(([i, value]) => [page.labels[i], value, percent(value), page.colors[i]]);
    showRows(rows.sort((a, b) => b[1] - a[1]));
    showMap(map);
  },
};

/** The classes in a map, and the fractions of its pixels. */
function areas(map) {
  const counts = new Map();
  for (const number of map) counts.set(number, (counts.get(number) ?? 0) + 1);
  return [...counts].map(([number, count]) => [number, count / map.length]);
}

/** Draws the colors of the classes over the picture. */
function showMap(map) {
  const {image_size: [height, width]} = page.preprocessing, canvas = $("attention");
  [canvas.width, canvas.height] = [width, height];
  const colors = new ImageData(width, height), pixels = new DataView(colors.data.buffer);
  // Class 0, whose color is black and which mostly is the background, stays as it is.
  const packed = page.colors.map(([red, green, blue], i) => i && red * 2 ** 24 + green * 2 ** 16 + blue * 2 ** 8 + OPACITY);
  map.forEach((number, i) => pixels.setUint32(4 * i, packed[number]));
  canvas.getContext("2d").putImageData(colors, 0, 0);
  showOverlay();
}
