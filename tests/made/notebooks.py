"""Executes notebooks in a fresh kernel with given parameters.

`make notebooks` runs this file, which stores the outputs of all notebooks, or of those in `NAMES`.
"""

import base64
import io
import json
import os
import pathlib
import re
import sys
import tempfile
from unittest import mock

import nbformat
from made.trained import weights_folder
from nbclient import NotebookClient
from PIL import Image

PROGRESS = re.compile(r"first step after |step \d+ of \d+ (?!.*  val_)")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
SPEED = re.compile(r"\b(ms|images/s|seconds|s)\b")
COLAB = pathlib.Path(__file__).parents[2] / "colab"

TRAINED = "10_what_a_trained_vit_sees"  # the notebook that takes published weights
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


def offline_parameters(name):
    """The parameters that replace a download, by which the outputs of a notebook are computed."""
    return {"SOURCE": str(weights_folder())} if name == TRAINED else {}


def printed_text(outputs):
    """What a cell has printed, without the lines of progress, whose number depends on the time."""
    text = "".join(out.text for out in outputs if out.get("name") == "stdout")
    return "".join(line for line in text.splitlines(True) if not PROGRESS.match(line))


def pictures(outputs):
    return sum(any(mime.startswith("image/") for mime in out.get("data", {})) for out in outputs)


def differences(stored, outputs):
    """What distinguishes the outputs of a cell from the stored ones; "" for nothing.

    The words have to be the same. Of the numbers at least three quarters have to be within a quarter, or
    0.05, of the stored ones, since training differs with the machine; those of speeds and times may be any.
    """
    if pictures(stored) != pictures(outputs):
        return f"expected {pictures(stored)} pictures; got {pictures(outputs)}"
    (old_words, old), (new_words, new) = (_split(printed_text(each)) for each in (stored, outputs))
    if old_words != new_words:
        return f"expected {old_words!r}; got {new_words!r}"
    pairs = [*zip(old, new)]
    far = [pair for pair in pairs if abs(pair[0] - pair[1]) > max(0.25 * max(map(abs, pair)), 0.05)]
    if len(far) > len(pairs) / 4 and not SPEED.search(old_words):
        return "expected numbers near {}; got {}".format(
            *(", ".join(f"{x:g}" for x in row) for row in zip(*far))
        )
    return ""


def _split(text):
    """(text with # in place of numbers and single spaces, the numbers)."""
    return " ".join(NUMBER.sub("#", text).split()), [float(x.replace(",", "")) for x in NUMBER.findall(text)]


def stored_outputs(outputs):
    """The outputs of a cell as a notebook stores them: its printed text and small pictures."""
    printed = printed_text(outputs)
    kept = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    for out in outputs:
        data = out.get("data", {})
        if "image/png" in data:
            mime, picture = _small(base64.b64decode(data["image/png"]))
            kept.append(nbformat.v4.new_output("display_data", {mime: base64.b64encode(picture).decode()}))
        elif out.output_type == "execute_result":
            kept.append(nbformat.v4.new_output("display_data", {"text/plain": data["text/plain"]}))
    return kept


def _small(png):
    """(media type, content) of a JPEG file or a PNG file of 256 colors, the smaller of the two."""
    files = {"image/png": io.BytesIO(), "image/jpeg": io.BytesIO()}
    with Image.open(io.BytesIO(png)) as image:
        colors = image.convert("RGB")
    colors.quantize(256).save(files["image/png"], "PNG", optimize=True)
    colors.save(files["image/jpeg"], "JPEG", quality=85, optimize=True)
    return min(((mime, file.getvalue()) for mime, file in files.items()), key=lambda file: len(file[1]))


def main():
    for path in sorted(COLAB.glob("*.ipynb")):
        if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            done = executed(path, folder, offline_parameters(path.stem), timeout=1800)
        outputs = {cell.id: cell.outputs for cell in done.cells if cell.cell_type == "code"}
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = stored_outputs(outputs[cell.id])
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
