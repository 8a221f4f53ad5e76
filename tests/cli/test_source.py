"""What --model names."""

import hashlib
import pathlib
import shutil

import pytest
from made.sampling import some
from made.servers import Server, file, serving
from made.tables import by_table
from reference.small import small

from keras_vit import VisionTransformer, save_weights
from keras_vit.cli.source import is_exported, open_model, run_of
from keras_vit.export import tar_archive
from keras_vit.export.exported_model import ExportedModel
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.web import PAGE

pytestmark = pytest.mark.usefixtures("eager")


@by_table(
    "source",
    [
        *("m.tflite", "~/runs/m.onnx", "vit.tar.gz", "vit.tgz", pathlib.Path("export/vit.tgz")),
        *("https://host/vit.tgz", "gs://bucket/vit.tar.gz", "hf://org/repo/m.onnx"),
        *("https://host/m.tflite?download=true", "http://host/vit.tar.gz?a=b#c"),
        *("https://tfhub.dev/google/vit_b16/1", "https://www.kaggle.com/models/me/vit/tensorFlow2/b16/1"),
    ],
)
def test_exports_are_recognized_by_their_names(source):
    assert is_exported(source)


@by_table(
    "source",
    [
        *("vit_b16_augreg_in21k", "m.keras", "ViT-B_16.npz", "hf://timm/vit_base_patch16_224.augreg_in21k"),
        *("https://host/vit/1", "https://host/vit.npz?like=m.onnx", "https://host/vit.npz#.tgz"),
        *("https://nottfhub.dev/vit/1", "https://host/tfhub.dev/vit", "https://www.kaggle.com/datasets/x"),
        *("tfhub.dev/vit", "gs://vit_models/imagenet21k/ViT-B_16.npz"),
    ],
)
def test_checkpoints_are_no_exports(source):
    assert not is_exported(source)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return export_saved_model(small(num_layers=1), tmp_path_factory.mktemp("export") / "1", warmup=())


@pytest.mark.slow
def test_a_model_is_opened_at_another_patch_size(saved, tmp_path):
    small(num_layers=1).save(tmp_path / "model.keras")
    assert open_model(tmp_path / "model.keras", patch_size=4).patch_size == (4, 4)
    with pytest.raises(ValueError, match="is an exported model; expected the run"):
        open_model(saved, patch_size=4)


@pytest.mark.slow
def test_a_tgz_is_opened(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    path = tar_archive.make_archive(saved, tmp_path / "vit.tar.gz").rename(tmp_path / "vit.tgz")
    assert isinstance(open_model(path), ExportedModel)


@pytest.mark.slow
def test_of_an_export_without_a_saved_model_the_files_are_named(saved, tmp_path):
    (tmp_path / "verification.json").write_text("{}")
    with pytest.raises(ValueError, match="' holds no SavedModel; expected a folder with"):
        open_model(tmp_path)  # nothing to give instead
    (tmp_path / "hub").mkdir()
    files = [tmp_path / "model_float32.tflite", tmp_path / "hub" / "vit.tar.gz"]
    for path in files:
        path.touch()
    with pytest.raises(ValueError) as error:
        open_model(tmp_path)
    expected = f"{str(tmp_path)!r} holds no SavedModel; give one of its files: "
    assert str(error.value) == expected + ", ".join(repr(str(path)) for path in files)
    (tmp_path / "saved_model").mkdir()
    shutil.copytree(saved, tmp_path / "saved_model" / "1")
    assert isinstance(open_model(tmp_path), ExportedModel)


def test_the_folder_of_a_page_is_an_export(tmp_path):
    (tmp_path / PAGE).write_text("<html></html>")
    assert is_exported(tmp_path)


def test_a_folder_with_weights_and_a_program_is_its_weights(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "both")
    (tmp_path / "both" / "verification.json").write_text("{}")
    assert is_exported(tmp_path / "both")
    save_weights(small(num_classes=3), tmp_path / "both", "huggingface", overwrite=True)
    opened = open_model(tmp_path / "both")
    assert isinstance(opened, VisionTransformer) and opened.num_classes == 3


def test_a_folder_has_no_digest(saved):
    with pytest.raises(ValueError, match="sha256 is that of a file; '.*' is a folder"):
        open_model(saved, sha256="0" * 64)


@pytest.mark.parametrize("name", some(["m.keras", "m.npz", "m.tar.gz", "run"], 4))
def test_the_digest_of_every_file_is_checked(name, saved, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / name
    if name == "m.npz":
        save_weights(small(), path, "vit_jax")
    elif name == "m.tar.gz":
        tar_archive.make_archive(saved, path)
    else:
        path.mkdir() if name == "run" else None
        small().save(path / "model.keras" if name == "run" else path)
    content = (path / "model.keras" if name == "run" else path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    open_model(str(path), sha256=digest)
    with pytest.raises(ValueError, match=f"has SHA-256 {digest}; expected 0"):
        open_model(str(path), sha256="0" * 64)


def test_a_keras_file_is_opened_from_a_url(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    small().save(tmp_path / "m.keras")
    with serving(Server()) as server:
        server.answers["/m.keras"] = file((tmp_path / "m.keras").read_bytes())
        assert isinstance(open_model(f"{server.url}/m.keras"), VisionTransformer)


@by_table(
    "recipe",
    ["null", "[1]", '"text"', '{"seed": Infinity}', '{"seed": 0, "task": [1]}', '{"split_seed": "0"}'],
)
def test_a_damaged_recipe_is_refused_in_one_line(recipe, tmp_path):
    (tmp_path / "config.json").write_text(f'{{"recipe": {recipe}}}')
    with pytest.raises(ValueError, match="config.json' is damaged: expected an int seed"):
        run_of(tmp_path)


@pytest.mark.parametrize("source", ["vit_b16_dino", "hf://me/vit", "https://host/vit.npz"])
def test_a_name_or_url_is_of_no_run_in_the_current_folder(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"recipe": {"task": "multi_label"}}')
    assert run_of(".") and run_of(source) == {}


@by_table("text", ["[]", "null", "3", "{", '{"model_type": "vit"}', "[" * 100_000])
def test_another_configuration_is_ignored(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert run_of(tmp_path) == {}
