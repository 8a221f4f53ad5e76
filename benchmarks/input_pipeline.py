"""Throughput of the training input compared with the official pipeline's; writes INPUT_PIPELINE.md."""

import datetime
import io
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from machine import processor, versions
from PIL import Image
from report import table

ROUNDS = 7
BATCHES = 40  # per round, after half as many for warm-up
BATCH_SIZE = 64
IMAGES = 256
HEIGHT, WIDTH, SIZE = 375, 500, 224  # ImageNet's most frequent size
QUALITIES = (75, 92)  # JPEG quality; ImageNet's files have 110 kB on average


def main():
    rows = [row for quality in QUALITIES for row in report(quality)]
    text = _table(rows)
    print(text)
    pathlib.Path(__file__).with_name("INPUT_PIPELINE.md").write_text(text)


def report(quality):
    """Time each pipeline in interleaved rounds of one process.

    Args:
        quality: JPEG quality.

    Returns:
        A list of dicts: `pipeline`, `kilobytes` per file, `speeds` (images per second, of each round), their
        `median`, `cpu` (milliseconds of all cores per image, the median) and `ratio` to the official
        pipeline's median.
    """
    pipelines = {"official": official_pipeline, "keras_vit": our_pipeline}
    timed = {name: [] for name in pipelines}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(folder, IMAGES, quality)
        kilobytes = sum(os.path.getsize(path) for path in paths) / len(paths) / 1000
        for _ in range(ROUNDS):
            for name, pipeline in pipelines.items():
                timed[name].append(speed(pipeline(paths, BATCH_SIZE)))
    rows = []
    for name, values in timed.items():
        speeds, cpu = zip(*values)
        rows.append({"pipeline": name, "kilobytes": kilobytes, "speeds": speeds})
        rows[-1] |= {"median": statistics.median(speeds), "cpu": statistics.median(cpu)}
        rows[-1]["ratio"] = rows[-1]["median"] / rows[0]["median"]
    return rows


def speed(data, batches=BATCHES, warm_up=BATCHES // 2):
    """Images per second and CPU milliseconds per image, after a warm-up that fills the buffers."""
    stream = iter(data)
    for _ in range(warm_up):
        next(stream)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(batches):
        next(stream)
    images = batches * BATCH_SIZE
    return images / (time.perf_counter() - wall), (time.process_time() - cpu) / images * 1e3


def official_pipeline(paths, batch_size):
    """Training batches from paths as in `vit_jax/input_pipeline.py`."""

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
    from keras_vit.data.samples import Samples

    return batches_of(Samples(tuple(paths), (0,) * len(paths)), batch_size)


def batches_of(samples, batch_size):
    """keras_vit's training batches of some samples."""
    from keras_vit import Preprocessing
    from keras_vit.data import Augmentation
    from keras_vit.data.batches import training_batches

    return training_batches(
        samples,
        Preprocessing(SIZE),
        batch_size,
        seed=0,
        steps=2**31,
        augmentation=Augmentation(crop_area=(0.05, 1.0), flip=True),
        num_classes=1000,
    )


def write_photographs(folder, count, quality):
    """Write JPEGs with detail at several scales and some noise; returns their paths."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        pixels = np.zeros((HEIGHT, WIDTH, 3))
        for side in (125, 25, 5):  # coarse to fine, with decreasing contrast
            blocks = rng.normal(128, 25 + side / 3, (HEIGHT // side, WIDTH // side, 3)).clip(0, 255)
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
    found = versions(("keras_vit", "keras", "tensorflow", "numpy"))
    software = ", ".join(f"{name} {version}" for name, version in found.items())
    lines = []
    for row in rows:
        span = f"{min(row['speeds']):.0f} to {max(row['speeds']):.0f}"
        first = f"{row['kilobytes']:.0f} kB", row["pipeline"], f"{row['median']:.0f}", span
        lines.append((*first, f"{row['cpu']:.2f}", f"{row['ratio']:.2f}"))
    parts = [
        "# The training input",
        f"`python benchmarks/input_pipeline.py`, {datetime.date.today()}: {software}, {processor()}, "
        f"{os.cpu_count()} cores.",
        f"{IMAGES} JPEG files of {WIDTH}×{HEIGHT} → random crop of 5 to 100 % → {SIZE}×{SIZE}, flip, scale; "
        f"batches of {BATCH_SIZE}. The official pipeline is that of `vit_jax/input_pipeline.py`: shuffle "
        f"paths, read, decode whole, crop. Medians of {ROUNDS} interleaved rounds of {BATCHES} batches in "
        "one process on the same cores; only ratios within one run are meaningful.",
        table(("files", "pipeline", "images/s", "lowest to highest", "CPU ms per image", "ratio"), lines),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
