"""Runs of `train` in processes of their own: one, or several workers, and killed at any moment."""

import json
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.comparing import arrays

from keras_vit.training.workdir import Workdir

# A moment is "step N"; "term N" or "interrupt N", SIGTERM or SIGINT in that step, by which a run ends of
# itself; or while the first checkpoint from a step on is written, "values N", or before old ones are removed,
# "remove N".
SCRIPT = """
import os, pathlib, pickle, signal, sys
config, path, moment, fixed, graphs, options = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
kind, _, number = (moment or "").partition(" ")

SIGNALS = {"term": signal.SIGTERM, "interrupt": signal.SIGINT}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

import keras, numpy as np, tensorflow as tf
uniform = keras.random.uniform
def points(shape, *args, **options):
    if len(shape) < 3:  # of patch dropout
        return uniform(shape, *args, **options)
    values = np.random.default_rng(len(shape)).uniform(size=shape[-2:]).astype("float32")
    return keras.ops.broadcast_to(values, shape)
if fixed:
    keras.random.uniform = points
from keras_vit.models import DistributedModel
from keras_vit.training import checkpoints, run

class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kind == "step" and checkpoints.step_of(self.model) == int(number):
            die()

    def on_train_batch_begin(self, batch, logs=None):
        if kind in SIGNALS and checkpoints.step_of(self.model) == int(number) - 1:
            os.kill(os.getpid(), SIGNALS[kind])

fit = DistributedModel.fit
def fit_and_die(self, *args, callbacks=(), **more):
    return fit(self, *args, callbacks=[*callbacks, Dies()], **more)
DistributedModel.fit = fit_and_die

def at(place, step):
    return kind == place and step >= int(number)

savez, remove_old = np.savez, checkpoints.Checkpoints._remove_old
def savez_and_die(path, **values):
    if at("values", int(values["optimizer/0"])):
        path.write_bytes(b"the first half")
        die()
    savez(path, **values)

def remove_and_die(self):
    if at("remove", max((int(f.name[-8:]) for f in self._folders()), default=-1)):
        die()
    remove_old(self)
np.savez, checkpoints.Checkpoints._remove_old = savez_and_die, remove_and_die
tf.config.optimizer.set_experimental_options(graphs)
run.train(config, path, verbose=2, **options)
"""


def random_moments(steps, seed=0):
    """Random moments to kill a run at; every other one is during the writing of a checkpoint."""
    rng = np.random.default_rng(seed)
    kinds = ["values", "step", "remove", "step", "values", "step"]
    return [f"{kind} {rng.integers(1, steps)}" for kind in kinds]


def moments_in_turn(steps, every, count, seed=0):
    """Moments to kill a run at in turn, each in another interval between checkpoints."""
    rng = np.random.default_rng(seed)
    intervals = sorted(rng.choice(steps // every - 1, count, replace=False))
    return [
        f"{rng.choice(['step', 'values', 'remove'])} {i * every + rng.integers(1, every + 1)}"
        for i in intervals
    ]


def start(
    folder, config, path, *, moment=None, fixed=False, worker=None, ports=(), environment=(), **options
):
    """A process that trains; with ports it is one of as many workers.

    `environment` has more variables. With `fixed`, the points at which masks are compared are the same in
    each image and step, so that they do not depend on the backend and the devices.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{worker}-{moment}".replace(" ", "-")
    graphs = tf.config.optimizer.get_experimental_options()  # An optimized graph computes other bits.
    (folder / name).write_bytes(pickle.dumps((config, path, moment, fixed, graphs, options)))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **dict(environment)}
    environment.pop("TF_CONFIG", None)
    if ports:
        cluster = {"worker": [f"localhost:{port}" for port in ports]}
        environment["TF_CONFIG"] = json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": worker}}
        )
    with (folder / f"{name}.txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, folder / name], stdout=output, stderr=output, env=environment
        )


def output_of(folder, worker=None, moment=None):
    return (pathlib.Path(folder) / f"{worker}-{moment}.txt".replace(" ", "-")).read_text()


def end_of(path):
    """(rows of metrics except for times, weights of the finished model, values of the last checkpoint)."""
    workdir = Workdir(path, json.loads((path / "config.json").read_text()))
    times = ("seconds", "images_per_second")
    rows = [{name: x for name, x in row.items() if name not in times} for row in workdir.metrics()]
    (*_, last) = sorted(workdir.checkpoints.glob("step-*"))
    with np.load(last / "values.npz") as values:
        return rows, arrays(keras.saving.load_model(workdir.model)), dict(values)


def assert_near(found, expected, rel=1e-5, abs=1e-7, of_weights=2e-5):
    """Check that rows and weights of `end_of` nearly agree; `of_weights` is relative to the largest."""
    for row, wanted in zip(found[0], expected[0], strict=True):
        assert row == pytest.approx(wanted, rel=rel, abs=abs), f"expected {wanted}, found {row}"
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        atol = of_weights * max(np.abs(value).max(), 1e-2)
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=atol, err_msg=name)


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def finish(processes, timeout=500):
    """The exit statuses; what still runs after `timeout` seconds is killed, and fails."""
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
