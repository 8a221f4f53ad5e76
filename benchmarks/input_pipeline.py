"""Time the training input against the official pipeline's; print a table and write INPUT_PIPELINE.md."""

import datetime
import importlib.metadata
import io
import os
import pathlib
import platform
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from machine import processor
from PIL import Image

ROUNDS = 7
BATCHES = 40  # in a round, after half as many to warm up
BATCH_SIZE = 64
IMAGES = 256
HEIGHT, WIDTH, SIZE = 375, 500, 224  # ImageNet's most frequent size
QUALITIES = (75, 92)  # of the JPEGs; ImageNet's have about 110 kB on average


def main():
    rows = [row for quality in QUALITIES for row in report(quality)]
    text = _table(rows)
    print(text)
    pathlib.Path(__file__).with_name("INPUT_PIPELINE.md").write_text(text)


def report(quality=QUALITIES[-1], rounds=ROUNDS, batches=BATCHES, batch_size=BATCH_SIZE, images=IMAGES):
    """How fast each pipeline is, in interleaved rounds of one process on the same cores.

    Args:
        quality: Of the JPEGs.
        rounds, batches, batch_size: How much is timed.
        images: How many files there are.

    Returns:
        A list of dicts: `pipeline`, `kilobytes` of a file, `speeds` (images a second, of each round), their
        `median`, `cpu` (milliseconds of all cores for an image, the median) and `ratio`, of the median to the
        official pipeline's. Only ratios within one run mean something.
    """
    pipelines = {"official": official_pipeline, "keras_vit": our_pipeline}
    timed = {name: [] for name in pipelines}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(folder, images, quality)
        kilobytes = sum(os.path.getsize(path) for path in paths) / len(paths) / 1000
        for _ in range(rounds):
            for name, pipeline in pipelines.items():
                timed[name].append(_timed(pipeline(paths, batch_size), batches, batch_size))
    rows = []
    for name, values in timed.items():
        speeds, cpu = zip(*values)
        rows.append({"pipeline": name, "kilobytes": kilobytes, "speeds": speeds})
        rows[-1] |= {"median": statistics.median(speeds), "cpu": statistics.median(cpu)}
        rows[-1]["ratio"] = rows[-1]["median"] / rows[0]["median"]
    return rows


def _timed(data, batches, batch_size):
    """Images a second, and CPU milliseconds an image, once buffers are full and the threads have settled."""
    stream = iter(data)
    for _ in range(max(batches // 2, 1)):
        next(stream)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(batches):
        next(stream)
    images = batches * batch_size
    return images / (time.perf_counter() - wall), (time.process_time() - cpu) / images * 1e3


def official_pipeline(paths, batch_size):
    """Paths to training batches as `vit_jax/input_pipeline.py` makes them."""

    def sample(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.slice(image, begin, size)
        image.set_shape([None, None, 3])
        image = tf.image.resize(image, [SIZE, SIZE])
        if tf.random.uniform(shape=[]) > 0.5:
            image = tf.image.flip_left_right(image)
        return (image - 127.5) / 127.5, tf.one_hot(0, 1000)

    data = tf.data.Dataset.from_tensor_slices(paths).repeat().shuffle(min(len(paths), 50_000))
    data = data.map(sample, tf.data.AUTOTUNE).batch(batch_size, drop_remainder=True)
    return data.prefetch(1)


def our_pipeline(paths, batch_size):
    from keras_vit import Preprocessing
    from keras_vit.data.augmentation import Augmentation
    from keras_vit.data.batches import training_batches
    from keras_vit.data.samples import Samples

    return training_batches(
        Samples(tuple(paths), (0,) * len(paths)),
        Preprocessing(SIZE),
        batch_size,
        seed=0,
        steps=2**31,
        augmentation=Augmentation(crop_area=(0.05, 1.0), flip=True),
        num_classes=1000,
    )


def write_photographs(folder, count, quality):
    """Write JPEGs with detail of several sizes and some noise; their paths."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        pixels = np.zeros((HEIGHT, WIDTH, 3))
        for cell in (125, 25, 5):  # coarse to fine, each with less contrast
            blocks = rng.normal(128, 25 + cell / 3, (HEIGHT // cell, WIDTH // cell, 3)).clip(0, 255)
            image = Image.fromarray(blocks.astype("uint8")).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            pixels += np.asarray(image) / 3
        pixels += rng.normal(0, 8, (HEIGHT, WIDTH, 1))
        path = os.path.join(folder, f"{number}.jpg")
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(file, "JPEG", quality=quality)
        pathlib.Path(path).write_bytes(file.getvalue())
        paths.append(path)
    return paths


def _table(rows):
    packages = ("keras_vit", "keras", "tensorflow", "numpy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    lines = [
        "# The training input",
        "",
        f"`python benchmarks/input_pipeline.py`, {datetime.date.today()}: {versions}, Python "
        f"{platform.python_version()}, {processor()}, {os.cpu_count()} cores.",
        "",
        f"{IMAGES} JPEG files of {WIDTH}×{HEIGHT} → random crop of 5 to 100 % → {SIZE}×{SIZE}, flip, scale; "
        f"batches of {BATCH_SIZE}. The official pipeline is that of `vit_jax/input_pipeline.py`: shuffle "
        f"paths, read, decode whole, crop. Medians of {ROUNDS} interleaved rounds of {BATCHES} batches in "
        "one process on the same cores; only ratios within one run mean something.",
        "",
        "| files | pipeline | images/s | lowest to highest | CPU ms an image | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        span = f"{min(row['speeds']):.0f} to {max(row['speeds']):.0f}"
        cells = f"{row['kilobytes']:.0f} kB", row["pipeline"], f"{row['median']:.0f}", span
        lines.append("| " + " | ".join((*cells, f"{row['cpu']:.2f}", f"{row['ratio']:.2f}")) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
