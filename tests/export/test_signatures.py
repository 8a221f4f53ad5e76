import io
import os
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from made.photos import FORMATS, ORIENTATIONS, photo
from PIL import Image
from reference.comparing import assert_close
from reference.small import HYBRID, one_block

from keras_vit import Preprocessing
from keras_vit.export.saved_model import export_saved_model

KINDS = {  # Pillow's mode, the format, (height, width)
    "jpeg": ("RGB", "JPEG", (45, 61)),
    "grey.jpeg": ("L", "JPEG", (20, 16)),
    "cmyk.jpeg": ("CMYK", "JPEG", (33, 70)),
    "png": ("RGB", "PNG", (16, 16)),
    "grey.png": ("L", "PNG", (50, 20)),
    "alpha.png": ("RGBA", "PNG", (9, 90)),
    "grey_alpha.png": ("LA", "PNG", (31, 17)),
    "16_bits.png": ("I;16", "PNG", (24, 40)),
    "gif": ("P", "GIF", (21, 34)),
    "bmp": ("RGB", "BMP", (64, 16)),
    "webp": ("RGB", "WEBP", (40, 25)),
}
PREPARE = {
    "squash": Preprocessing(16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)),
    "crop": Preprocessing(16, "crop", 0.875, "bicubic", antialias=True),
    "nearest": Preprocessing(16, "crop", interpolation="nearest"),
}


def picture(height, width):
    y, x = np.mgrid[:height, :width] / 9
    return (np.stack([np.sin(x + y), np.cos(2 * x), np.sin(y * x / 3)], -1) * 120 + 128).astype("uint8")


def encoded(kind):
    mode, name, size = KINDS[kind]
    image = Image.fromarray(picture(*size))
    if mode in ("RGBA", "LA"):
        image.putalpha(image.getchannel("G"))
    if mode == "I;16":
        image = Image.fromarray(picture(*size)[..., 0].astype("uint16") * 250)
    elif mode == "P":
        image = image.quantize(64)
    else:
        image = image.convert(mode)
    file = io.BytesIO()
    image.save(file, name, **({"lossless": True} if name == "WEBP" else {}))
    return file.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of encoded images of every kind and size."""
    folder = tmp_path_factory.mktemp("images")
    for kind in KINDS:
        (folder / kind).write_bytes(encoded(kind))
    return [folder / kind for kind in KINDS]


@pytest.fixture(scope="module")
def model():
    return one_block(class_names=("red", "green", "blau", "größer", "pink"), preprocessing=PREPARE["squash"])


@pytest.fixture(scope="module")
def loaded(model, tmp_path_factory):
    return exported(model, tmp_path_factory.mktemp("export"))


def exported(model, folder, **options):
    return tf.saved_model.load(export_saved_model(model, folder / "1", **options))


def serve(loaded, signature, **inputs):
    return {name: x.numpy() for name, x in loaded.signatures[signature](**inputs).items()}


def contents(files):
    return tf.constant([file.read_bytes() for file in files])


def representation(model, pixels):
    return model.feature_extractor("representation")(pixels)["representation"]


@pytest.mark.parametrize("prepare", PREPARE)
def test_encoded_images_are_read_as_the_model_reads_files(prepare, files, once):
    model, loaded = once(prepare)
    outputs = serve(loaded, "serving_bytes", image_bytes=contents(files))
    assert {*outputs} == {"representation"}
    assert_close(outputs["representation"], model(model.preprocessing(files)), 1e-5)


def test_photos_are_read_in_their_orientation(once, tmp_path):
    model, loaded = once("squash")
    paths = [tmp_path / f"{number}.{name}" for number in ORIENTATIONS for name in FORMATS]
    for path in paths:
        path.write_bytes(photo(int(path.stem), path.suffix[1:]))
    outputs = serve(loaded, "serving_bytes", image_bytes=contents(paths))
    assert_close(outputs["representation"], model(model.preprocessing(paths)), 1e-5)
    upright, *turned = outputs["representation"][:: len(FORMATS)]
    assert all(np.abs(row - upright).max() > 1e-3 for row in turned)


def test_the_best_classes_of_encoded_images_are_named(model, loaded, files):
    outputs = serve(loaded, "serving_bytes", image_bytes=contents(files))
    assert {*outputs} == {"scores", "class_ids", "classes"}
    assert outputs["scores"].dtype == np.float32 and outputs["class_ids"].dtype == np.int32
    for row, expected in enumerate(model.classify(files)):
        assert [name.decode() for name in outputs["classes"][row]] == [name for name, _ in expected]
        np.testing.assert_allclose(outputs["scores"][row], [score for _, score in expected], atol=1e-5)
        assert [model.class_names[i] for i in outputs["class_ids"][row]] == [name for name, _ in expected]


@pytest.mark.parametrize("classes, named", [(3, 3), (7, 5)])
def test_at_most_five_classes_are_named_by_number_where_they_have_no_names(classes, named, tmp_path):
    loaded = exported(one_block(num_classes=classes), tmp_path)
    outputs = serve(loaded, "serving_bytes", image_bytes=tf.constant([encoded("png")]))
    assert outputs["scores"].shape == outputs["class_ids"].shape == outputs["classes"].shape == (1, named)
    assert [int(name) for name in outputs["classes"][0]] == outputs["class_ids"][0].tolist()
    assert (np.diff(outputs["scores"][0]) <= 0).all()


@pytest.mark.parametrize("size", [(16, 16), (45, 61), (70, 20)])
@pytest.mark.parametrize("prepare", PREPARE)
def test_uint8_images_are_resized_as_the_model_resizes_them(prepare, size, once):
    model, loaded = once(prepare)
    images = np.stack([picture(*size), picture(*size)[::-1]])
    outputs = serve(loaded, "serving_uint8", images=images)
    assert_close(outputs["representation"], model(model.preprocessing(images)), 1e-5)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A model without a head of each preprocessing, and what was exported of it."""
    made = {}

    def get(prepare):
        if prepare not in made:
            model = one_block(preprocessing=PREPARE[prepare], num_classes=None)
            made[prepare] = model, exported(model, tmp_path_factory.mktemp(prepare))
        return made[prepare]

    return get


def test_the_feature_vector_shares_the_heads_model(model, loaded):
    images = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
    outputs = serve(loaded, "image_feature_vector", images=images)
    assert {*outputs} == {"representation"}
    expected = representation(model, model.preprocessing(images))
    assert_close(outputs["representation"], expected, 1e-5)
    for variable in loaded.variables:
        variable.assign(tf.zeros_like(variable))
    assert not serve(loaded, "image_feature_vector", images=images)["representation"].any()
    for variable, weight in zip(loaded.variables, model.variables):
        variable.assign(weight.value)


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_outputs_are_the_tasks(task, tmp_path):
    model = one_block()
    loaded = exported(model, tmp_path, task=task)
    images = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
    logits = model(model.preprocessing(images)).numpy().astype("float64")
    outputs = serve(loaded, "serving_default", images=images)
    files = serve(loaded, "serving_bytes", image_bytes=tf.constant([encoded("png")]))
    if task == "regression":
        assert {*outputs} == {*files} == {"values"}
        assert not hasattr(loaded, "labels")
        return assert_close(outputs["values"], logits, 1e-5)
    assert {*outputs} == {"logits", "probabilities"}
    assert_close(outputs["logits"], logits, 1e-5)
    assert_close(outputs["probabilities"], 1 / (1 + np.exp(-logits)), 1e-5)
    scores = 1 / (1 + np.exp(-model(model.preprocessing(picture(16, 16))).numpy()[0].astype("float64")))
    np.testing.assert_allclose(files["scores"][0], np.sort(scores)[::-1], atol=1e-5)


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """A model of free size, and what was exported of it."""
    model = one_block(image_size=(None, None))
    return model, exported(model, tmp_path_factory.mktemp("free"))


@pytest.mark.parametrize("of_free_size", [False, True])
def test_an_empty_batch_gives_empty_outputs(of_free_size, loaded, free):
    loaded = free[1] if of_free_size else loaded
    sides = (16, 16, 3)
    for signature, inputs in (
        ("serving_default", {"images": tf.zeros((0, *sides))}),
        ("image_feature_vector", {"images": tf.zeros((0, *sides))}),
        ("serving_uint8", {"images": tf.zeros((0, *sides), tf.uint8)}),
        ("serving_bytes", {"image_bytes": tf.constant([], tf.string)}),
    ):
        outputs = serve(loaded, signature, **inputs)
        for name, x in outputs.items():
            width = 12 if name == "representation" else 5
            assert x.shape == (0, width), (signature, name)
    assert loaded(tf.zeros((0, *sides))).shape == (0, 5)


BROKEN = {
    "nothing": b"",
    "no image": b"this is no image",
    "a truncated jpeg": encoded("jpeg")[:-600],
    "a truncated png": encoded("alpha.png")[:-300],
    "half a header": encoded("png")[:20],
}


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_image_is_named_by_its_index(kind, index, loaded):
    batch = [encoded("png")] * index + [BROKEN[kind], encoded("jpeg"), b"the second one"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"image {index} of the batch cannot be decoded"):
        serve(loaded, "serving_bytes", image_bytes=tf.constant(batch))


@pytest.mark.parametrize("index", [0, 2])
def test_an_image_of_too_many_pixels_is_named_by_its_index(index, loaded):
    head = bytearray(encoded("png"))
    head[16:24] = struct.pack(">II", 60_000, 60_000)
    batch = [encoded("png")] * index + [bytes(head), encoded("jpeg")]
    message = f"image {index} of the batch has more than 89478485 pixels or 268435455 bytes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        serve(loaded, "serving_bytes", image_bytes=tf.constant(batch))


def test_each_image_is_computed_at_its_own_size_by_a_model_of_free_size(free):
    model, loaded = free
    images = [picture(*size) for size in ((16, 24), (32, 8), (16, 16))]
    outputs = serve(
        loaded, "serving_bytes", image_bytes=tf.stack([tf.io.encode_png(image) for image in images])
    )
    for row, image in enumerate(images):
        logits = model(model.preprocessing(image)).numpy()[0].astype("float64")
        scores = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose(outputs["scores"][row], np.sort(scores)[::-1], atol=1e-5)
        live = model(model.preprocessing(image))
        assert_close(serve(loaded, "serving_uint8", images=image[np.newaxis])["logits"], live, 1e-5)
        floats = (image / 255).astype("float32")[np.newaxis]
        assert_close(serve(loaded, "serving_default", images=floats)["logits"], live, 1e-5)


@pytest.mark.parametrize("resnet, stride", [(None, 1), ((), 4), *[((1, 1), 8)] * ("FULL" in os.environ)])
def test_images_that_a_model_of_free_size_cannot_cut_are_refused(resnet, stride, free, tmp_path):
    _, loaded = free
    if resnet is not None:
        options = {**HYBRID, "image_size": (None, None), "resnet": resnet, "patch_size": 2}
        loaded = exported(one_block(**options), tmp_path)
    patch = r"\(8, 8\)" if resnet is None else r"\(2, 2\)"
    complaint = rf"height and width are \[32 35\], but after a stride of {stride} the patch of {patch} must"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"the images cannot be cut .*{complaint}"):
        serve(loaded, "serving_uint8", images=picture(32, 35)[np.newaxis])
    files = [tf.io.encode_png(picture(*size)) for size in ((32, 32), (32, 35))]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"image 1 of the batch cannot be cut .*{complaint}"
    ):
        serve(loaded, "serving_bytes", image_bytes=tf.stack(files))


def test_grey_models_read_encoded_images_too(files, tmp_path):
    model = one_block(in_channels=1)
    outputs = serve(exported(model, tmp_path), "serving_bytes", image_bytes=contents(files))
    for row, expected in zip(outputs["scores"], model.classify(files)):
        np.testing.assert_allclose(row, [score for _, score in expected], atol=1e-5)


def test_models_of_other_channels_read_no_files(tmp_path):
    model = one_block(in_channels=4)
    loaded = exported(model, tmp_path)
    assert {*loaded.signatures} == {"serving_default", "image_feature_vector", "serving_uint8"}
    images = np.concatenate([picture(30, 20), picture(30, 20)[..., :1]], -1)[np.newaxis]
    outputs = serve(loaded, "serving_uint8", images=images)
    assert_close(outputs["logits"], model(model.preprocessing(images)), 1e-5)


def test_without_pooling_every_token_has_outputs(tmp_path):
    model = one_block(pooling=None, class_token=True)
    loaded = exported(model, tmp_path)
    live = model(model.preprocessing(picture(16, 16))).numpy()
    assert_close(serve(loaded, "serving_uint8", images=picture(16, 16)[np.newaxis])["logits"], live, 1e-5)
    outputs = serve(loaded, "serving_bytes", image_bytes=tf.constant([encoded("png")]))
    assert outputs["class_ids"].shape == (1, 5, 5)
    np.testing.assert_array_equal(outputs["class_ids"], np.argsort(-live, axis=-1))


def test_tokens_of_images_of_several_sizes_are_not_offered(tmp_path):
    loaded = exported(one_block(pooling=None, image_size=(None, None)), tmp_path)
    assert "serving_bytes" not in loaded.signatures


ARGUMENTS = st.fixed_dictionaries(
    {
        "patch_size": st.sampled_from([8, (4, 8), (8, 16)]),
        "num_layers": st.integers(1, 2),
        "num_classes": st.sampled_from([None, 1, 3]),
        "representation_size": st.sampled_from([None, 6]),
        "position_embedding": st.sampled_from(["learned", "sincos2d", "none"]),
        "activation": st.sampled_from(["gelu_tanh", "gelu_erf", "quick_gelu"]),
        "num_registers": st.integers(0, 2),
        "layer_scale": st.sampled_from([None, 0.5]),
        "qkv_bias": st.booleans(),
        "pre_norm": st.booleans(),
        "norm_after_pooling": st.booleans(),
        "prefix_positions": st.booleans(),
        "in_channels": st.sampled_from([1, 2, 3]),
        "dropout_rate": st.sampled_from([0.0, 0.5]),
        "image_size": st.sampled_from([16, (16, 32), (None, None)]),
    }
)
SHARE = 4 if "FULL" in os.environ else 8  # of the examples: an export takes a second
POOLINGS = st.sampled_from(
    [
        {"pooling": "token"},
        {"pooling": "gap"},
        {"pooling": "gap", "class_token": True},
        {"pooling": "map"},
        {"pooling": None},
        {"pooling": "token", "distillation": True, "representation_size": None, "norm_after_pooling": False},
    ]
)


@settings(max_examples=settings().max_examples // SHARE)
@given(ARGUMENTS, POOLINGS, st.integers(0, 3))
def test_every_model_computes_the_same_when_exported(tmp_path_factory, arguments, pooling, batch):
    model = one_block(**{**arguments, **pooling})
    loaded = exported(model, tmp_path_factory.mktemp("made"))
    size = model.image_size if model.image_size != (None, None) else (16, 32)
    images = np.random.default_rng(0).uniform(size=(batch, *size, model.in_channels)).astype("float32")
    pixels = model.preprocessing.normalise(images * 255)
    live = model(pixels).numpy()
    assert_close(loaded(images), live, 2e-5)
    assert_close(loaded.serve(images), live, 2e-5)
    outputs = serve(loaded, "serving_default", images=images)
    assert_close(outputs["representation" if model.num_classes is None else "logits"], live, 2e-5)
    outputs = serve(loaded, "image_feature_vector", images=images)
    assert_close(outputs["representation"], representation(model, pixels), 2e-5)
