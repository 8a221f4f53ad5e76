from made.tables import by_table
from reference.small import HYBRID, small

from keras_vit import ImageSegmenter, KeypointEstimator, Preprocessing
from keras_vit.export.description import describe
from keras_vit.export.hub import Facts, Measurement
from keras_vit.export.hub_card import model_card, summary, usage

KNOWN = {
    "license": ("Apache-2.0", "| License | Apache-2.0 |"),
    "trained_on": ("ImageNet-21k, then ImageNet-1k", "| Trained on | ImageNet-21k, then ImageNet-1k |"),
    "source": ("the AugReg weights", "| Source | the AugReg weights |"),
    "url": ("https://example.org/vit/1.tar.gz", "example.org"),
    "accuracy": (
        (Measurement(0.9471, "digits", "test", 355), Measurement(0.5, "ReaL", "val", 9, "mAP", (384, 512))),
        "| top-1 accuracy on digits, test, 355 images | 0.9471 |\n"
        "| mAP on ReaL, val, 9 images of 384 × 512 pixels | 0.5 |",
    ),
}


def card_of(model, facts=None, task="single_label"):
    facts = facts or Facts()
    return model_card(describe(model, task), facts, facts.url or "vit")


def test_known_facts_and_the_model_are_on_the_card():
    text = card_of(small(), Facts(**{fact: value for fact, (value, _) in KNOWN.items()}))
    for _, shown in KNOWN.values():
        assert shown in text
    for expected in (
        *("| Parameters | 4,845 |", "| Classes | 5 |", "from images of 16 × 16 pixels"),
        *("patches of 8 × 8, 2 blocks of 3 heads, width 12, pooling token", "shape (batch, 16, 16, 3)"),
        *("**values in [0, 1]**", "straight to this size, bilinear, without antialiasing"),
    ):
        assert expected in text


def test_unknown_facts_are_not_on_the_card():
    text = card_of(small())
    for unknown in ("None", "False", "Trained", "Source", "License", "They are", *(KNOWN["url"][1],)):
        assert unknown not in text


def test_names_given_by_users_are_neither_html_nor_markdown():
    bad = "<script>alert(1)</script> `*a*` [b](c) | __d_e__ ~f~ \x1b[31m"
    model = small(num_classes=2, class_names=[bad, "```"])
    measured = (Measurement(0.5, f"folder:{bad}", bad, 10, metric=bad),)
    text = card_of(model, Facts(license=bad, trained_on=bad, source=bad, accuracy=measured))
    shown = r"&lt;script&gt;alert(1)&lt;/script&gt; \`\*a\*\` \[b\](c) \| \_\_d_e\_\_ \~f\~ \\x1b\[31m"
    for line in (
        *(f"| {row} | {shown} |" for row in ("Trained on", "Source", "License")),
        f"{shown} on folder:{shown}, {shown}, 10 images | 0.5 |",
        rf"They are: {shown}, \`\`\`.",
    ):
        assert line in text
    assert "\x1b" not in text and "<script>" not in text


@by_table(
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


def test_the_resizing_of_images_is_described():
    prepare = Preprocessing(16, "crop", 0.875, "bicubic", True)
    expected = "the shorter side to 1.143 times the size, then crop the center, bicubic, with antialiasing."
    assert expected in card_of(small(preprocessing=prepare))
    segmenter = ImageSegmenter(small(num_classes=None, num_layers=1, preprocessing=prepare), 3)
    assert "Resize images straight to this size, bicubic" in card_of(segmenter, task="segmentation")
    points = KeypointEstimator(small(num_classes=None, num_layers=1), 3, head="simple")
    text = card_of(points, task="keypoints")
    assert "Crop an object with the aspect ratio of this size" in text and "Resize" not in text
    text = card_of(small(image_size=(None, None), position_grid=(2, 2), preprocessing=None))
    assert "shape (batch, height, width, 3)" in text and "from images of any size" in text
    assert "Resize" not in text


def test_of_many_classes_the_first_are_named():
    text = card_of(small(num_classes=25, class_names=[f"c{i}" for i in range(25)]))
    assert "They are: c0, c1" in text and "c18, c19 and 5 more." in text and "c20" not in text


def test_variants_and_stems_are_named():
    assert "ResNet stem of [1, 1] units, patches of 1 × 1," in card_of(small(**HYBRID, resnet=(1, 1)))
    mu = {"patch_size": 16, "hidden_size": 32, "num_layers": 1, "mlp_dim": 128, "num_heads": 2}
    assert summary(describe(small(**mu))).startswith("Vision Transformer mu/16 for image")


def test_programs_use_images_of_the_models_size_and_trust_a_url():
    options = {"image_size": (None, None), "position_grid": (2, 2), "patch_size": (24, 300)}
    text = usage(describe(small(**options)), "https://host/vit.tar.gz")
    assert text.count("np.zeros((1, 48, 600, 3), 'float32')") == 2
    assert 'SavedModelLayer("https://host/vit.tar.gz", trainable=True, trust=True)' in text
