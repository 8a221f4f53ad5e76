"""Executes notebooks in a fresh kernel with given parameters."""

import json
import os
import pathlib
import sys
from unittest import mock

import nbformat
from nbclient import NotebookClient

KERNEL = {
    "argv": [
        *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
        *("--HistoryManager.enabled=False", "--log-level=ERROR"),
    ],
    "display_name": "Python 3",
    "language": "python",
}
# Folders that Jupyter, IPython and matplotlib would otherwise create in the home folder.
ELSEWHERE = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR", "KERAS_VIT_CACHE")


def executed(path, folder, parameters=None, again=None, timeout=600):
    """A notebook with its outputs, after every cell has run in a kernel of this Python.

    Args:
        path: The notebook.
        folder: An empty folder; the cells run in `work` below it.
        parameters: Assigned in a cell after the one tagged "parameters", as papermill does.
        again: Other parameters, with which the cells run a second time in the same kernel; their ids begin
            with "again-".
        timeout: Seconds per cell.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell does.
    """
    notebook = nbformat.read(path, as_version=4)
    (tagged,) = (i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
    before, after = notebook.cells[: tagged + 1], notebook.cells[tagged + 1 :]
    notebook.cells = [*before, _assignments(parameters or {}), *after]
    if again is not None:
        second = [nbformat.from_dict({**cell, "id": f"again-{cell.id}"}) for cell in after]
        notebook.cells += [_assignments(again), *second]
    folder = pathlib.Path(folder)
    spec = folder / "jupyter" / "kernels" / "python3" / "kernel.json"
    for made in (spec.parent, folder / "work"):
        made.mkdir(parents=True)
    spec.write_text(json.dumps(KERNEL))
    # A user's environment: without the settings that silence tests, and ipykernel's, which under pytest
    # hides what C++ writes to standard error.
    inherited = {k: value for k, value in os.environ.items() if not k.startswith(("TF_", "PYTEST_"))}
    changed = {name: str(folder / name.lower()) for name in ELSEWHERE}
    environment = {**inherited, **changed, "JUPYTER_PATH": str(folder / "jupyter")}
    resources = {"metadata": {"path": str(folder / "work")}}
    with mock.patch.dict(os.environ, environment, clear=True):
        client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=resources)
        return client.execute(env=environment)


def _assignments(parameters):
    return nbformat.v4.new_code_cell("\n".join(f"{name} = {value!r}" for name, value in parameters.items()))
