"""Throughput of embed beside the model's own and a loop of timm, and its memory; writes EMBEDDINGS.md."""

import datetime
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from machine import peak_memory, processor, versions
from PIL import Image
from report import table

VARIANT, TIMM, SIDE, BATCH_SIZE = "S/16", "vit_small_patch16_224", 224, 64
PHOTOGRAPHS, FILES = 256, 20_480  # files with several links
PARTS, ROUNDS = 10, 3  # of 2,048 images; in each round every system computes one part
SMALL, LINKS = (10_000, 100_000, 1_000_000), 50_000  # images of 32×32 pixels, and links to one file
SYSTEMS = "model", "embed", "timm"


def main():
    with tempfile.TemporaryDirectory() as folder:
        speeds = throughput(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        peaks = [(f"{count:,}", *memory(pathlib.Path(folder, str(count)), count)) for count in SMALL]
    text = _page(speeds, peaks)
    print(text)
    pathlib.Path(__file__).with_name("EMBEDDINGS.md").write_text(text)


def throughput(folder):
    """Images per second by system, in interleaved rounds with a process for each measurement."""
    from input_pipeline import write_photographs  # It imports TensorFlow, which timm's process does without.

    (folder / "photographs").mkdir()
    (folder / "images").mkdir()
    photographs = write_photographs(folder / "photographs", PHOTOGRAPHS, 92)
    for number in range(FILES):
        os.link(photographs[number % PHOTOGRAPHS], folder / "images" / f"{number:05}.jpg")
    systems = [name for name in SYSTEMS if name != "timm" or importlib.util.find_spec("timm")]
    speeds = {name: [] for name in systems}
    for part in range(ROUNDS):
        for name in systems:
            speeds[name].append(float(_in_process(f"speed_of_{name}({str(folder)!r}, {part})")[0]))
    return speeds


def speed_of_model(folder, part):
    """Print the images per second of the model on one batch, which is in memory."""
    model = _model()
    images = np.random.default_rng(part).uniform(-1, 1, (BATCH_SIZE, SIDE, SIDE, 3)).astype("float32")
    model.predict_on_batch(images)
    start, batches = time.perf_counter(), FILES // PARTS // BATCH_SIZE
    for _ in range(batches):
        model.predict_on_batch(images)
    print(batches * BATCH_SIZE / (time.perf_counter() - start))


def speed_of_embed(folder, part):
    """Print the images per second of a part, from files to Parquet, with the compilation."""
    from keras_vit.embeddings import plan_embeddings

    source = {"name": f"folder:{folder}/images"}
    out = pathlib.Path(folder, f"out{part}")
    embedder = plan_embeddings(out, "", _model(), source, partitions=PARTS, batch_size=BATCH_SIZE)
    start = time.perf_counter()
    count, _ = embedder.write(part)
    print(count / (time.perf_counter() - start))


def speed_of_timm(folder, part):
    """Print the images per second of timm's model on PyTorch's DataLoader."""
    from systems import declare_torchvision

    declare_torchvision()
    import timm
    import torch

    model = timm.create_model(TIMM, num_classes=0).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    own = FILES // PARTS
    paths = sorted(pathlib.Path(folder, "images").iterdir())[part * own : (part + 1) * own]

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(paths)

        def __getitem__(self, index):
            return transform(Image.open(paths[index]).convert("RGB"))

    loader = torch.utils.data.DataLoader(Images(), BATCH_SIZE, num_workers=os.cpu_count())
    start = time.perf_counter()
    with torch.inference_mode():
        vectors = [model(batch).numpy() for batch in loader]
    print(sum(map(len, vectors)) / (time.perf_counter() - start))


def memory(folder, count):
    """The peak memory in MiB and the CPU seconds of embed on small images with a small model."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        if number % LINKS == 0:
            source = folder / f"{number}.jpg"
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), "uint8")).save(source)
        os.link(source, folder / "images" / f"{number:07}.jpg")
    return _in_process(f"embed_small({str(folder)!r})")


def embed_small(folder):
    """Print the peak memory in MiB and the CPU seconds of all parts."""
    import keras_vit
    from keras_vit.embeddings import embed, plan_embeddings

    model = keras_vit.VisionTransformer(32, 16, 32, 1, 64, 2)
    embed(plan_embeddings(pathlib.Path(folder, "out"), "", model, {"name": f"folder:{folder}/images"}))
    print(f"{peak_memory():,} {time.process_time():.0f}")


def _model():
    import keras_vit

    return keras_vit.VisionTransformer.from_variant(VARIANT, SIDE)


def _in_process(call):
    """The words of the last line that a function of this module prints, in a new process."""
    program = [sys.executable, "-c", f"import embeddings; embeddings.{call}"]
    folder = pathlib.Path(__file__).parent
    output = subprocess.run(program, capture_output=True, text=True, check=True, cwd=folder)
    return output.stdout.splitlines()[-1].split()


def _page(speeds, peaks):
    from input_pipeline import HEIGHT, WIDTH

    found = versions(("keras_vit", "keras", "tensorflow", "pyarrow", "torch", "timm"))
    software = ", ".join(f"{name} {version}" for name, version in found.items())
    own = statistics.median(speeds["model"])
    titles = {
        "model": "the model alone, on images in memory",
        "embed": "`embed`, from JPEG to Parquet",
        "timm": "timm's model on PyTorch's DataLoader, in eager mode",
    }
    rows = [
        (titles[name], f"{statistics.median(of):.1f}", f"{min(of):.1f} to {max(of):.1f}")
        + (f"{statistics.median(of) / own:.2f}",)
        for name, of in speeds.items()
    ]
    return "\n\n".join(
        [
            "# Embeddings",
            f"`python benchmarks/embeddings.py`, {datetime.date.today()}: {software}, {processor()}, "
            f"{os.cpu_count()} cores.",
            f"{VARIANT} on {FILES:,} JPEGs of {WIDTH}×{HEIGHT}, in batches of {BATCH_SIZE}. Medians of "
            f"{ROUNDS} interleaved rounds, in each of which a process for each system computes "
            f"{FILES // PARTS:,} images.",
            table(("system", "images/s", "lowest to highest", "ratio"), rows),
            "`embed` of all images of 32×32 pixels in a folder, with a model of one small block:",
            table(("images", "peak MiB", "CPU seconds"), peaks),
            "",
        ]
    )


if __name__ == "__main__":
    main()
