"""The page, held to the rules by which tfhub.dev's validator read pages (tools/validator.py there)."""

import dataclasses
import re

import keras
import pytest
from reference.small import HYBRID, small

from keras_vit import Preprocessing, VisionTransformer
from keras_vit.variants import parse_variant

pytestmark = pytest.mark.tensorflow_only("SavedModels")
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from keras_vit.export.description import describe
    from keras_vit.export.hub import Facts, Measurement
    from keras_vit.export.hub_page import Contents, page, read_contents
    from keras_vit.export.saved_model import export_saved_model

REQUIRED = ("asset-path", "task", "fine-tunable", "format")
REPEATED = ("dataset", "language", "task", "network-architecture")
TAGS = {  # of those in tfhub.dev's tags/*.yaml, the ones that may be ours
    "task": {"image-classification", "image-feature-vector", "image-others"},
    "network-architecture": {"vit"},
    "dataset": {"imagenet-21k", "imagenet-ilsvrc-2012-cls", "cifar-10", "cifar-100"},
    "license": {"apache-2.0", "mit", "cc-by-nc-4.0", "custom"},
    "format": {"saved_model_2"},
    "fine-tunable": {"true", "false"},
}
KNOWN = {
    "licence": "Apache-2.0",
    "trained_on": "ImageNet-21k, then ImageNet-1k and CIFAR-100",
    "source": "the AugReg weights",
    "url": "https://example.org/vit/1.tar.gz",
}


def validated(text):
    """What the validator reads: dict of its metadata, each a list. Raises AssertionError as it would."""
    lines = text.split("\n")
    assert re.fullmatch(r"# Module [a-z\d-]+/[\w.-]+(/[\w.-]+)*/\d+", lines[0])
    assert lines[1], "the second line is a description"
    index, found = 2, {}
    while lines[index] and not lines[index].startswith("<!--"):
        index += 1
    while not lines[index].startswith("#"):
        if lines[index]:
            match = re.match(r"^<!--(?P<key>(\w|\s|-)+):(?P<value>.+)-->$", lines[index])
            assert match, lines[index]
            found.setdefault(match["key"].strip(), []).append(match["value"].strip())
        index += 1
    for key, values in found.items():
        assert len(values) == 1 or key in REPEATED, key
        assert {*values} <= TAGS.get(key, {*values}), (key, values)
    return found


def page_of(model, facts=None, task="single_label", inside=None):
    inside = inside or Contents({}, model.count_params())
    return page(describe(model, task), facts or Facts(), inside, "me/vit-b16/1")


@pytest.fixture(scope="module")
def model():
    return small(class_names=["cat", "dog", "a | b", "owl", "eel"])


def test_with_its_address_it_is_valid(model):
    found = validated(page_of(model, Facts(**KNOWN)))
    assert {*REQUIRED} <= {*found}
    assert found == {
        "asset-path": ["https://example.org/vit/1.tar.gz"],
        "task": ["image-classification"],
        "fine-tunable": ["true"],
        "format": ["saved_model_2"],
        "network-architecture": ["vit"],
        "dataset": ["imagenet-21k", "imagenet-ilsvrc-2012-cls", "cifar-100"],
        "license": ["apache-2.0"],
    }


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        ("licence", ("## Licence", "<!-- license:", "Apache")),
        ("trained_on", ("<!-- dataset:", "Trained on", "ImageNet")),
        ("source", ("From the AugReg",)),
        ("url", ("<!-- asset-path:", "example.org")),
        ("accuracy", ("top-1", "accuracy", "digits")),
    ],
)
def test_what_is_not_known_is_left_out(fact, shown, model):
    known = {**KNOWN, "accuracy": (Measurement(0.9471, "digits", "test", 355),)}
    everything = page_of(model, Facts(**known))
    without = page_of(
        model, dataclasses.replace(Facts(**known), **{fact: () if fact == "accuracy" else None})
    )
    for text in shown:
        assert text in everything, text
        assert text not in without, text
    validated(without)


def test_what_users_named_is_neither_html_nor_markdown():
    bad = "<script>alert(1)</script> `*a*` [b](c) | \x1b[31m"
    model = small(num_classes=2, class_names=[bad, "```"])
    measured = (Measurement(0.5, f"folder:{bad}", bad, 10, metric=bad),)
    text = page_of(model, Facts(licence=bad, trained_on=bad, source=bad, accuracy=measured))
    shown = r"&lt;script&gt;alert(1)&lt;/script&gt; \`\*a\*\` \[b\](c) \| \\x1b\[31m"
    for line in (
        f"Trained on {shown}.",
        f"From {shown}.",
        f"{shown} on folder:{shown}, {shown}, 10 images | 0.5 |",
    ):
        assert line in text
    assert (
        "`` <script>alert(1)</script> `*a*` [b](c) | \\x1b[31m ``" not in text
    )  # no space where none is due
    assert "``<script>alert(1)</script> `*a*` [b](c) | \\x1b[31m``, ```` ``` ````" in text
    assert "\x1b" not in text and text.count("<script>") == 1  # in the code of the class name


def test_without_facts_it_says_what_the_model_says(model):
    text = page_of(model)
    assert [*validated(text)] == ["task", "fine-tunable", "format", "network-architecture"]
    for wanted in (
        *("| Parameters | 4,845 |", "| Classes | 5 |", "| Images | 16 × 16 pixels |"),
        *("patches of 8 × 8, 2 blocks of 3 heads, width 12, pooling token", "shape (batch, 16, 16, 3)"),
        *("**values in [0, 1]**", "straight to this size, bilinear, without antialiasing"),
        *("`logits` of 5 classes; a softmax", "`cat`, `dog`, `a | b`, `owl`, `eel`."),
    ):
        assert wanted in text, wanted
    for unknown in ("None", "Training", "Licence", "GFLOPs", "Variant", "False"):
        assert unknown not in text, unknown


def test_a_measurement_is_shown_with_what_it_was_measured_on(model):
    measured = (
        Measurement(0.94713, "digits", "test", 1355),
        Measurement(0.5, "ReaL", "validation", 9, "mAP", (384, 512)),
    )
    text = page_of(model, Facts(accuracy=measured))
    assert "| top-1 accuracy on digits, test, 1,355 images | 0.9471 |" in text
    assert "| mAP on ReaL, validation, 9 images of 384 × 512 pixels | 0.5 |" in text


@pytest.mark.parametrize(
    ("task", "options", "tag", "output"),
    [
        ("single_label", {}, "image-classification", "`logits` of 5 classes; a softmax"),
        ("multi_label", {}, "image-classification", "`logits` of 5 classes; a sigmoid"),
        ("regression", {}, "image-others", "`values`: 5 numbers."),
        ("single_label", {"num_classes": None}, "image-feature-vector", "`representation`: 12 numbers"),
    ],
)
def test_each_kind_of_model_says_what_comes_out(task, options, tag, output):
    text = page_of(small(**options), task=task)
    assert validated(text)["task"] == [tag]
    assert output in text
    assert ("labels.txt" in text) == (tag == "image-classification")
    assert "only their numbers are known" in text or "labels.txt" not in text


def test_how_images_are_resized_is_told():
    prepare = Preprocessing(16, "crop", 0.875, "bicubic", True)
    text = page_of(small(preprocessing=prepare))
    assert (
        "the shorter side to 1/0.875 of the size, then the centre cut out, bicubic, with antialiasing."
        in text
    )
    text = page_of(small(image_size=(None, None), position_grid=(2, 2), preprocessing=None))
    assert "shape (batch, height, width, 3)" in text and "| Images | any size |" in text
    assert "Resize others" not in text


def test_of_many_classes_the_first_are_named():
    text = page_of(small(num_classes=25, class_names=[f"c{i}" for i in range(25)]))
    assert "`c18`, `c19` and 5 more." in text and "c20" not in text


def test_a_hybrids_stem_is_described():
    assert "ResNet stem of [1, 1] units, patches of 1 × 1," in page_of(small(**HYBRID, resnet=(1, 1)))


def test_what_an_image_costs_is_told_where_it_is_known():
    """mu/16 at 32: 4 patches of 768 into 32 channels; 5 tokens in a block; a head of 10."""
    arguments = {**parse_variant("mu/16"), "image_size": 32, "num_classes": 10}
    text = page_of(VisionTransformer(**arguments))
    d, mlp, tokens = 32, 128, 5
    block = tokens * (4 * d * d + 2 * d * mlp) + 2 * tokens * tokens * d
    flops = 2 * (4 * 768 * d + block + d * 10)
    assert f"| GFLOPs an image (multiplications and additions) | {flops / 1e9:.3g} |" in text
    assert "| Variant | mu/16 |" in text and "Vision Transformer mu/16 for image" in text
    other = page_of(VisionTransformer(**arguments, num_registers=3))  # has parameters that are not counted
    assert "GFLOPs" not in other and "mu/16" in other


def test_signatures_are_read_as_they_are(model, tmp_path):
    folder = export_saved_model(model, tmp_path / "1")
    inside = read_contents(folder)
    assert inside.signatures["serving_default"] == (
        {"images": ("float32", "(batch, 16, 16, 3)")},
        {"logits": ("float32", "(batch, 5)"), "probabilities": ("float32", "(batch, 5)")},
    )
    text = page_of(model, inside=inside)
    assert (
        "| `serving_default` | `images` float32 (batch, 16, 16, 3) "
        "| `logits` float32 (batch, 5), `probabilities` float32 (batch, 5) |"
    ) in text
    assert "__saved_model_init_op" not in text


# Fine-tuning -------------------------------------------------------------------------------------


def test_how_much_can_be_trained_is_read_from_the_saved_model(tmp_path):
    """In numbers: the seeds of dropout are variables too, and no parameters."""
    model = small(dropout_rate=0.5)
    everything = [layer.name for layer in model.layers]
    counts = []
    for place, names in enumerate(([], ["encoder_block_0", "patch_embedding"], everything)):
        for name in names:
            model.get_layer(name).trainable = False
        folder = export_saved_model(model, tmp_path / str(place), warmup=())
        loaded = tf.saved_model.load(folder).trainable_variables
        counts.append(read_contents(folder).trainable)
        assert counts[-1] == sum(int(tf.size(variable)) for variable in loaded)
    assert counts[0] == model.count_params() > counts[1] > counts[2] == 0


def test_what_others_wrote_has_nothing_to_train(tmp_path):
    tf.saved_model.save(tf.train.Checkpoint(scale=tf.Variable(2.0)), str(tmp_path / "1"))
    assert read_contents(tmp_path / "1") == ({}, 0)


@pytest.mark.parametrize(
    ("trainable", "tag", "words"),
    [
        (4845, "true", "With `trainable=True` all its weights are trained."),
        (4844, "true", "`trainable=True` 4,844 of its 4,845 parameters are trained; the others are frozen"),
        (0, "false", None),
    ],
)
def test_it_says_how_much_of_it_can_be_trained(trainable, tag, words, model):
    text = page_of(model, inside=Contents({}, trainable))
    assert validated(text)["fine-tunable"] == [tag]
    assert ("## Fine-tuning" in text) == ("trainable=True" in text) == bool(words)
    assert (words or "## Usage") in text
    assert ("all its weights" in text) == (trainable == 4845)


@pytest.mark.parametrize(
    ("task", "classes", "output"),
    [("single_label", 5, "logits"), ("regression", 5, "values"), ("single_label", None, None)],
)
def test_it_says_what_a_new_head_is_put_on(task, classes, output):
    text = page_of(small(num_classes=classes), task=task)
    assert (f"put on the `{output}` here; an export written with `--representation`" in text) == bool(output)
    assert ("--representation" in text) == bool(output)


@pytest.mark.parametrize(("channels", "colours"), [(3, "RGB, in [0, 1]"), (1, "in [0, 1]"), (4, "in [0, 1]")])
def test_colours_are_those_of_the_images(channels, colours):
    text = page_of(small(in_channels=channels, preprocessing=None))
    assert f"images = tf.zeros((1, 16, 16, {channels}))  # {colours}\n" in text
