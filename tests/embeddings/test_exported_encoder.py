import importlib.util
import os

import numpy as np
import pytest
from made.folders import write_classes
from reference.small import SMALL, small

from keras_vit import ImageSegmenter, ImageTextModel, VisionTransformer
from keras_vit.data.sources.digits_words import word_tokenizer
from keras_vit.embeddings import embed, plan_embeddings, read_embeddings
from keras_vit.embeddings.exported_encoder import EXPORT_FORMATS

SMALLEST_COSINE = {"tflite_dynamic_int8": 0.98, "openvino_bfloat16": 0.98, "onnx_dynamic_int8": 0.98}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_classes(tmp_path_factory.mktemp("images"), count=5)


def begun(model, folder, out, **options):
    options = {"partitions": 2, "batch_size": 4, "dtype": "float32", **options}
    return plan_embeddings(out, "", model, {"name": f"folder:{folder}"}, **options)


def vectors(out, column="embedding"):
    return np.stack(read_embeddings(out, [column])[column].to_pylist())


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """(a model, its vectors)."""
    model, out = small(), tmp_path_factory.mktemp("live")
    embed(begun(model, folder, out))
    return model, vectors(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tflite_float32", *(pytest.param(name, marks=pytest.mark.slow) for name in EXPORT_FORMATS)]
)
def test_a_file_of_each_format_computes_what_the_model_does(name, expected, folder, tmp_path):
    package = "openvino" if name.startswith("openvino") else "onnxruntime"
    if not name.startswith("tflite") and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    model, live = expected
    embedder = begun(model, folder, tmp_path / "out", format=name)
    found = embed(embedder)
    assert (found["images"], found["errors"]) == (10, 0)
    least = SMALLEST_COSINE.get(name, 0.9999)
    assert least <= found["cosine"] <= 1
    here = vectors(tmp_path / "out")
    lengths = np.linalg.norm(here, axis=1) * np.linalg.norm(live, axis=1)
    assert (np.sum(here * live, axis=1) / lengths).min() >= least
    assert embedder.plan.export_format == name and "cosine" not in embed(embedder)
    with pytest.raises(ValueError, match="was begun with another format"):
        begun(model, folder, tmp_path / "out")


@pytest.mark.slow
def test_the_file_is_exported_once_and_kept_with_the_parts(expected, folder, tmp_path):
    model, _ = expected
    out = tmp_path / "out"
    assert embed(begun(model, folder, out, format="tflite"), shard=(0, 2))["written"] == 1
    (file,) = (out / "model").iterdir()
    assert file.name == "model_dynamic_int8.tflite"
    before = os.stat(file).st_mtime_ns
    assert embed(begun(model, folder, out, format="tflite"))["written"] == 1
    assert os.stat(file).st_mtime_ns == before


@pytest.mark.slow
def test_logits_and_probabilities_are_those_of_the_model(expected, folder, tmp_path):
    model, _ = expected
    for out, options in (("live", {}), ("file", {"format": "tflite_float32"})):
        embed(begun(model, folder, tmp_path / out, outputs=("classes", "logits"), **options))
    for column in ("logits", "classes"):
        here, live = (vectors(tmp_path / out, column) for out in ("file", "live"))
        np.testing.assert_allclose(here, live, atol=1e-5)


@pytest.mark.slow
def test_the_image_tower_of_a_pair_has_the_vectors_that_are_compared_with_texts(folder, tmp_path):
    prepare = word_tokenizer(["a photo of a cat or a dog"])
    text = {"vocabulary_size": prepare.vocabulary_size, "length": prepare.length, "hidden_size": 12}
    text |= {"num_layers": 1, "mlp_dim": 12, "num_heads": 2}
    model = ImageTextModel({**SMALL, "num_classes": None, "pooling": "gap"}, text, text_preprocessing=prepare)
    (tmp_path / "images").mkdir()
    lines = []
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        (tmp_path / "images" / f"{number}.png").write_bytes(path.read_bytes())
        texts = [f"a {path.parent.name}", "a photo of a dog", "or a photo"][: number % 3 + 1]
        lines += [f"{number}.png,{caption}" for caption in texts]
    (tmp_path / "images" / "metadata.csv").write_text("\n".join(["file_name,text", *lines]))
    options = {"outputs": ("pooled", "captions")}
    for out, format in (("live", None), ("file", "tflite_float32")):
        assert (
            embed(begun(model, tmp_path / "images", tmp_path / out, format=format, **options))["images"] == 10
        )
    np.testing.assert_allclose(vectors(tmp_path / "file"), vectors(tmp_path / "live"), atol=1e-5)
    rows = read_embeddings(tmp_path / "live", ["path", "texts", "captions"]).to_pylist()
    for row in rows:
        number = int(os.path.basename(row["path"]).partition(".")[0])
        assert row["texts"] == [line.partition(",")[2] for line in lines if line.startswith(f"{number}.png")]
        np.testing.assert_allclose(row["captions"], model.encode_text(row["texts"]), atol=1e-6)


def test_what_a_file_cannot_compute_is_refused_before_anything_is_written(folder, tmp_path):
    model = small()
    segmenter = ImageSegmenter(VisionTransformer(**{**SMALL, "num_classes": None, "pooling": None}), 3)
    for given, options, words in (
        (model, {"format": "tflite_int8"}, "^format must be one of 'tflite_float32'"),
        (
            model,
            {"outputs": ("pooled", "logits")},
            "either pooled, or logits and classes; got pooled, logits",
        ),
        (model, {"outputs": ("tokens",)}, "computes either pooled, or logits and classes; got tokens"),
        (segmenter, {"outputs": ("classes",)}, "expected a VisionTransformer or .*; got ImageSegmenter"),
        (small(num_classes=None, pooling=None), {}, "expected a model with pooling for tflite_dynamic_int8"),
        (small(image_size=(None, None)), {}, "expected a model for images of one size for tflite_dynamic"),
        (model, {"outputs": ("pooled", "captions"), "format": None}, "metadata.csv or metadata.jsonl"),
        (model, {"outputs": ("captions",)}, "expected captions besides another output; got captions alone"),
    ):
        with pytest.raises(ValueError, match=words):
            begun(given, folder, tmp_path / "out", **{"format": "tflite", **options})
    assert not (tmp_path / "out").exists()
