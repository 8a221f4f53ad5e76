"""The commands at the end of a run's report."""

import html
import re
import shlex
import types

import pytest

from keras_vit.cli import parser
from keras_vit.reports.next_steps import HEADING, add_next_steps
from keras_vit.reports.page import Report


def commands_of(
    dataset="folder:/home/me/flowers", name="tulips", needs_labels=True, image_text=None, **labels
):
    report, recipe = Report(), types.SimpleNamespace(image_text=image_text)
    task = types.SimpleNamespace(needs_labels=needs_labels)
    labels = {"fields": (), "classes": None, **labels}
    add_next_steps(report, types.SimpleNamespace(dataset=dataset, task=task, recipe=recipe, **labels), name)
    page = report.page("A run")
    assert HEADING in page and "/home" not in page
    cells = re.findall("<td[^>]*><code>(.*?)</code></td>", page)
    return [html.unescape(re.sub("</?span>", "", cell)) for cell in cells]


@pytest.mark.parametrize(
    "options", [{}, {"needs_labels": False}, {"image_text": {}, "needs_labels": False}], ids=str
)
def test_each_command_is_one_that_exists(options):
    commands = commands_of(**options)
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command)[1:]
        args = parser.parser(words).parse_args(words)
        assert args.subcommand == words[0]


def test_the_run_and_the_data_are_named_without_their_location():
    assert "keras-vit evaluate --model tulips --dataset folder:flowers" in commands_of()
    quoted = commands_of("folder:/home/me/two words", "my run")
    assert "keras-vit evaluate --model 'my run' --dataset 'folder:two words'" in quoted


def test_the_places_of_labels_are_those_of_the_run():
    labels = {"fields": ("image=photo", "label=the kind"), "classes": "/home/me/names.txt"}
    data = "parquet:photos --field image=photo --field 'label=the kind' --classes names.txt"
    assert f"keras-vit evaluate --model tulips --dataset {data}" in commands_of("parquet:photos", **labels)
