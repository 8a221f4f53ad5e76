import json

import pytest
from made.tables import by_table

from keras_vit.cli.parser import parser


def parsed(*words):
    """The arguments of a command line by name."""
    return vars(parser(words).parse_args([*words]))


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_file_has_the_options_of_the_command_line(suffix, tmp_path):
    values = {"dataset": "digits", "workdir": "run", "total_steps": 4, "deterministic": True, "seed": None}
    several = {
        "set": {"base_lr": 0.1, "flip": False, "task": "multi_label"},
        "field": ["label=x", "2:label=y"],
    }
    file = tmp_path / f"run{suffix}"
    file.write_text(json.dumps({**values, **several}))  # which is YAML, too
    words = "--dataset digits --workdir run --total_steps 4 --deterministic --field label=x --field 2:label=y"
    fields = "--set base_lr=0.1 --set flip=False --set task=multi_label"
    expected = parsed("finetune", *words.split(), *fields.split())
    assert parsed("finetune", "--config", str(file)) == {**expected, "config": [str(file)]}


def test_the_command_line_and_later_files_win(tmp_path):
    (tmp_path / "a.yaml").write_text("model: a\ndataset: digits\nsplit: train\nper_class: false\n")
    (tmp_path / "b.yaml").write_text("split: validation\nbatch_size: 8\n")
    files = ("--config", str(tmp_path / "a.yaml"), f"--config={tmp_path / 'b.yaml'}")
    found = parsed("evaluate", "--batch_size", "2", *files)
    assert (found["model"], found["split"], found["batch_size"]) == ("a", "validation", 2)
    assert not found["per_class"]


def test_the_values_of_an_option_that_can_be_repeated_add_up(tmp_path):
    (tmp_path / "a.yaml").write_text("index: a\nwhere: label=0\n")
    file = ("--config", str(tmp_path / "a.yaml"))
    assert parsed("search", "query", "a.png", *file, "--where", "width>9")["where"] == ["label=0", "width>9"]


@by_table(
    "text, words",
    [
        ("epochs: 3", "unknown option --epochs; did you mean --total_steps"),
        ("config: b.yaml", "unknown option --config"),
        ("help: true", "unknown option --help"),
        ("total_steps: many", "expected a positive integer; got 'many'"),
        ("total_steps: [1, 2]", "expected total_steps to be a text or a number; got [1, 2]"),
        ("dataset: true", "expected dataset to be a text or a number; got True"),
        ("field: [{a: 1}]", "expected field to be a text or a number, or several of them"),
        ("deterministic: 1", "expected deterministic to be true or false; got 1"),
        ("set: {lr: 0.1}", "unknown field lr; did you mean --set base_lr=0.1?"),
        ("- dataset", "expected a mapping from options to values; got ['dataset']"),
        ("", "expected a mapping from options to values; got None"),
        ("a: [", "cannot be read: while parsing a flow"),
        ("a: \x00", "cannot be read: "),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_a_file_with_other_contents_is_refused(text, words, refused, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    from_parser = words.startswith(("expected a positive", "unknown field"))
    line = refused(("finetune", "--dataset", "d", "--workdir", "w", "--config", file), words)
    assert from_parser or str(file) in line
