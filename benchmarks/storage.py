"""Throughput of the training input from files, tar and Parquet, memory, large folders; writes STORAGE.md."""

import datetime
import importlib.util
import io
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from input_pipeline import BATCH_SIZE, HEIGHT, ROUNDS, WIDTH, batches_of, speed, write_photographs
from machine import peak_memory, processor, versions
from PIL import Image
from report import table

PHOTOGRAPHS, SHARDS = 2048, 8
WINDOW = 4096  # records of a shuffle window, of which the order `lanes` reads three ahead
MEASURED = WINDOW // BATCH_SIZE, 3 * WINDOW // BATCH_SIZE  # batches, and those of the warm-up
SMALL = 200_000  # images of 32×32 pixels, of the measurement of memory
SOURCES = ("folder", "webdataset", "parquet")
FILES, CLASSES, LINKS = (10_000, 100_000, 1_000_000), 1000, 64  # of folders; files with several links


def main():
    with tempfile.TemporaryDirectory() as folder:
        rows = throughput(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        peaks = memory(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        starts = [(f"{count:,}", *start(pathlib.Path(folder, str(count)), count)) for count in FILES]
    text = _page(rows, peaks, starts)
    print(text)
    pathlib.Path(__file__).with_name("STORAGE.md").write_text(text)


def throughput(folder):
    """(name, speeds, CPU milliseconds per image) of each kind of storage, in interleaved rounds."""
    (folder / "jpeg").mkdir()
    contents = [
        pathlib.Path(path).read_bytes() for path in write_photographs(folder / "jpeg", PHOTOGRAPHS, 92)
    ]
    names = write(folder, [(content, n % 2) for n, content in enumerate(contents)])
    pipelines = {source: _ours(name) for source, name in names.items()}
    generated = _Generated(folder / "webdataset")
    pipelines["webdataset by from_generator"] = lambda: batches_of(generated, BATCH_SIZE)
    measures = {name: lambda make=make: speed(make(), *MEASURED) for name, make in pipelines.items()}
    if importlib.util.find_spec("timm"):
        measures["webdataset by timm's reader"] = lambda: [
            *map(float, _in_process(f"speed_of_timm({str(folder / 'webdataset')!r})"))
        ]
    timed = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            timed[name].append(measure())
    return [(name, *zip(*values)) for name, values in timed.items()]


def speed_of_timm(folder):
    """Print the images per second of timm's training loader on tar files, and no CPU time of its workers."""
    from systems import declare_torchvision

    declare_torchvision()
    import torch
    from timm.data import create_dataset, create_loader

    files = f"train-{{0..{SHARDS - 1}}}.tar|{1000 * PHOTOGRAPHS}"
    dataset = create_dataset("wds/", root=folder, split=files, is_training=True, batch_size=BATCH_SIZE)
    loader = create_loader(
        dataset,
        224,
        BATCH_SIZE,
        is_training=True,
        scale=(0.05, 1.0),
        color_jitter=0.0,
        num_workers=os.cpu_count(),
        use_prefetcher=False,
        device=torch.device("cpu"),
    )
    print(speed(loader, *MEASURED)[0], "nan")


def memory(folder):
    """The peak memory of a process that reads small images once, in MiB, after a tenth and at the end."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(1000):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), "uint8")).save(file, "JPEG")
        rows.append((file.getvalue(), len(rows) % 2))
    names = write(folder, rows * (SMALL // 1000), sources=SOURCES[1:])
    peaks = []
    for source, name in names.items():
        peaks.append((source, *map(int, _in_process(f"read_once({name!r})"))))
    return peaks


def _in_process(call):
    """The last two words that a function of this module prints, in a new process."""
    output = subprocess.run(
        [sys.executable, "-c", f"import storage; storage.{call}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=pathlib.Path(__file__).parent,
    )
    return output.stdout.split()[-2:]


def start(folder, count):
    """CPU seconds and peak memory in MiB of a run on a folder until its first step, and what that was."""
    rng = np.random.default_rng(0)
    (folder / "links").mkdir(parents=True)
    for number in range(LINKS):
        image = Image.fromarray(rng.integers(0, 256, (32, 32, 3), "uint8"))
        image.save(folder / "links" / f"{number}.jpg")
    for label in range(CLASSES):
        (folder / "images" / f"{label:04}").mkdir(parents=True)
        for number in range(count // CLASSES):
            target = folder / "images" / f"{label:04}" / f"{number}.jpg"
            os.link(folder / "links" / f"{(7 * label + number) % LINKS}.jpg", target)
    options = ("--model", "mu/8", "--image_size", "32", "--total_steps", "100000", "--batch_size", "8")
    command = [sys.executable, "-m", "keras_vit", "finetune", "--dataset", f"folder:{folder}/images"]
    command += [*options, "--workdir", str(folder / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = next(line for line in process.stdout if line.startswith("first step after"))
    peak = peak_memory(process.pid)
    process.kill()
    usage = os.wait4(process.pid, 0)[2]
    return f"{usage.ru_utime + usage.ru_stime:.0f}", peak, line.partition(": ")[2].strip()


def read_once(name):
    """Read the training images of a data set once, and print the peak memory in MiB after a tenth and all."""
    from keras_vit.data.datasets import load_dataset

    samples = load_dataset(name).split("train")
    steps = len(samples) // BATCH_SIZE
    peaks = []
    for step, _ in enumerate(samples.training_records(0, 0, steps, BATCH_SIZE).batch(BATCH_SIZE), 1):
        if step in (steps // 10, steps):
            peaks.append(peak_memory("self"))
    print(*peaks)


def write(folder, rows, sources=SOURCES):
    """Store (JPEG, label) for training in each kind of storage; the names of the data sets."""
    splits = {f"train-{shard}": rows[shard::SHARDS] for shard in range(SHARDS)}
    splits |= dict.fromkeys(("val-0", "test-0"), rows[:BATCH_SIZE])
    for source in sources:
        (folder / source).mkdir()
        for name, own in splits.items():
            WRITERS[source](folder / source / name, own)
    return {source: f"{source}:{folder / source}" for source in sources}


def _write_files(path, rows):
    split, _, shard = path.name.partition("-")
    for number, (content, label) in enumerate(rows):
        file = path.parent / split / str(label) / f"{shard}-{number}.jpg"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(content)


def _write_tar(path, rows):
    with tarfile.open(path.with_suffix(".tar"), "w") as tar:
        for number, (content, label) in enumerate(rows):
            for suffix, member in (("jpg", content), ("cls", str(label).encode())):
                info = tarfile.TarInfo(f"{path.name}-{number}.{suffix}")
                info.size = len(member)
                tar.addfile(info, io.BytesIO(member))


def _write_parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    images, labels = zip(*rows)
    table_of = pyarrow.table({"image": images, "label": labels})
    pyarrow.parquet.write_table(table_of, path.with_suffix(".parquet"), row_group_size=1000)


WRITERS = {"folder": _write_files, "webdataset": _write_tar, "parquet": _write_parquet}


def _ours(name):
    from keras_vit.data.datasets import load_dataset

    samples = load_dataset(name).split("train")
    return lambda: batches_of(samples, BATCH_SIZE)


class _Generated:
    """The package webdataset's samples, shuffled in its buffer, for the same batches as the others."""

    exif, task = True, None

    def __init__(self, folder):
        self.paths = sorted(map(str, folder.glob("train-*.tar")))

    def __len__(self):
        return PHOTOGRAPHS

    def training_records(self, seed, first_step, steps, batch_size, slots=None):
        import webdataset

        def samples():
            data = webdataset.WebDataset(self.paths, shardshuffle=SHARDS, seed=seed).shuffle(1000).repeat()
            for position, sample in enumerate(data):
                yield position, sample["jpg"], int(sample["cls"])

        spec = [tf.TensorSpec((), dtype) for dtype in (tf.int64, tf.string, tf.int32)]
        return tf.data.Dataset.from_generator(samples, output_signature=tuple(spec))


def _page(rows, peaks, starts):
    first = statistics.median(rows[0][1])
    lines = [
        (
            *(name, f"{statistics.median(speeds):.0f}", f"{min(speeds):.0f} to {max(speeds):.0f}"),
            f"{statistics.median(cpu):.2f}".replace("nan", ""),
            f"{statistics.median(speeds) / first:.2f}",
        )
        for name, speeds, cpu in rows
    ]
    found = versions(("keras_vit", "keras", "tensorflow", "pyarrow", "webdataset", "timm"))
    software = ", ".join(f"{name} {version}" for name, version in found.items())
    return (
        "\n\n".join(
            [
                "# Kinds of storage",
                f"`python benchmarks/storage.py`, {datetime.date.today()}: {software}, {processor()}, "
                f"{os.cpu_count()} cores.",
                f"{PHOTOGRAPHS} JPEGs of {WIDTH}×{HEIGHT} in files, {SHARDS} tar files or "
                f"{SHARDS} Parquet files → random crop of 5 to 100 % → 224×224, flip, scale; batches of "
                f"{BATCH_SIZE}. Medians of {ROUNDS} interleaved rounds of {WINDOW:,} images in one process, "
                f"each after a warm-up of {3 * WINDOW:,}, since shuffle windows are read ahead.",
                table(("source", "images/s", "lowest to highest", "CPU ms per image", "ratio"), lines),
                f"Peak memory of a process that reads {SMALL:,} JPEGs of 32×32 pixels once, without "
                "decoding them:",
                table(("source", "MiB after a tenth", "at the end"), peaks),
                f"A run on a folder of JPEGs of 32×32 pixels in {CLASSES:,} classes, until its first step:",
                table(("files", "CPU seconds", "peak MiB", "the time of the clock"), starts),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
