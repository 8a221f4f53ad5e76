"""Segmenters in transformers' files; tests/peers compares them with transformers."""

import numpy as np
import pytest
from made import tokenizers
from made.sampling import some
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, TEXT, one_block

from keras_vit import (
    ImageSegmenter,
    ImageTextModel,
    ObjectDetector,
    TextPreprocessing,
    VisionTransformer,
    from_pretrained,
    save_weights,
)
from keras_vit.weights.show import show_checkpoint

ENCODER = {**SMALL, "num_classes": None, "layer_scale": 0.1, "activation": "gelu_erf", "mlp_dim": 24}
QUERIES = {"head": "mask", "num_queries": 6, "query_blocks": 1}


def made(encoder=None, **options):
    encoder = VisionTransformer(**{**ENCODER, **(encoder or {})})
    return randomize(ImageSegmenter(encoder, 5, **{**QUERIES, **options}))


@pytest.mark.parametrize(
    "encoder, options",
    some([({}, {"masked_attention": False}), ({"position_embedding": "none", "rotary": "dinov3"}, {})], 2),
)
def test_a_segmenter_is_written_and_read(encoder, options, tmp_path):
    model = made(encoder, **options, class_names=[*"abcde"])
    for layer in model.layers:
        if layer.name.startswith("query_mask"):
            layer.probability.assign(1.0)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    save_weights(model, tmp_path / "model", "huggingface")
    again = from_pretrained(tmp_path / "model")
    assert (again.class_names, again.masked_attention) == (tuple("abcde"), model.masked_attention)
    assert_close(again(images), numpy(model(images)), 1e-5)
    encoder = from_pretrained(tmp_path / "model", num_classes=0)
    assert_close(
        encoder.feature_extractor("tokens")(images)["tokens"],
        numpy(model.encoder.feature_extractor("tokens")(images)["tokens"]),
        1e-5,
    )


def words(preprocessing=None, **options):
    text = {**TEXT, "length": 8, "causal": True, "pooling": "argmax", "vocabulary_size": 900}
    clip = {"num_classes": None, "pre_norm": True, "activation": "quick_gelu"}
    encoder = VisionTransformer(**{**SMALL, **clip}, preprocessing=preprocessing)
    options = {"merge_class_token": True, "query_size": 12, "head_activation": "gelu_erf", **options}
    return randomize(ObjectDetector(encoder, text=text, **options))


@pytest.mark.slow
@pytest.mark.parametrize("objectness", [True, False])
def test_a_detector_by_words_is_written_and_read_with_its_tokenizer(objectness, tmp_path, rng):
    (tmp_path / "words").mkdir()
    for name, content in tokenizers.clip_files().items():
        (tmp_path / "words" / name).write_bytes(content)
    prepare = TextPreprocessing.from_files(tmp_path / "words", "clip", length=8)
    model = words(class_names=["a cat", "a dog"], text_preprocessing=prepare, objectness=objectness)
    images = rng.standard_normal((2, 16, 16, 3)).astype("float32")
    save_weights(model, tmp_path / "model", "huggingface")
    again = from_pretrained(tmp_path / "model")
    assert (again.class_names, again.class_ids) == (model.class_names, model.class_ids)
    assert_close(again(images), numpy(model(images)), 1e-5)
    assert from_pretrained(tmp_path / "model", class_names=("a dog",)).class_ids == model.class_ids[1:]
    encoder = from_pretrained(tmp_path / "model", num_classes=0)
    assert isinstance(encoder, VisionTransformer)
    assert_close(encoder(images), numpy(model.encoder(images)), 1e-5)


def clip(tmp_path, **options):
    """A folder of transformers' files of a CLIP without a tokenizer, and the model."""
    image = {**SMALL, "num_classes": None, "pre_norm": True, "norm_after_pooling": True}
    text = {**TEXT, "causal": True, "pooling": "argmax"}
    sizes = {"image_projection": 6, "text_projection": 6}
    model = ImageTextModel(image, text, **{"objective": "softmax", **sizes, **options})
    save_weights(randomize(model), tmp_path / "clip", "huggingface")
    return tmp_path / "clip", model


@pytest.mark.slow
def test_a_clip_becomes_a_detector_by_words(tmp_path, rng):
    """Its norm of the class token is then that of all tokens."""
    path, model = clip(tmp_path)
    ids = rng.integers(1, 11, (2, 5))
    options = {"text": "stored", "class_ids": ids, "train_text": True}
    found = from_pretrained(path, detector=options)
    images = rng.standard_normal((2, 16, 16, 3)).astype("float32")
    assert_close(found.encoder(images), numpy(model.image(images)), 1e-5)
    assert_close(found.encode_text(ids), model.encode_text(ids), 1e-5)
    assert {path.partition("/")[0] for path in found.initial_weights} == {
        *("box_head", "class_projection", "class_shift", "class_scale")
    }
    trained = {variable.path for variable in found.trainable_variables}
    assert "text_projection/kernel" in trained
    frozen = from_pretrained(path, detector={**options, "train_text": False})
    assert {variable.path for variable in frozen.trainable_variables} == {
        path for path in trained if not path.startswith("text")
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["huggingface", "keras"])
def test_a_detector_by_words_gets_other_words(layout, tmp_path, rng):
    model = words(class_ids=[[5] * 8])
    path = tmp_path / ("model.keras" if layout == "keras" else "model")
    model.save(path) if layout == "keras" else save_weights(model, path, layout)
    ids = [[3] * 8, [7] * 8]
    found = from_pretrained(path, detector={"text": "stored", "class_ids": ids, "class_names": "ab"})
    images = rng.standard_normal((2, 16, 16, 3)).astype("float32")
    assert not found.initial_weights and found.class_names == ("a", "b")
    assert_close(found(images), numpy(model.with_queries("ab", model.encode_text(ids))(images)), 1e-5)


@pytest.mark.slow
def test_asked_names_are_the_words(tmp_path):
    model = words(class_ids=[[5] * 8])
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="class_names of a detector with a text tower need its tokenizer"):
        from_pretrained(tmp_path / "model.keras", class_names=("x", "y"))
    with pytest.raises(ValueError, match="texts; head='reset' has no effect"):
        from_pretrained(tmp_path / "model.keras", head="reset")
    options = {"text": "stored", "class_ids": [[3] * 8]}
    assert not from_pretrained(tmp_path / "model.keras", detector=options, head="keep").initial_weights


def test_a_file_without_a_text_tower_stores_none(tmp_path):
    one_block().save(tmp_path / "model.keras")
    for path in (tmp_path / "model.keras", "tests/golden/token.npz"):
        with pytest.raises(ValueError, match="expected an open-vocabulary detector or a CLIP"):
            from_pretrained(path, detector={"text": "stored"})
    with pytest.raises(ValueError, match="or 'stored' with weights; got 'stored'"):
        ObjectDetector(one_block(num_classes=None), text="stored", query_size=6)


REFUSED = [
    (made, {"head": "up"}, "of segmenters only head='mask' has a layout, 'huggingface'"),
    (made, {"encoder": {"layer_scale": None}}, "as 'eomt': layer_scale=None"),
    (made, {"head_activation": "silu"}, "as 'eomt': head_activation='silu' (supported: the encoder's)"),
    (words, {"merge_class_token": False}, "merge_class_token=False (supported: True)"),
    (words, {"query_size": 10}, "query_size=10 (supported: 12)"),
    (words, {"head_activation": None}, "head_activation=None (supported: 'gelu_erf')"),
    *(
        (words, {"preprocessing": {"resize": resize}, "objectness": objectness}, f"resize='{resize}' (supp")
        for resize, objectness in (("pad", False), ("crop", True))
    ),
    (
        lambda: words().with_queries(["a"], np.ones((1, 12))),
        {},
        "of detectors only those with a text tower have layouts",
    ),
]


@pytest.mark.parametrize("make, options, message", some(REFUSED, 2))
def test_a_model_that_the_layout_cannot_express_is_refused(make, options, message, tmp_path):
    with pytest.raises(ValueError) as error:
        save_weights(make(**options), tmp_path / "model", "huggingface")
    assert message in str(error.value)
    assert not [*tmp_path.iterdir()]


HEADS = {
    "mask": QUERIES,
    "up": {"head": "up", "decoder_size": 8},
    "linear": {"head": "linear", "head_norm": "batch"},
}


@pytest.fixture(scope="module", params=some(HEADS, 3))
def stored(request, tmp_path_factory):
    """A model with this head, and its file."""
    model = made(**HEADS[request.param], class_names=[*"abcde"])
    path = tmp_path_factory.mktemp("segmenter") / "model.keras"
    model.save(path)
    return model, path


def own_arrays(model):
    own = [weight for layer in model.own_layers() for weight in layer.weights if "float" in weight.dtype]
    return {weight.path: numpy(weight) for weight in own}


@pytest.mark.slow
def test_a_keras_file_is_loaded_at_another_size_and_shown(stored):
    model, path = stored
    found = from_pretrained(path, image_size=24)
    assert (found.image_size, found.head, found.class_names) == ((24, 24), model.head, (*"abcde",))
    expected = own_arrays(model)
    for name, array in own_arrays(found).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert isinstance(from_pretrained(path, num_classes=0), VisionTransformer)
    shown = show_checkpoint(path)
    assert not any(shown[name] for name in ("only_in_file", "only_in_model", "wrong_shape"))
    assert shown["parameters"] == sum(w.numpy().size for w in model.weights if "float" in w.dtype)


def test_a_new_head_has_the_weights_of_the_same_one(stored):
    """Without the classes, if they are others; and a mask's annealing begins anew."""
    model, path = stored
    options, expected = HEADS[model.head], own_arrays(model)
    for names, kept in (("abcde", True), ("abcdf", False), ("abcd", False)):
        head = {"num_classes": len(names), "class_names": [*names], **options}
        found = from_pretrained(path, segmenter=head)
        assert found.class_names == (*names,)
        for name, array in own_arrays(found).items():
            if name.startswith("query_mask"):
                assert array == 1
            elif kept or name.split("/")[0] not in ("head", "class_head"):
                np.testing.assert_array_equal(array, expected[name], err_msg=name)
            else:
                assert array.shape != expected[name].shape or np.abs(array - expected[name]).max() > 1e-3
    with pytest.raises(ValueError, match="expected a segmenter with the same classes, for head='keep'"):
        from_pretrained(path, segmenter={"num_classes": 4, **options}, head="keep")


@pytest.mark.slow
def test_another_head_is_new(stored):
    model, path = stored
    other = from_pretrained(path, segmenter={"num_classes": 5, "head": "multi", "head_norm": None})
    assert other.head == "multi" and not numpy(other.get_layer("head").kernel).any()
    tokens = [numpy(each.encoder.get_layer("class_token").token) for each in (other, model)]
    np.testing.assert_array_equal(*tokens)
    with pytest.raises(ValueError, match="expected a segmenter with the same head, for head='keep'"):
        from_pretrained(path, segmenter={"num_classes": 5, "head": "multi"}, head="keep")


def test_a_classifier_gets_a_new_head(golden):
    found = from_pretrained(golden / "token.npz", segmenter={"num_classes": 3, **HEADS["up"]})
    assert found.num_classes == 3 and found.encoder.num_classes is None
