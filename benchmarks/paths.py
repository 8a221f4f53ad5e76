"""Throughput of `Preprocessing` for image files compared with `tf.data` and transformers; writes PATHS.md."""

import datetime
import os
import pathlib
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from input_pipeline import HEIGHT, WIDTH, write_photographs
from machine import processor, versions
from report import table
from systems import declare_torchvision

ROUNDS, IMAGES, QUALITY = 9, 64, 92
REPEATS = 16  # of the files, so that the start of a pipeline is a small part
SIZE, PATCH, PATCHES = 224, 16, 256
PACKAGES = ("keras_vit", "tensorflow", "numpy", "pillow", "torchvision", "transformers")


def main():
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(path) for path in write_photographs(folder, IMAGES, QUALITY)]
        squash = interleaved({"tf.data": tf_data, "keras_vit": arrays}, paths * REPEATS)
        packing = interleaved({"keras_vit": packed, **transformers_processors()}, paths)
    text = page(squash, packing)
    print(text)
    pathlib.Path(__file__).with_name("PATHS.md").write_text(text)


def interleaved(systems, paths):
    """dict from the name of each system to its seconds of a round; the first round does not count."""
    seconds = {name: [] for name in systems}
    runs = {name: system(paths) for name, system in systems.items()}
    for count in range(ROUNDS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if count:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def tf_data(paths):
    """The images of an evaluation, as `evaluate` reads them, in batches."""
    import numpy as np

    from keras_vit import Preprocessing
    from keras_vit.data.batches import evaluation_batches
    from keras_vit.data.samples import Samples

    samples = Samples(tuple(map(str, paths)), (0,) * len(paths))
    return lambda: [
        np.asarray(images) for images, _ in evaluation_batches(samples, Preprocessing(SIZE), IMAGES)
    ]


def arrays(paths):
    """The images of `classify` and `keras-vit predict`."""
    from keras_vit import Preprocessing

    return lambda: [*Preprocessing(SIZE).batches(paths, IMAGES)]


def packed(paths):
    from keras_vit import Preprocessing

    prepare = Preprocessing(None, antialias=True, patch_size=PATCH, max_num_patches=PATCHES)
    return lambda: prepare(paths)


def transformers_processors():
    """The two image processors of SigLIP 2 for images of any aspect ratio, if they are installed."""
    try:
        declare_torchvision()
        from transformers import Siglip2ImageProcessor, Siglip2ImageProcessorPil
    except ImportError:
        return {}

    def system(processor_class):
        from PIL import Image

        processor = processor_class(patch_size=PATCH, max_num_patches=PATCHES)
        return lambda paths: (
            lambda: processor(images=[Image.open(path).convert("RGB") for path in paths], return_tensors="pt")
        )

    return {
        "transformers, torchvision": system(Siglip2ImageProcessor),
        "transformers, Pillow": system(Siglip2ImageProcessorPil),
    }


def page(squash, packing):
    found = versions(PACKAGES)
    software = ", ".join(f"{name} {version}" for name, version in found.items())
    parts = [
        "# Images given as files",
        f"`python benchmarks/paths.py`, {datetime.date.today()}: {software}, {processor()}, "
        f"{os.cpu_count()} cores.",
        f"{IMAGES} JPEG files of {WIDTH}×{HEIGHT}, read, decoded, resized and scaled in a call. Medians of "
        f"{ROUNDS} interleaved rounds in one process; only ratios within one table are meaningful.",
        f"To {SIZE}×{SIZE}, as `classify` and `keras-vit predict` do, and as `evaluate` does in `tf.data`:",
        _rows(squash, IMAGES * REPEATS),
        f"Packed into at most {PATCHES} patches of {PATCH}×{PATCH} (NaFlex):",
        _rows(packing, IMAGES),
    ]
    return "\n\n".join(parts) + "\n"


def _rows(seconds, images):
    ours = statistics.median(seconds["keras_vit"])
    rows = []
    for name, values in seconds.items():
        speeds = [images / value for value in values]
        span = f"{min(speeds):.0f} to {max(speeds):.0f}"
        median = statistics.median(values)
        rows.append((name, f"{images / median:.0f}", span, f"{median / ours:.2f}"))
    return table(("system", "images/s", "lowest to highest", "time ÷ keras_vit's"), rows)


if __name__ == "__main__":
    main()
