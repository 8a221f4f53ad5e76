"""The kinds of models that files hold: which class `from_pretrained(kind=…)` makes of them."""

import pytest
from reference.small import small

from keras_vit import from_pretrained
from keras_vit.models import ImageSegmenter, ImageTextModel, MaskedPatchPredictor, VisionTransformer

TEXT = {"vocabulary_size": 9, "length": 4, "num_layers": 1, "mlp_dim": 24, "num_heads": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A `.keras` file of each kind of model."""
    folder = tmp_path_factory.mktemp("kinds")
    models = {
        "classifier": small(),
        "segmenter": ImageSegmenter(small(num_classes=None), 4),
        "image_text": ImageTextModel(small(num_classes=None), {**TEXT, "hidden_size": small().hidden_size}),
        "pretrainer": MaskedPatchPredictor(small(num_classes=None)),
    }
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "cls", "own", "encoder"),
    [  # the kinds as which a file becomes this class, and its encoder
        ("classifier", VisionTransformer, ("auto", "stored", "classifier"), ()),
        ("segmenter", ImageSegmenter, ("auto", "stored", "segmenter"), ("classifier",)),
        ("image_text", ImageTextModel, ("stored", "image_text"), ("auto",)),
        ("pretrainer", MaskedPatchPredictor, ("pretrainer",), ("auto",)),
    ],
)
def test_each_kind_of_file_becomes_the_class_asked_for(stored, cls, own, encoder, files):
    found = {kind: type(from_pretrained(files / f"{stored}.keras", kind=kind)) for kind in own + encoder}
    assert found == dict.fromkeys(own, cls) | dict.fromkeys(encoder, VisionTransformer)


def test_a_classifier_is_made_of_a_segmenters_encoder(files):
    model = from_pretrained(files / "segmenter.keras", kind="classifier", num_classes=3)
    assert model.num_classes == 3 and model.class_names is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"kind": "pretrainer", "segmenter": {"num_classes": 2}},
            "expected one kind of model; got arguments for pretrainer and segmenter",
        ),
        ({"kind": "segmenter", "num_classes": 0}, "kind='segmenter' needs it"),
    ],
)
def test_arguments_for_two_kinds_are_refused(wrong, message, files):
    with pytest.raises(ValueError, match=message):
        from_pretrained(files / "segmenter.keras", **wrong)
