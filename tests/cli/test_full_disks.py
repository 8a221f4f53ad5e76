"""Every command that writes, on a disk that is full at each of its writes."""

import itertools
import json
import re

import pytest
from made.disks import full_disk, largest_file

pytestmark = pytest.mark.slow

PRINTED = 3000  # bytes that the test's own capture of the output may take


COMMANDS = {  # {out} is the folder that is full
    "models": "models --json {out}/old.json",
    "evaluate": "evaluate --model {model} --dataset folder:{images} --json {out}/old.json "
    "--confusion {out}/old.png",
    "predict": "predict --model {model} {images} --output {out}/old.csv",
    "to npz": "weights convert {model} {out}/old.npz --layout vit_jax --overwrite --json {out}/found.json",
    "to safetensors": "weights convert {model} {out}/new.safetensors --layout timm",
    "to a folder": "weights convert {model} {out}/new --layout huggingface",
    "embed": "embed --model {model} --data folder:{images} --partitions 2 --output {out}/new",
    "search index": "search index --model {model} {images} --index {out}/new",
    "tar files": "data write --dataset folder:{images} --images_per_shard 4 --output {out}/new",
    "Parquet files": "data write --dataset folder:{images} --format parquet --output {out}/new",
    "inspect": "inspect --model {model} --dataset folder:{images} --output {out}/new",
    "export": "export --model {model} --formats saved_model,tflite --precisions float32 --output {out}/new",
    "finetune": "finetune --model mu/16 --image_size 16 --dataset folder:{images} --total_steps 2 "
    "--batch_size 4 --set warmup_steps=0 --workdir {out}/run",
}
OLD = ("old.json", "old.png", "old.csv", "old.npz")


@pytest.fixture
def on(keras_vit, model, images, tmp_path):
    """Run a command in a fresh folder of old files on a disk: (what it printed, the folder)."""
    numbers = itertools.count()

    def run(command, disk):
        out = tmp_path / str(next(numbers))
        out.mkdir()
        for name in OLD:
            (out / name).write_text(f"old {name}")
        given = [text.format(model=model, images=images, out=out) for text in COMMANDS[command].split()]
        with disk(out):
            done = keras_vit(*given, status=None)
        return done, out

    return run


def assert_said_and_nothing_partial(done, out):
    """One line with the path of what could not be written, status 2; each file is old, whole or not there.

    It is a path in the folder of outputs, or that of `predict` for its temporary rows.
    """
    assert done.returncode == 2, done
    *logs, line = done.stderr.splitlines()
    assert not logs and line.startswith("keras-vit: "), done.stderr
    assert str(out) in line or "/rows' cannot be written" in line, line
    assert re.search("No space left on device|File too large", line), line
    for path in out.rglob("*"):
        # A checkpoint that could not be renamed is removed by the next one.
        assert "writing" not in path.name or path.parent.name == "checkpoints", path
        if path.name in OLD and path.parent == out:
            text = path.read_bytes()
            assert text == f"old {path.name}".encode() or len(text) > 100, path
        elif path.suffix == ".json":
            json.loads(path.read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_takes_no_more_entries_is_said_at_each(command, on):
    counts = []
    for entries in itertools.count():
        done, out = on(command, lambda folder, entries=entries: full_disk(folder, entries))
        if done.returncode == 0:
            break
        assert_said_and_nothing_partial(done, out)
        counts.append(entries)
    assert counts


@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_is_full_within_a_file_is_said_of_each(command, on):
    done, out = on(command, lambda folder: largest_file(2**30))
    assert done.returncode == 0, done
    sizes = {path.stat().st_size for path in out.rglob("*") if path.is_file()}
    for size in sorted(size for size in sizes if size > PRINTED):
        done, out = on(command, lambda folder, size=size: largest_file(size - 1))
        if done.returncode:
            assert_said_and_nothing_partial(done, out)
