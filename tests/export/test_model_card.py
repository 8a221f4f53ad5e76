import dataclasses

import pytest
from reference.small import HYBRID, small

from keras_vit import Preprocessing
from keras_vit.export.description import describe
from keras_vit.export.hub import Facts, Measurement
from keras_vit.export.model_card import model_card, summary, usage

KNOWN = {
    "licence": "Apache-2.0",
    "trained_on": "ImageNet-21k, then ImageNet-1k",
    "source": "the AugReg weights",
    "url": "https://example.org/vit/1.tar.gz",
    "accuracy": (Measurement(0.9471, "digits", "test", 355),),
}


def card_of(model, facts=None, task="single_label", trainable=True):
    facts = facts or Facts()
    return model_card(describe(model, task), facts, facts.url or "vit", trainable)


@pytest.fixture(scope="module")
def model():
    return small(class_names=["cat", "dog", "a | b", "owl", "eel"])


@pytest.mark.parametrize(
    "fact, shown",
    [
        ("licence", ("## Licence", "Apache")),
        ("trained_on", ("Trained on ImageNet-21k",)),
        ("source", ("From the AugReg",)),
        ("url", ("example.org",)),
        ("accuracy", ("| top-1 accuracy on digits, test, 355 images | 0.9471 |",)),
    ],
)
def test_unknown_facts_are_not_on_the_card(fact, shown, model):
    everything = card_of(model, Facts(**KNOWN))
    without = card_of(
        model, dataclasses.replace(Facts(**KNOWN), **{fact: () if fact == "accuracy" else None})
    )
    for text in shown:
        assert text in everything, text
        assert text not in without, text


def test_names_given_by_users_are_neither_html_nor_markdown():
    bad = "<script>alert(1)</script> `*a*` [b](c) | \x1b[31m"
    model = small(num_classes=2, class_names=[bad, "```"])
    measured = (Measurement(0.5, f"folder:{bad}", bad, 10, metric=bad),)
    text = card_of(model, Facts(licence=bad, trained_on=bad, source=bad, accuracy=measured))
    shown = r"&lt;script&gt;alert(1)&lt;/script&gt; \`\*a\*\` \[b\](c) \| \\x1b\[31m"
    for line in (
        f"Trained on {shown}.",
        f"From {shown}.",
        f"{shown} on folder:{shown}, {shown}, 10 images | 0.5 |",
        rf"They are: {shown}, \`\`\`.",
    ):
        assert line in text
    assert "\x1b" not in text and "<script>" not in text


def test_without_facts_it_describes_the_model(model):
    text = card_of(model)
    for expected in (
        *("| Parameters | 4,845 |", "| Classes | 5 |", "from images of 16 × 16 pixels"),
        *("patches of 8 × 8, 2 blocks of 3 heads, width 12, pooling token", "shape (batch, 16, 16, 3)"),
        *("**values in [0, 1]**", "straight to this size, bilinear, without antialiasing"),
        *("`logits` of 5 classes; softmax", r"They are: cat, dog, a \| b, owl, eel."),
    ):
        assert expected in text, expected
    for unknown in ("None", "Training", "Licence", "False"):
        assert unknown not in text, unknown


def test_a_measurement_has_its_metric_and_image_size(model):
    measured = Measurement(0.5, "ReaL", "validation", 9, "mAP", (384, 512))
    assert "| mAP on ReaL, validation, 9 images of 384 × 512 pixels | 0.5 |" in card_of(
        model, Facts(accuracy=(measured,))
    )


@pytest.mark.parametrize(
    "task, options, title, output",
    [
        ("single_label", {}, "image classification", "`logits` of 5 classes; softmax"),
        ("multi_label", {}, "multi-label image classification", "`logits` of 5 classes; sigmoid"),
        ("regression", {}, "regression", "`values`: 5 numbers."),
        ("single_label", {"num_classes": None}, "feature vectors", "`representation`: 12 numbers"),
    ],
)
def test_each_task_has_its_title_and_output(task, options, title, output):
    text = card_of(small(**options), task=task)
    assert f"for {title}" in text and output in text
    assert ("labels.txt" in text) == ("classification" in title)
    assert "They are" not in text


def test_the_resizing_of_images_is_described():
    prepare = Preprocessing(16, "crop", 0.875, "bicubic", True)
    expected = "the shorter side to 1.143 times the size, then crop the center, bicubic, with antialiasing."
    assert expected in card_of(small(preprocessing=prepare))
    text = card_of(small(image_size=(None, None), position_grid=(2, 2), preprocessing=None))
    assert "shape (batch, height, width, 3)" in text and "from images of any size" in text
    assert "Resize" not in text


def test_of_many_classes_the_first_are_named():
    text = card_of(small(num_classes=25, class_names=[f"c{i}" for i in range(25)]))
    assert "c18, c19 and 5 more." in text and "c20" not in text


def test_variants_and_stems_are_named():
    assert "ResNet stem of [1, 1] units, patches of 1 × 1," in card_of(small(**HYBRID, resnet=(1, 1)))
    mu = {"patch_size": 16, "hidden_size": 32, "num_layers": 1, "mlp_dim": 128, "num_heads": 2}
    assert summary(describe(small(**mu))).startswith("Vision Transformer mu/16 for image")


@pytest.mark.parametrize(
    "options, size",
    [
        ({}, (16, 16)),
        ({"image_size": (None, None), "position_grid": (2, 2), "patch_size": (24, 300)}, (48, 600)),
        ({"image_size": (16, 24)}, (16, 24)),
    ],
)
def test_programs_use_images_of_the_models_size(options, size):
    text = usage(describe(small(**options)), "vit", True)
    assert f"tf.zeros((1, {size[0]}, {size[1]}, 3))" in text
    assert f"np.zeros((8, {size[0]}, {size[1]}, 3)" in text and "trainable=True)" in text


def test_a_model_without_trainable_variables_is_not_trained_in_the_programs(model):
    text = usage(describe(model), "https://host/vit.tar.gz", False)
    assert "trainable=False, trust=True)" in text and "fit(" not in text
