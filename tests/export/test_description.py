import json

import pytest
from made.tables import by_table
from reference.small import small

from keras_vit.export.description import describe, parse_description, read_description
from keras_vit.export.exported_model import ExportedModel


@pytest.fixture(scope="module")
def description():
    return describe(small(num_layers=1, class_names=("ant", "", "x\ty", "Zoë", "emu bird")))


def test_what_is_written_is_read_back(description, tmp_path):
    assert parse_description(description.as_json(), "m.onnx") == description
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "keras_vit.json").write_text(description.as_json(), encoding="utf-8")
    assert read_description(tmp_path) == description
    assert description.labels == ("ant", "", "x\ty", "Zoë", "emu bird")


@pytest.mark.parametrize("task, output", [("multi_label", "logits"), ("regression", "values")])
def test_the_task_is_the_models(task, output):
    model = small(num_layers=1, task=task)
    assert (describe(model).task, describe(model).output) == (task, output)
    assert ExportedModel(describe(model), None).task == task
    other = {"multi_label": "regression", "regression": "single_label"}[task]
    with pytest.raises(
        ValueError, match=f"^expected the task '{task}' for a VisionTransformer; got '{other}'$"
    ):
        describe(model, other)


def test_an_int_is_the_side_of_a_square():
    description = describe(small(num_layers=1, image_size=(None, None)))
    assert description.with_size(24) == description.with_size((24, 24))
    for wrong in (0, (16,), "16"):
        with pytest.raises(ValueError, match="^image_size must be a positive int or a pair"):
            description.with_size(wrong)


def test_the_architecture_of_a_saved_model_is_checked(description, tmp_path):
    (tmp_path / "assets").mkdir()
    values = json.loads(description.as_json())
    values["architecture"]["num_layers"] = "two"
    (tmp_path / "assets" / "keras_vit.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged, .*keras_vit.json: num_layers must be .*; got 'two'"):
        read_description(tmp_path)


def test_fields_of_later_versions_are_ignored(description):
    values = json.loads(description.as_json()) | {"version": "9.0", "quantized_by": {"whom": [1]}}
    found = parse_description(json.dumps(values), "m.onnx")
    assert found.version == "9.0"
    assert {**vars(found), "version": description.version} == vars(description)


def test_a_field_that_is_missing_is_refused(description):
    values = json.loads(description.as_json())
    defaults = {"seed": 0, "kind": "classifier", "around": None}
    values = {name: value for name, value in values.items() if name not in defaults}
    found = vars(parse_description(json.dumps(values), "m.onnx"))
    assert {name: found[name] for name in defaults} == defaults
    for name in ("in_channels", "patch_size", "pooling"):
        fewer = {other: value for other, value in values["architecture"].items() if other != name}
        with pytest.raises(ValueError, match=f"'m.onnx' is damaged, .*keras_vit.json: '{name}'"):
            parse_description(json.dumps(values | {"architecture": fewer}), "m.onnx")
    for name in values:
        text = json.dumps({other: value for other, value in values.items() if other != name})
        with pytest.raises(ValueError, match="'m.onnx' is damaged, .*keras_vit.json: .*"):
            parse_description(text, "m.onnx")


@by_table(
    "change",
    [
        *("", "{", "[]", "[1]", "null", "3", "{}", "[" * 100_000),  # the whole text
        *({"task": "detection"}, {"image_size": [16]}, {"image_size": [32, 32]}, {"channels": 10**9}),
        *({"num_outputs": 4}, {"class_names": [1, 2, 3, 4, 5]}, {"class_names": ["a"]}, {"resize": None}),
        *({"crop_fraction": float("nan")}, {"antialias": "no"}, {"parameters": "many"}, {"seed": None}),
        {"crop_rounding": "up"},
        *({"architecture": []}, {"architecture": {"patch_size": 0}}, {"version": 3}),
        *({"mean": [0.5]}, {"std": [1, 1, 0]}, {"mean": ["a", 0, 0]}, {"std": 3}),
    ],
    ids=lambda change: str(change)[:40],
)
def test_what_describes_no_model_is_refused_in_one_line(change, description):
    text = change if isinstance(change, str) else json.dumps({**json.loads(description.as_json()), **change})
    message = "^'m.onnx' is damaged, or cannot be opened here: keras_vit.json: .*$"  # in one line
    with pytest.raises(ValueError, match=message):
        parse_description(text, "m.onnx")


@pytest.mark.parametrize("name", ["two\nlines", "end\n", "u\u2028n"])
def test_a_class_name_of_several_lines_is_refused(name):
    """It would count as several classes in labels.txt."""
    model = small(num_layers=1, class_names=("ant", "bee", name, "dog", "emu"))
    with pytest.raises(ValueError, match="class names must be one line each") as error:
        describe(model)
    assert repr(name) in str(error.value) and len(str(error.value).splitlines()) == 1


def test_an_unknown_task_and_one_of_class_maps_are_refused():
    with pytest.raises(ValueError, match="a task with one output per image; got 'segmentation'"):
        describe(small(num_layers=1), "segmentation")
    with pytest.raises(ValueError, match="a task with one output per image; got 'detection'"):
        describe(small(num_layers=1), "detection")
    with pytest.raises(ValueError, match="task must be one of .*; got 'depths'"):
        describe(small(num_layers=1), "depths")
