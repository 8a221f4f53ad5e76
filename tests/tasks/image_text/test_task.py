"""Runs of image-text models: pairs by (seed, step), the scores of labels and captions, and resuming."""

import json
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from made.folders import write_captions
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, numpy, randomize
from reference.small import SMALL, small

from keras_vit import ImageTextModel, TextPreprocessing, save_weights
from keras_vit.data import load_dataset, pair_batches
from keras_vit.data.sources.digits_words import word_tokenizer
from keras_vit.data.texts import Texts
from keras_vit.evaluation import retrieval
from keras_vit.training.building import build_model
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig
from keras_vit.weights.checkpoint import read_model

SIZES = {name: value for name, value in SMALL.items() if name != "num_classes"} | {"num_layers": 1}
TEXT = {"hidden_size": 8, "num_layers": 1, "mlp_dim": 12, "num_heads": 2}
RECIPE = RECIPES["digits_words"].with_changes(
    total_steps=2,
    batch_size=70,
    eval_every=2,
    checkpoint_every=1,
    train_samples=100,
    dropout_rate=0.1,
    image_text={"text": TEXT, "objective": "sigmoid", "image_projection": 8, "text_projection": 8},
)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits_words")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, eager):
    return train(RunConfig("digits_words", RECIPE, SIZES), tmp_path_factory.mktemp("image_text") / "run", 0)


def test_no_wording_is_in_two_splits_and_all_fit_the_length(digits):
    wordings, prepare = digits.texts.wordings, digits.texts.preprocessing
    for number in range(10):
        texts = [{*wordings[split][number]} for split in ("train", "validation", "test")]
        assert sum(map(len, texts)) == len(set.union(*texts)), number
    every = [text for of_split in wordings.values() for of_class in of_split for text in of_class]
    assert len({*every}) == len(every), "each text belongs to one class"
    assert (prepare(every)[:, -1] == 0).all()


def batches_of(digits, split="train", steps=4, **options):
    classes = np.arange(steps * 6).reshape(steps, 6) % 10
    found = tf.data.Dataset.from_tensor_slices((np.zeros((steps, 6, 2), "float32"), classes))
    worker, workers = options.get("worker", 0), options.get("workers", 1)
    part = slice(worker * 6 // workers, (worker + 1) * 6 // workers)
    found = found.map(lambda images, classes: (images[part], classes[part]))
    found = found.skip(options.get("first_step", 0))
    return [
        (inputs["ids"].numpy(), classes.numpy())
        for inputs, classes in pair_batches(found, digits.texts, split, seed=3, **options)
    ]


def test_a_long_caption_takes_the_memory_of_a_long_caption():
    captions = [("a cat",)] * 2000 + [("a dog " * 1000,)]
    texts = Texts({"train": captions}, lambda texts: np.zeros((len(texts), 4), "int32"))
    tracemalloc.start()
    try:
        pair_batches(tf.data.Dataset.from_tensors(([0], [0])), texts, "train", seed=0)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # 48 MB as an array of texts of one length
    finally:
        tracemalloc.stop()


def test_each_text_is_a_wording_of_its_class_by_seed_and_step(digits):
    whole = batches_of(digits)
    own = [{row.tobytes() for row in digits.texts.preprocessing(of)} for of in digits.texts.wordings["train"]]
    for ids, classes in whole:
        assert all(row.tobytes() in own[number] for row, number in zip(ids, classes))
    assert len({ids.tobytes() for ids, _ in whole}) == len(whole)
    resumed = batches_of(digits, first_step=2)
    workers = [batches_of(digits, worker=worker, workers=2) for worker in (0, 1)]
    for (ids, _), (again, _) in zip(whole[2:], resumed, strict=True):
        np.testing.assert_array_equal(ids, again)
    for (ids, _), *parts in zip(whole, *workers, strict=True):
        np.testing.assert_array_equal(ids, np.concatenate([part for part, _ in parts]))


@pytest.mark.slow
def test_a_finished_run_is_an_image_text_model_with_its_tokenizer(finished, digits):
    workdir, record = finished
    model = read_model(workdir.model)
    assert isinstance(model, ImageTextModel) and model.objective == "sigmoid"
    assert model.text_preprocessing == digits.texts.preprocessing
    assert (model.image.dropout_rate, model.text.dropout_rate) == (0, 0)
    recalls = {f"{way}_recall_{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5)}
    assert {"val_loss", *recalls, *(f"val_{name}" for name in recalls)} <= workdir.metrics()[-1].keys()
    samples = digits.split("test")
    assert record["test_samples"] == len(samples)
    labels = dict(zip(digits.class_names, digits.texts.wordings["test"]))
    best = [found[0][0] for found in model.zero_shot(_pixels(samples), labels, top=1, batch_size=355)]
    right = np.mean([int(name) == label for name, label in zip(best, samples.labels)])
    assert record["test_accuracy"] == pytest.approx(right)


def _pixels(samples):
    return [np.repeat(tf.io.decode_png(each).numpy(), 3, axis=-1) for each in samples.images]


@pytest.mark.slow
@by_table(
    "changes, message",
    [
        ({"mixup": 0.2}, "image_text compares whole batches of pairs"),
        ({"accumulation_steps": 2}, "image_text compares whole batches of pairs"),
        ({"image_text": {"text": {}}}, "wrong arguments in .* image_text: .*hidden_size"),
        ({"image_text": {**RECIPE.image_text, "text_size": 8}}, "wrong arguments in .*: .*'text_size'"),
        ({"model": {"representation_size": 6}}, "or a model without image_projection; got 6 and 8"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(RunConfig("digits_words", RECIPE.with_changes(**changes), SIZES), tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


def test_a_data_set_without_texts_is_refused(tmp_path):
    config = RunConfig("digits", RECIPE, SIZES)
    with pytest.raises(ValueError, match="digits has no texts; expected a data set of digits_words, folder"):
        train(config, tmp_path / "run", 0)
    with pytest.raises(ValueError, match="needs a data set with texts, such as digits_words"):
        train(config, tmp_path / "run", 0, dataset=load_dataset("digits"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `captions`, an image tower `tower.keras`, and a tokenizer, `words`."""
    folder = tmp_path_factory.mktemp("pairs")
    write_captions(folder / "captions", 24)
    small(num_layers=1, num_classes=None, pooling="gap").save(folder / "tower.keras")
    (folder / "words").mkdir()
    words = word_tokenizer([f"some photo of a dark bright {' '.join(map(str, range(24)))}"])
    for name, content in words.files().items():
        (folder / "words" / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def towers(folder):
    """The files of a SigLIP with its tokenizer, and the model."""
    prepare = TextPreprocessing.from_files(folder / "words")
    image = {**SMALL, "num_classes": None, "num_layers": 1, "pooling": "map", "prefix_positions": False}
    text = {"vocabulary_size": prepare.vocabulary_size, "length": prepare.length, **TEXT}
    options = {"text_projection": 12, "projection_bias": True, "text_preprocessing": prepare}
    model = randomize(ImageTextModel(image, text, **options))
    save_weights(model, folder / "siglip", "huggingface")
    model.text.trainable = False
    model.save(folder / "siglip.keras")
    return model


CAPTIONS = RECIPE.with_changes(batch_size=8, train_samples=None, image_size=(16, 16))
NEW = {"text": {**TEXT, "length": 9}, "objective": "softmax", "text_projection": 12}


@pytest.fixture(scope="module")
def lit(folder, eager):
    """(RunConfig, Workdir, record) of a run that trains a new text tower for a frozen image tower."""
    recipe = CAPTIONS.with_changes(image_text=NEW, freeze="encoder_norm", dropout_rate=0.0)
    files = {"weights": str(folder / "tower.keras"), "tokenizer": str(folder / "words")}
    config = RunConfig(f"folder:{folder / 'captions'}", recipe, **files)
    return config, *train(config, folder / "lit", 0)


@pytest.mark.slow
def test_a_new_text_tower_is_trained_for_a_frozen_image_tower(lit, folder):
    config, workdir, record = lit
    model = read_model(workdir.model)
    assert model.text_preprocessing == TextPreprocessing.from_files(folder / "words", length=9)
    tower = read_model(folder / "tower.keras")
    for weight, found in zip(tower.weights, model.image.weights, strict=True):
        np.testing.assert_array_equal(numpy(weight), numpy(found))
    dataset = load_dataset(config.dataset, config.recipe.seed, texts=True)
    scores = retrieval(model, dataset.split("test"), dataset.texts.wordings["test"])
    assert {name: record[f"test_{name}"] for name in scores} == pytest.approx(scores)
    assert record["test_samples"] == 4 and record["test_texts"] == 8
    assert "val_image_to_text_recall_1" in workdir.metrics()[-1]


@pytest.mark.slow
def test_another_tokenizer_does_not_resume_a_run(lit, tmp_path, monkeypatch):
    config, workdir, _ = lit
    shutil.copytree(workdir.path, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    other = TextPreprocessing.from_files(config.tokenizer, length=9, remove_punctuation=True)
    monkeypatch.setattr("keras_vit.weights.tokenizer.read_text_preprocessing", lambda *args, **kwargs: other)
    with pytest.raises(ValueError, match="the data of the run in .* have changed: the tokenizer; restore"):
        train(config, tmp_path / "run", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, image_size",
    [
        ("siglip", (24, 24)),
        *(pytest.param("siglip.keras", size, marks=pytest.mark.slow) for size in ((16, 16), (24, 24))),
    ],
)
def test_both_towers_start_from_the_weights(name, image_size, towers, folder):
    options = {"dropout_rate": 0.1, "stochastic_depth_rate": 0.2, "dtype": "mixed_bfloat16"}
    recipe = CAPTIONS.with_changes(image_text={}, image_size=image_size, **options)
    config = RunConfig(f"folder:{folder / 'captions'}", recipe, weights=str(folder / name))
    dataset = load_dataset(config.dataset, texts=True)
    model = build_model(config, dataset)
    assert model.image.stochastic_depth_rate == 0.2
    assert len(model.trainable_variables) == len(towers.variables)
    for tower in (model.image, model.text):
        assert (tower.dropout_rate, tower.dtype_policy.name) == (0.1, "mixed_bfloat16")
    assert model.text_preprocessing == towers.text_preprocessing and model.image_size == image_size
    found, expected = arrays(model), arrays(towers)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if image_size == (16, 16) or path != "position_embedding/table":
            np.testing.assert_array_equal(found[path], value, err_msg=path)


MISFITS = {  # the recipe's image_text, the files, and the message
    "no tokenizer": (NEW, {}, "expected weights with one, or --tokenizer; got none"),
    "no family": (NEW, {"tokenizer": "captions"}, "expected a tokenizer in .*captions:FAMILY"),
    "no text tower": ({}, {}, "tower.keras' holds a VisionTransformer; expected one with a text tower"),
    "other tokens": ({}, {"weights": "siglip", "tokenizer": "more"}, "a tokenizer of at most 32 tokens"),
    "another objective": (
        {"objective": "softmax"},
        {"weights": "siglip"},
        "another objective than the recipe",
    ),
}


@pytest.mark.parametrize("misfit", some(MISFITS, 3))
def test_what_does_not_fit_the_weights_is_refused(misfit, towers, folder, tmp_path):
    image_text, files, message = MISFITS[misfit]
    (folder / "more").mkdir(exist_ok=True)
    for name, content in word_tokenizer([" ".join(map(str, range(99)))]).files().items():
        (folder / "more" / name).write_bytes(content)
    files = {name: str(folder / file) for name, file in {"weights": "tower.keras", **files}.items()}
    recipe = CAPTIONS.with_changes(image_text=image_text)
    config = RunConfig(f"folder:{folder / 'captions'}", recipe, **files)
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_command_learns_words_for_wordings_that_it_has_not_seen(tmp_path, digits):
    command = ["pretrain", "--dataset", "digits_words", "--recipe", "digits_words", "--workdir", "words"]
    code = "import sys; from _keras_vit_cli import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, check=True)
    result = json.loads((tmp_path / "words/result.json").read_text())
    assert result["test_accuracy"] >= 0.95
    assert "Worst predictions" in (tmp_path / "words/report.html").read_text()
    model = read_model(tmp_path / "words/model.keras")
    images = _pixels(digits.split("test"))
    vectors = model.encode_images(images, batch_size=355)
    for texts in zip(*digits.texts.wordings["test"]):  # each wording alone
        found = model.similarity(vectors, model.encode_text(texts)).argmax(axis=1)
        assert np.mean(found == digits.split("test").labels) >= 0.95, texts[7]
