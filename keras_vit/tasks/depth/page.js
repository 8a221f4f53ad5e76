// A depth for each pixel: its colors over the picture, and what they mean.

const RANGE = [0.02, 0.98]; // the quantiles of the first and the last color
const TINY = 2 ** -126; // the least range, that of `depth_colors`: of equal values all others have an end's color
const SAMPLED = 4096; // pixels from which they are computed

const view = {
  follows: true,
  show(outputs, picture) {
    const [name, values] = Object.entries(outputs)[0], isInverse = name === "disparity";
    const [low, high] = rangeOf(values);
    const middle = quantiles(values, [0.5])[0];
    const rows = [["nearest", isInverse ? high : low], ["median", middle], ["farthest", isInverse ? low : high]];
    showRows(rows.map(([label, value]) => [label, null, value.toPrecision(4)]));
    showLegend(isInverse ? [high, low] : [low, high], name);
    showDepth(values, low, high, isInverse);
  },
};

/** Some quantiles of values, from a sample of them. */
function quantiles(values, fractions) {
  const step = Math.ceil(values.length / SAMPLED);
  const sorted = Float32Array.from({length: Math.ceil(values.length / step)}, (_, i) => values[i * step]).sort();
  return fractions.map(fraction => sorted[Math.round(fraction * (sorted.length - 1))]);
}

const rangeOf = values => quantiles(values, RANGE);

/** Draws the colors of the values, the nearest bright, over the picture. */
function showDepth(values, low, high, isInverse) {
  const {image_size: [height, width]} = page.preprocessing, canvas = $("attention");
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height), last = page.colors.length - 1;
  values.forEach((value, i) => {
    const place = Math.min(Math.max((value - low) / Math.max(high - low, TINY), 0), 1);
    image.data.set([...page.colors[Math.round(last * (isInverse ? 1 - place : place))], 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  showOverlay();
}

/** Adds the scale of the colors to the list. */
function showLegend([near, far], name) {
  const item = document.createElement("li"), bar = document.createElement("div");
  bar.className = "bar legend";
  bar.style.background = `linear-gradient(to right, ${page.colors.map(color => `rgb(${color})`)})`;
  bar.role = "img";
  bar.ariaLabel = `The colors of ${name} from ${near.toPrecision(4)} to ${far.toPrecision(4)}`;
  const ends = document.createElement("div");
  ends.className = "name";
  for (const value of [near, far]) {
    const end = document.createElement("span");
    end.className = "end";
    end.textContent = `${name} ${value.toPrecision(4)}`;
    ends.append(end);
  }
  item.append(bar, ends);
  $("classes").prepend(item);
}
