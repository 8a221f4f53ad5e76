import hashlib

import numpy as np
import pytest
from made import tokenizers
from made.tables import by_table
from PIL import Image
from reference.comparing import randomize

from keras_vit import (
    ImageTextModel,
    ObjectDetector,
    TextPreprocessing,
    VisionTransformer,
    from_pretrained,
    save_weights,
)
from keras_vit.cli.labels import read_labels, read_prompts
from keras_vit.cli.source import open_live
from keras_vit.data import load_dataset

pytestmark = pytest.mark.usefixtures("eager")
BLOCK = {"hidden_size": 12, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
IMAGE = {"image_size": 16, "patch_size": 8, **BLOCK}


def text_tower(prepare):
    return {"vocabulary_size": prepare.vocabulary_size, "length": 8, **BLOCK}


@pytest.fixture(scope="module")
def two_towers(tmp_path_factory):
    """A `.keras` file of an image-text model with its tokenizer, and the model."""
    folder = tmp_path_factory.mktemp("two towers")
    (folder / "vocab.txt").write_bytes(tokenizers.bert_vocabulary())
    prepare = TextPreprocessing.from_files(folder, "lit_bert", length=8)
    image, text = {**IMAGE, "pooling": "gap"}, {**text_tower(prepare), "pooling": "first"}
    model = randomize(ImageTextModel(image, text, text_preprocessing=prepare))
    model.save(folder / "two.keras")
    return folder / "two.keras", model


def probabilities(rows, paths):
    """The probability of each class of each image, in the JSON that `predict` prints."""
    found = {row["image"]: row["classes"] for row in rows}
    return [{one["name"]: one["probability"] for one in found[str(path)]} for path in paths]


def test_labels_classify_images(two_towers, images, json_of):
    path, model = two_towers
    photos = [images / "cat" / "00.png", images / "dog" / "00.png"]
    rows = json_of("predict", "--model", path, "--labels", 'cat,"a red, car"', *photos)
    logits = model.similarity(list(map(str, photos)), ["cat", "a red, car"])
    for found, row in zip(probabilities(rows, photos), logits):
        np.testing.assert_allclose([found["cat"], found["a red, car"]], 1 / (1 + np.exp(-row)), rtol=1e-4)


@pytest.fixture(scope="module")
def packed_towers(two_towers, tmp_path_factory):
    """The same for images of any aspect ratio."""
    prepare = two_towers[1].text_preprocessing
    image = {**IMAGE, "image_size": (None, None), "pooling": "map", "max_num_patches": 6, "position_grid": 2}
    model = randomize(ImageTextModel(image, text_tower(prepare), text_preprocessing=prepare))
    path = tmp_path_factory.mktemp("packed towers") / "packed.keras"
    model.save(path)
    return path, model


@pytest.mark.slow
def test_images_of_any_aspect_ratio_are_classified_and_found(packed_towers, json_of, tmp_path, rng):
    path, model = packed_towers
    folder = tmp_path / "photos"
    folder.mkdir()
    photos = [folder / f"{i}.png" for i in range(3)]
    for photo, size in zip(photos, ((10, 70), (30, 30), (80, 9))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), "uint8")).save(photo)
    rows = json_of("predict", "--model", path, "--labels", "cat,dog", *photos)
    logits = model.similarity(list(map(str, photos)), ["cat", "dog"])
    for found, row in zip(probabilities(rows, photos), logits):
        np.testing.assert_allclose([found["cat"], found["dog"]], 1 / (1 + np.exp(-row)), rtol=1e-4)

    index = tmp_path / "index"
    json_of("search", "index", folder, "--model", path, "--index", index)
    for query, best in ((photos[2], photos[2]), ("cat", photos[logits[:, 0].argmax()])):
        assert json_of("search", "query", query, "--index", index)["images"][0]["image"] == str(best)


@pytest.mark.slow
def test_an_export_has_the_labels(two_towers, images, keras_vit, json_of, tmp_path):
    """The exported classifier, and a page, need no text tower."""
    path, _ = two_towers
    labels = ("--labels", 'cat,"a red, car"')
    to = tmp_path / "export"
    formats = ("--formats", "saved_model,tflite,onnx,web", "--precisions", "float32,dynamic_int8")
    keras_vit("export", "--model", path, *labels, *formats, "--output", to)
    photo = images / "cat" / "00.png"
    (expected,) = probabilities(json_of("predict", "--model", path, *labels, photo), [photo])
    for exported in (to / "saved_model" / "1", to / "model_float32.tflite", to / "model_float32.onnx"):
        (found,) = probabilities(json_of("predict", "--model", exported, photo), [photo])
        assert found == pytest.approx(expected, abs=1e-5)
    assert (to / "web" / "index.html").is_file()


@pytest.mark.slow
def test_prompts_of_classes_are_scored_on_a_data_set(two_towers, images, json_of, tmp_path):
    path, model = two_towers
    (tmp_path / "classes.json").write_text('{"cat": ["cat", "kitten"], "dog": "a dog"}')
    (tmp_path / "prompts.txt").write_text("a photo of a {}\na small {}\n")
    options = ("--labels", tmp_path / "classes.json", "--prompts", tmp_path / "prompts.txt")
    found = json_of("evaluate", "--model", path, "--dataset", f"folder:{images}", *options)
    texts = read_labels(str(tmp_path / "classes.json"), ["a photo of a {}", "a small {}"])
    assert [len(of) for of in texts.values()] == [4, 2]
    samples = load_dataset(f"folder:{images}").split("test")
    best = [row[0][0] for row in model.zero_shot([*samples.images], texts)]
    right = np.mean([["cat", "dog"].index(name) == label for name, label in zip(best, samples.labels)])
    assert found["samples"] == 4 and found["accuracy"] == right


@pytest.mark.slow
def test_words_find_pictures(two_towers, images, keras_vit, json_of, tmp_path):
    path, model = two_towers
    index = ("--index", tmp_path / "index")
    keras_vit("search", "index", images, "--model", path, *index)
    result = json_of("search", "query", "a", "red", "car", *index, "--top", 20)
    found = [row["image"] for row in result["images"]]
    assert len({*found}) == 20
    cosines = model.encode_images(found) @ model.encode_text(["a red car"])[0]
    assert (np.diff(cosines) < 2e-3).all()  # The vectors are float16.


@pytest.mark.parametrize("kind", ["two_towers", "words"])
@pytest.mark.parametrize("command", ["predict {image}", "evaluate --dataset digits"])
def test_a_model_without_classes_needs_labels(command, kind, request, images, refused):
    name, *options = [word.format(image=images / "cat" / "00.png") for word in command.split()]
    path, _ = request.getfixturevalue(kind)
    refused((name, "--model", path, *options), "this model has no classes but those of texts; give --labels")


@by_table(
    "labels, message",
    [
        ("cat,cat", "expected different labels, none of them empty; got 'cat,cat'"),
        ("", "expected one label or more; got ''"),
        ("cat\ndog", r"expected labels separated by commas; got 'cat\\ndog'"),
        ("none.json", "no such file: 'none.json'"),
        ("list.json", "'list.json' must hold an object from classes to a text or a list of texts"),
        ("half.json", "'half.json' is not readable JSON"),
    ],
)
def test_wrong_labels_are_refused(labels, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text('{"cat": []}')
    (tmp_path / "half.json").write_text('{"cat": ')
    with pytest.raises(ValueError, match=message):
        read_labels(labels)


def test_prompts_have_a_place_for_the_text(tmp_path):
    (tmp_path / "words.txt").write_text("a photo\n")
    with pytest.raises(ValueError, match="must hold a prompt with {} on each line"):
        read_prompts(tmp_path / "words.txt")


def test_imagenet_has_the_names_and_prompts_of_clip():
    texts = read_labels("imagenet_1k", read_prompts("clip_7"))
    assert len(texts) == 1000 and texts["n01440764"][:2] == ["itap of a tench.", "a bad photo of the tench."]
    assert len(read_prompts("clip_80")) == 80


@pytest.fixture(scope="module")
def words(two_towers, tmp_path_factory):
    """A `.keras` file of a detector by words without classes, and the model."""
    prepare, encoder = two_towers[1].text_preprocessing, VisionTransformer(**IMAGE)
    text = {**text_tower(prepare), "pooling": "first"}
    model = randomize(ObjectDetector(encoder, query_size=6, text=text, text_preprocessing=prepare))
    path = tmp_path_factory.mktemp("words") / "words.keras"
    model.save(path)
    return path, model


@pytest.mark.slow
def test_labels_are_what_a_model_detects(words, images, json_of, tmp_path):
    path, model = words
    photo = images / "cat" / "00.png"
    [row] = json_of(
        "predict", "--model", path, "--labels", "cat,dog", "--threshold", "0", "--top", "3", photo
    )
    [found] = model.with_labels(["cat", "dog"]).detect([str(photo)], threshold=0, top=3)
    np.testing.assert_allclose([one["score"] for one in row["objects"]], found.scores, rtol=1e-4)
    assert [one["name"] for one in row["objects"]] == [["cat", "dog"][i] for i in found.classes]


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    """A folder of transformers' files of a SigLIP with its tokenizer, and the model."""
    folder = tmp_path_factory.mktemp("siglip")
    (folder / "spiece.model").write_bytes(tokenizers.sentencepiece_model())
    prepare = TextPreprocessing.from_files(folder, "siglip", length=8)
    image = {**IMAGE, "pooling": "map", "prefix_positions": False}
    options = {"text_projection": 12, "projection_bias": True, "text_preprocessing": prepare}
    model = randomize(ImageTextModel(image, text_tower(prepare), **options))
    save_weights(model, folder / "saved", "huggingface")
    return folder / "saved", model


@pytest.mark.slow
def test_a_checkpoint_has_its_tokenizer_next_to_it(siglip, images, json_of):
    path, model = siglip
    assert from_pretrained(path, kind="image_text").text_preprocessing == model.text_preprocessing
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    covered = from_pretrained(path / "model.safetensors", kind="image_text", sha256=digest)
    assert covered.text_preprocessing is None, "no digest covers it"
    photo = images / "cat" / "00.png"
    (found,) = probabilities(json_of("predict", "--model", path, "--labels", "a cat,a car", photo), [photo])
    expected = dict(model.zero_shot(str(photo), ["a cat", "a car"])[0])
    assert found == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="exists; give another name"):
        save_weights(model, path, "huggingface")


def test_the_text_tower_of_a_checkpoint_is_opened_for_a_search(siglip, weights):
    assert open_live(siglip[0], kind="stored").encode_text(["a cat"]).shape == (1, 12)
    assert not hasattr(open_live(weights, kind="stored"), "encode_text")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_image_tower_is_inspected(two_towers, images, keras_vit, tmp_path):
    photo = images / "cat" / "00.png"
    keras_vit("inspect", "--model", two_towers[0], "--image", photo, "--output", tmp_path / "out")
    assert {"heads.png", "positions.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
