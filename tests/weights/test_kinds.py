"""The kinds of models that files hold: which class `from_pretrained(kind=…)` makes of them."""

import numpy as np
import pytest
from made.sampling import some
from reference.small import TEXT, small

from keras_vit import from_pretrained
from keras_vit.models import ImageSegmenter, ImageTextModel, MaskedPatchPredictor, VisionTransformer

# A model, its class, the kinds as which its file becomes this class, and its encoder.
MODELS = {
    "classifier": (small, VisionTransformer, ("auto", "stored", "classifier"), ()),
    "segmenter": (
        lambda: ImageSegmenter(small(num_classes=None), 4),
        *(ImageSegmenter, ("auto", "stored", "segmenter"), ("classifier",)),
    ),
    "image_text": (
        lambda: ImageTextModel(small(num_classes=None), TEXT),
        *(ImageTextModel, ("stored", "image_text"), ("auto",)),
    ),
    "pretrainer": (
        lambda: MaskedPatchPredictor(small(num_classes=None)),
        *(MaskedPatchPredictor, ("pretrainer",), ("auto",)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_each_kind_of_file_becomes_the_class_asked_for(name, tmp_path):
    make, cls, own, encoder = MODELS[name]
    make().save(tmp_path / "model.keras")
    found = {kind: type(from_pretrained(tmp_path / "model.keras", kind=kind)) for kind in own + encoder}
    assert found == dict.fromkeys(own, cls) | dict.fromkeys(encoder, VisionTransformer)


def test_a_classifier_is_made_of_a_segmenters_encoder(tmp_path):
    MODELS["segmenter"][0]().save(tmp_path / "model.keras")
    model = from_pretrained(tmp_path / "model.keras", kind="classifier", num_classes=3)
    assert model.num_classes == 3 and model.class_names is None


@pytest.mark.parametrize("name, options", some([("pretrainer", {}), ("image_text", {"image_size": 32})], 2))
def test_weights_and_variant_of_a_whole_model_are_checked(name, options, tmp_path):
    make, cls, kinds, _ = MODELS[name]
    model, path = make(), tmp_path / "model.keras"
    model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
    model.save(path)
    for kind in kinds:
        with pytest.raises(ValueError, match="model.keras: variant B/16 says .*, it says"):
            from_pretrained(path, kind=kind, variant="B/16")
        with pytest.raises(ValueError, match="model.keras holds NaN or infinity in .*; the file is damaged"):
            from_pretrained(path, kind=kind)
        assert type(from_pretrained(path, kind=kind, check_finite=False, **options)) is cls
