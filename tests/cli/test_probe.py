import json

import numpy as np
import pytest
from PIL import Image

from keras_vit import evaluation
from keras_vit.evaluation import probe_blocks


@pytest.mark.slow
def test_a_row_per_block_is_printed_and_drawn(weights, images, keras_vit, monkeypatch, tmp_path):
    found = []

    def probed(*options):
        found.append(probe_blocks(*options))
        return found[0]

    monkeypatch.setattr(evaluation, "probe_blocks", probed)
    figure, output = tmp_path / "blocks.png", tmp_path / "found.json"
    command = ("probe", "--model", weights, "--dataset", f"folder:{images}", "--shots", 3, "--seeds", "0,7")
    done = keras_vit(*command, "--figure", figure, "--json", output)
    (accuracies,) = found
    assert np.shape(accuracies)[1] == 2
    lines = done.stdout.splitlines()[1:]
    assert lines[0].split() == ["block", "mean", "seed", "0", "seed", "7"]
    for block, (line, row) in enumerate(zip(lines[1:], accuracies, strict=True)):
        assert line.split() == [str(block), *(f"{number:.4f}" for number in (np.mean(row), *row))]
    written = json.loads(output.read_text())
    assert written["accuracy"] == accuracies and written["shots"] == 3 and written["seeds"] == [0, 7]
    assert written["figure"] == str(figure)
    with Image.open(figure) as image:
        assert image.format == "PNG"
