"""The code blocks of a page, run in a new folder with the files that pages name."""

import contextlib
import shlex
import shutil
import traceback
import warnings

import numpy as np
from PIL import Image

import _keras_vit_cli

PHOTOS = ["photo.jpg", *(f"flowers/{kind}/{i}.png" for kind in ("rose", "tulip") for i in range(12))]


def run_page(folder, blocks, files):
    """Run the blocks of a page in this process, which saves the imports; stdout is written to `out.txt`.

    Args:
        folder: A new folder.
        blocks: (language, text) of each block: "python", or "" for commands.
        files: What a name in the folder is a copy of.

    Returns:
        The traceback of the block that failed, or None.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (len(PHOTOS), 40, 50, 3), "uint8")
    for name, image in zip(PHOTOS, pixels):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)
    names = {}
    with (
        contextlib.chdir(folder),
        (folder / "out.txt").open("w") as output,
        contextlib.redirect_stdout(output),
        warnings.catch_warnings(action="ignore"),  # which are no errors for users
    ):
        for language, block in blocks:
            try:
                _run(language, block, names)
            except (Exception, SystemExit):
                return block + traceback.format_exc()
    return None


def _run(language, block, names):
    if language == "python":
        exec(compile(block, "the block", "exec"), names)
    for line in block.splitlines() if language == "" else ():
        if line.startswith("keras-vit "):
            assert _keras_vit_cli.main(shlex.split(line)[1:]) == 0, line
