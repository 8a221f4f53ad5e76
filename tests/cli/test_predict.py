import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pyarrow.parquet
import pytest
from made.folders import write_broken, write_classes
from made.sampling import some
from made.servers import Server, file, serving
from reference.small import one_block, small

import _keras_vit_cli
from keras_vit import from_pretrained
from keras_vit.cli import image_batches, rows
from keras_vit.cli.journal import only_process
from keras_vit.cli.source import with_class_names
from keras_vit.export.description import describe
from keras_vit.export.exported_model import ExportedModel
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.tasks import task

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
def test_the_script_prints_the_best_classes_of_each_image(script, images, tmp_path):
    """With a LiteRT file, whose runtime logs that it starts."""
    live = one_block(class_names=("a", "b", "c", "d", "e"))
    saved = export_saved_model(live, tmp_path / "1", warmup=())
    file = export_tflite(saved, tmp_path / "m.tflite", precision="float32")
    paths = [images / "cat" / "00.png", images / "dog" / "01.png"]
    done = script("predict", "--model", file, *paths, "--top", 2)
    assert done.returncode == 0 and done.stderr == ""
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["image", "class", "probability"]
    assert [row.split()[0] for row in rows[::2]] == [str(path) for path in paths]
    expected = [best for found in live.classify(paths, top=2) for best in found]
    assert [row.split()[-2] for row in rows] == [name for name, _ in expected]
    shown = [float(row.split()[-1].rstrip("%")) for row in rows]
    np.testing.assert_allclose(shown, [100 * probability for _, probability in expected], atol=0.02)


def test_class_names_may_be_given(json_of, weights, images, tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("\n".join(f"name {i}" for i in range(7)))
    image = images / "cat" / "00.png"
    (found,) = json_of("predict", "--model", weights, image, "--classes", file)
    (best,) = from_pretrained(weights).classify(image)
    assert [c["name"] for c in found["classes"]] == [f"name {index}" for index, _ in best]
    assert len(best) == 5  # the default of --top


def test_an_exported_models_class_names_may_be_given(tmp_path):
    exported = ExportedModel(describe(small(), "single_label"), compute=None)
    (tmp_path / "names.txt").write_text("\n".join("vwxyz"))
    assert with_class_names(exported, tmp_path / "names.txt").class_names == tuple("vwxyz")


def test_parquet_has_the_columns_of_csv(keras_vit, model, images, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "PARQUET_IMAGES", 3)
    done = keras_vit(
        "predict", "--model", model, images, "--format", "csv", "--output", tmp_path / "f.parquet"
    )
    header, *lines = csv.reader(io.StringIO(done.stdout))
    table = pyarrow.parquet.read_table(tmp_path / "f.parquet")
    assert table.column_names == header and table.num_rows == len(lines) == 20 * 2
    assert [[*map(str, row.values())] for row in table.to_pylist()] == lines


@pytest.mark.parametrize("counts", [(0, 2, 0), (2, 0, 2), (0, 0, 0)])
def test_parquet_has_images_without_keypoints_anywhere(counts, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "PARQUET_IMAGES", 1)
    found = {"score": 0.5, "points": [{"name": "foot", "score": 0.5, "x": 1.0, "y": 2.0}]}
    images = [{"image": f"{number}", "keypoints": [found] * count} for number, count in enumerate(counts)]
    rows.write_rows(tmp_path / "f.parquet", "parquet", images, None)
    table = pyarrow.parquet.read_table(tmp_path / "f.parquet")
    numbers = [number for count in counts for number in range(1, count + 1)]
    assert table["object"].to_pylist() == table["rank"].to_pylist() == numbers
    types = ["string", "int64", "string", "double", "double", "double", "int64"]
    assert [str(field.type) for field in table.schema] == types


@pytest.fixture
def many(tmp_path):
    """Forty images, of which the eighth and the last cannot be read."""
    folder = write_classes(tmp_path / "many", count=20)
    for broken in ("cat/07.png", "dog/19.png"):
        write_broken(folder / broken)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [pytest.param((), id="table"), pytest.param(("--format", "jsonl"), marks=pytest.mark.slow, id="jsonl")],
)
def test_unreadable_images_are_left_out_or_end_the_command(option, keras_vit, refused, model, many, tmp_path):
    """Of many images, which TensorFlow reads, and of few."""
    paths = sorted(map(str, many.rglob("*.png")))
    for given in (paths, paths[:10]):
        predict = ("predict", "--model", model, *given, "--top", 1, *option)
        refused(predict, "not a readable image", "cat/07.png")
        done = keras_vit(*predict, "--on_bad_image", "skip", "--output", tmp_path / "found.csv")
        bad = [path for path in given if path.endswith(("cat/07.png", "dog/19.png"))]
        assert done.stderr == f"left out, since they cannot be read: {', '.join(bad)}\n"
        written = [*csv.reader(io.StringIO((tmp_path / "found.csv").read_text()))][1:]
        assert [row[0] for row in written] == [path for path in given if path not in bad]
    assert {path.name for path in tmp_path.iterdir()} == {"many", "found.csv"}
    refused(
        ("predict", "--model", model, bad[0], "--on_bad_image", "skip"), "none of these images can be read"
    )
    refused(("predict", "--model", model, bad[0], "--on_bad_image", "keep"), "must be one of 'fail', 'skip'")


@pytest.mark.slow
def test_an_interrupted_command_continues_and_writes_the_same(
    keras_vit, refused, model, many, tmp_path, monkeypatch
):
    paths = sorted(map(str, many.rglob("*.png")))
    predict = ("predict", "--model", model, *paths, "--on_bad_image", "skip", "--output")
    monkeypatch.setattr(image_batches, "BATCH", 8)
    whole = keras_vit(*predict, tmp_path / "whole.csv").stdout
    real, seen = task.classified, []

    def classified(model, inputs, *options):
        seen.append(len(inputs))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(model, inputs, *options)

    partial = tmp_path / "found.csv.partial"
    with monkeypatch.context() as patch:
        patch.setattr(task, "classified", classified)
        keras_vit(*predict, tmp_path / "found.csv", status=None)
    assert partial.read_bytes().count(b"\n") == 1 + 17 and not (tmp_path / "found.csv").exists()
    with open(partial, "ab") as file:
        file.write(b'{"image": "cut')
    refused(
        (*predict, tmp_path / "found.csv", "--top", 3), "partial' was begun with another --top; remove it"
    )
    seen.clear()
    monkeypatch.setattr(task, "classified", lambda model, x, *of: seen.append(len(x)) or real(model, x, *of))
    done = keras_vit(*predict, tmp_path / "found.csv")
    assert sum(seen) == 22 and done.stdout == whole
    assert (tmp_path / "found.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"many", "found.csv", "whole.csv"}
    partial.write_text("mine\n")
    refused((*predict, tmp_path / "found.csv"), "partial' holds no rows of an interrupted command; remove it")
    partial.unlink()
    with only_process(tmp_path / "found.csv"):
        refused((*predict, tmp_path / "found.csv"), "another process writes")


@pytest.fixture
def interrupted(keras_vit, model, many, tmp_path, monkeypatch):
    """A command with a run's folder, which was stopped after 16 of 40 images, and its journal."""
    (tmp_path / "run").mkdir()
    shutil.copy(model, tmp_path / "run" / "model.keras")
    output = ("--output", tmp_path / "found.csv")
    command = ("predict", "--model", tmp_path / "run", many, *output, "--on_bad_image")
    monkeypatch.setattr(image_batches, "BATCH", 8)
    real, left = task.classified, iter(range(2))

    def classified(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(task, "classified", classified)
        keras_vit(*command, "skip", status=None)
    return command, tmp_path / "found.csv.partial"


@pytest.mark.slow
def test_a_command_continues_after_a_report_was_written(keras_vit, interrupted, many, tmp_path):
    command, partial = interrupted
    (tmp_path / "run" / "report.html").write_text("")
    assert len(partial.read_text().splitlines()) > 10
    keras_vit(*command, "skip")
    with open(tmp_path / "found.csv") as file:
        assert len({row["image"] for row in csv.DictReader(file)}) == 38


@pytest.mark.slow
def test_a_command_is_not_continued_with_other_images_or_another_model(refused, interrupted, many, tmp_path):
    command, partial = interrupted
    times = (many / "cat" / "00.png").stat()
    shutil.copy(many / "dog" / "00.png", many / "cat" / "00.png")
    refused((*command, "skip"), "partial' was begun with another state of the images; remove it")
    write_classes(tmp_path / "others", count=20)
    shutil.copy(tmp_path / "others" / "cat" / "00.png", many / "cat" / "00.png")
    os.utime(many / "cat" / "00.png", ns=(times.st_atime_ns, times.st_mtime_ns))
    refused((*command, "fail"), "not a readable image", "cat/07.png")
    with open(tmp_path / "run" / "model.keras", "ab") as file:
        file.write(b"0")
    refused((*command, "skip"), "partial' was begun with another model; remove it")


@pytest.mark.parametrize("format", some(["csv", "jsonl", "json"], 3))
def test_each_format_is_printed_and_written_alike(format, keras_vit, model, images, tmp_path):
    file = tmp_path / f"found.{format}"
    done = keras_vit("predict", "--model", model, images, "--format", format, "--output", file, "--top", 2)
    assert done.stderr == "" and done.stdout == file.read_text()
    assert [*tmp_path.iterdir()] == [file]
    paths = [str(path) for path in sorted(images.rglob("*.png"))]
    expected = keras.saving.load_model(model).classify(paths, top=2)
    if format == "csv":
        header, *rows = csv.reader(io.StringIO(done.stdout))
        assert header == ["image", "rank", "class", "probability"]
        assert [row[:3] for row in rows] == [
            [path, str(rank), name]
            for path, best in zip(paths, expected)
            for rank, (name, _) in enumerate(best, 1)
        ]
        probabilities = [float(row[3]) for row in rows]
    else:
        lines = done.stdout.splitlines()
        found = [json.loads(line) for line in lines] if format == "jsonl" else json.loads(done.stdout)
        assert [row["image"] for row in found] == paths
        best = [best for row in found for best in row["classes"]]
        assert [row["name"] for row in best] == [name for row in expected for name, _ in row]
        probabilities = [row["probability"] for row in best]
    np.testing.assert_allclose(probabilities, [p for row in expected for _, p in row], rtol=1e-4)


def test_a_list_is_read_from_standard_input(keras_vit, refused, model, images, monkeypatch):
    listed = f"{images}/cat\n\n{images}/dog/01.png\r\n".encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed)))
    done = keras_vit("predict", "--model", model, "-", "--format", "csv", "--top", 1)
    paths = [row[0] for row in csv.reader(io.StringIO(done.stdout))][1:]
    assert paths == [*map(str, sorted((images / "cat").iterdir())), f"{images}/dog/01.png"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    refused(("predict", "--model", model, "-"), "expected one path per line")


@pytest.mark.slow
def test_patterns_and_home_folders_are_expanded(json_of, refused, model, images, monkeypatch):
    monkeypatch.setenv("HOME", str(images.parent))
    whole = json_of("predict", "--model", model, images)
    for words in (f"~/{images.name}", f"{images}/*/*.png", f"{images}/**", f"{images}/*"):
        assert json_of("predict", "--model", model, words) == whole
    [one] = json_of("predict", "--model", model, f"{images}/cat/0[1].p*")
    assert one["image"].startswith(f"{images}/cat/01")
    refused(("predict", "--model", model, f"{images}/*.jpg"), f"no file matches '{images}/*.jpg'")
    refused(("predict", "--model", "~/none.keras", images), f"{images.parent}/none.keras")


def test_names_of_files_that_are_not_utf8_keep_their_bytes(refused, model, images, tmp_path):
    path = os.fsencode(tmp_path / "caf") + b"\xe9.png"
    shutil.copy(images / "cat/00.png", path)
    command = ("predict", "--model", str(model), os.fsdecode(path), "--output")
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(stdout):
        assert not _keras_vit_cli.main([*command, str(tmp_path / "found.csv"), "--format", "csv"])
    written = (tmp_path / "found.csv").read_bytes()
    assert stdout.buffer.getvalue() == written and written.splitlines()[1].startswith(path + b",1,")
    refused((*command, tmp_path / "found.parquet"), "expected paths in UTF-8; got", r"caf\udce9.png': rename")


def test_the_images_at_urls_are_predicted_like_files(keras_vit, refused, model, images):
    with serving(Server()) as server:
        server.answers = {"/00.png": file((images / "cat/00.png").read_bytes())}
        predict = ("predict", "--model", model, "--format", "jsonl")
        rows = keras_vit(*predict, images / "cat/00.png", f"{server.url}/00.png").stdout.splitlines()
        local, remote = map(json.loads, rows)
        assert remote["image"] == f"{server.url}/00.png"
        for found, expected in zip(remote["classes"], local["classes"], strict=True):
            assert found == {**expected, "probability": pytest.approx(expected["probability"], rel=1e-5)}
        refused((*predict, f"{server.url}/01.png"), "not a readable image", "the server answered 404")
        server.answers["/01.png?sig=secret"] = server.answers["/00.png"]
        url = f"{server.url.replace('//', '//me:secret@')}/01.png?sig=secret"
        done = keras_vit(*predict, url)
        assert json.loads(done.stdout)["image"] == f"{server.url}/01.png?…"
        server.answers["/01.png?sig=other"] = server.answers["/00.png"]
        rows = keras_vit(*predict, url, url.replace("=secret", "=other"), url).stdout.splitlines()
        names = [json.loads(row)["image"].removeprefix(server.url) for row in rows]
        assert names == ["/01.png?…", "/01.png?…#2", "/01.png?…"]


def test_rows_are_printed_per_batch_and_the_file_appears_at_the_end(
    model, images, tmp_path, monkeypatch, capfd
):
    file, seen = tmp_path / "found.csv", []
    file.write_text("older")
    real = task.classified

    def classified(*args):
        seen.append((capfd.readouterr().out.count("\n"), file.read_text()))
        return real(*args)

    def run(*paths):
        command = ["predict", "--model", model, *paths, "--format", "jsonl", "--output", file, "--top", 1]
        return _keras_vit_cli.main([*map(str, command)])

    monkeypatch.setattr(image_batches, "BATCH", 2)
    monkeypatch.setattr(task, "classified", classified)
    paths = sorted(images.rglob("*.png"))[:4]
    assert run(*paths, write_broken(tmp_path / "bad.png")) == 2
    assert file.read_text() == "older" and len([*tmp_path.iterdir()]) == 2
    assert run(*paths) == 0
    assert seen == [(0, "older"), (2, "older"), (2, "older"), (2, "older")]
    assert len(file.read_text().splitlines()) == 5


@pytest.mark.parametrize(
    "task, names", some([("regression", ("height", "width")), ("regression", None), ("multi_label", None)], 3)
)
def test_multi_label_and_regression_have_their_columns(task, names, keras_vit, images, tmp_path):
    paths = sorted(images.rglob("*.png"))[:3]
    model = one_block(num_classes=2, class_names=names)
    model.save(tmp_path / "model.keras")
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"task": task}}))
    done = keras_vit("predict", "--model", tmp_path, *paths, "--format", "csv")
    header, *rows = csv.reader(io.StringIO(done.stdout))
    outputs = np.asarray(model(model.preprocessing(paths)))
    if task == "regression":
        assert header == ["image", *(names or ("value 0", "value 1"))]
        np.testing.assert_allclose([[*map(float, row[1:])] for row in rows], outputs, rtol=1e-3)
        table = keras_vit("predict", "--model", tmp_path, *paths).stdout.splitlines()
        assert table[0].split() == " ".join(header).split()
        np.testing.assert_allclose([float(row.split()[-1]) for row in table[1:]], outputs[:, 1], atol=1e-4)
    else:
        assert header == ["image", "rank", "class", "probability"]
        expected = np.sort(1 / (1 + np.exp(-outputs)))[:, ::-1].ravel()
        np.testing.assert_allclose([float(row[3]) for row in rows], expected, rtol=1e-3)


def test_everything_is_printed_before_a_full_disk_is_reported(keras_vit, weights, images, tmp_path):
    (tmp_path / "full.csv").symlink_to("/dev/full")
    given = ("predict", "--model", weights, images, "--format", "csv")
    done = keras_vit(*given, "--output", tmp_path / "full.csv", status=2)
    assert done.stderr == f"keras-vit: '{tmp_path}/full.csv' cannot be written: No space left on device\n"
    assert done.stdout == keras_vit(*given).stdout


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error(script, model, images):
    done = script("predict", "--model", model, images, "--format", "csv", pipe_to="true")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
def test_killed_commands_continue_until_the_file_is_that_of_one_command(images, model, tmp_path):
    paths = [images / "cat" / "00.png"]
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(12_000):
        os.link(paths[0], folder / f"{number:05}.png")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}

    def start(output):
        command = ("predict", "--model", model, folder, "--top", "1", "--format", "csv", "--output", output)
        program = [sys.executable, "-m", "_keras_vit_cli", *map(str, command)]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, env=environment)

    assert start(tmp_path / "whole.csv").wait() == 0
    partial, counts = tmp_path / "found.csv.partial", [0]
    while not (tmp_path / "found.csv").exists():
        process = start(tmp_path / "found.csv")
        while process.poll() is None and len(counts) < 6:
            count = partial.read_bytes().count(b"\n") if partial.exists() else 0
            if count > counts[-1] + 1_000:
                process.send_signal(signal.SIGKILL)
                process.wait()
                counts.append(count)
        assert process.wait() in (0, -signal.SIGKILL)
    assert len(counts) > 3 and not partial.exists()
    found, expected = (
        [*csv.reader(io.StringIO((tmp_path / name).read_text()))] for name in ("found.csv", "whole.csv")
    )
    assert [row[:3] for row in found] == [row[:3] for row in expected] and len(found) == 12_001
    of_found, of_expected = ([float(row[3]) for row in rows[1:]] for rows in (found, expected))
    np.testing.assert_allclose(of_found, of_expected, rtol=1e-5)
