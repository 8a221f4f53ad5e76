"""The examples of Apache Beam and Ray Data, each with its local runner and in an environment of its own."""

import dataclasses
import os
import pathlib
import shutil
import subprocess

import pytest
from made.folders import BROKEN, write_classes
from reference.small import small

pytestmark = pytest.mark.slow
TWO_PROCESSES = {
    "beam": ("--direct_num_workers", "2", "--direct_running_mode", "multi_processing"),
    "ray": ("--workers", "2", "--gpus", "1"),
}


@dataclasses.dataclass(frozen=True)
class Engine:
    name: str
    python: pathlib.Path
    folder: pathlib.Path

    def run(self, *command):
        # Ray takes our word for two GPUs. Its workers have all CPUs. It writes into the home folder.
        ray = {"RAY_OVERRIDE_RESOURCES": '{"CPU": 2, "GPU": 2}', "RAY_USAGE_STATS_ENABLED": "0"}
        environment = os.environ | ray | {"HOME": str(self.folder)}
        command = [self.python, *command, "--partitions", "5"]
        options = {"cwd": self.folder, "env": environment, "timeout": 300}
        return subprocess.run(command, capture_output=True, text=True, **options)

    def example(self, out, model="model.keras"):
        script = pathlib.Path(__file__).parents[2] / f"examples/embed_{self.name}.py"
        return self.run(script, model, "folder:images", out, *TWO_PROCESSES[self.name])


@pytest.fixture(scope="module", params=TWO_PROCESSES)
def engine(request, repository, tmp_path_factory):
    """With two models, twenty images of which one is damaged, and `whole`, all parts by keras-vit embed."""
    environment = repository / "build" / request.param
    if not (environment / "run").exists():
        pytest.skip(f"no environment of {request.param}: make build/{request.param}/run")
    engine = Engine(request.param, environment / "bin/python", tmp_path_factory.mktemp(request.param))
    write_classes(engine.folder / "images")
    (engine.folder / "images/dog/03.png").write_bytes(BROKEN)
    small().save(engine.folder / "model.keras")
    small(hidden_size=24).save(engine.folder / "other.keras")
    words = ("--model", "model.keras", "--dataset", "folder:images", "--output", "whole")
    done = engine.run("-m", "keras_vit", "embed", *words)
    assert done.returncode == 0, done.stderr
    return engine


@pytest.fixture
def begun(engine, tmp_path):
    """The folder of a command that was stopped after two parts."""
    (tmp_path / "out").mkdir()
    for name in ("plan.json", "part-00001-of-00005.parquet", "part-00003-of-00005.parquet"):
        shutil.copy(engine.folder / "whole" / name, tmp_path / "out")
    return tmp_path / "out"


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def times_of(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_an_engine_computes_the_parts_that_a_command_left_and_no_others(engine, begun):
    before = times_of(begun)
    done = engine.example(begun)
    assert done.returncode == 0, done.stderr
    assert bytes_of(begun) == bytes_of(engine.folder / "whole")
    paths = [str(begun / name) for name in sorted(bytes_of(begun)) if name != "plan.json"]
    assert sorted(done.stdout.splitlines()) == paths and len(paths) == 5
    after = times_of(begun)
    assert {name: after[name] for name in before} == before
    assert engine.example(begun).returncode == 0 and times_of(begun) == after


def test_an_engine_begins_a_folder(engine, tmp_path):
    done = engine.example(tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path / "new") == bytes_of(engine.folder / "whole")


def test_another_model_is_refused_in_one_line_and_nothing_is_written(engine, begun):
    before = times_of(begun)
    done = engine.example(begun, "other.keras")
    assert done.returncode == 2 and done.stdout == ""
    words = f"embed_{engine.name}.py: '{begun}' was begun with another model"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(words)]
    assert line.endswith("; choose a new folder") and "Traceback" not in done.stderr
    assert times_of(begun) == before


def test_a_part_that_fails_fails_the_job(engine, begun):
    damaged = begun / "part-00003-of-00005.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    done = engine.example(begun)
    assert done.returncode not in (0, 2)
    assert f"'{damaged}' is no part of embeddings, or is damaged" in done.stderr
