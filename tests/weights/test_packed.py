"""Files of models that pack patches of images of any aspect ratio (NaFlex)."""

import numpy as np
import pytest
from reference.comparing import arrays, assert_same_arrays, randomize
from reference.small import SMALL, TEXT, small

from keras_vit import ImageTextModel, VisionTransformer, from_pretrained, save_weights
from keras_vit.weights.array_resizing import resized_positions
from keras_vit.weights.checkpoint import read_checkpoint

IMAGE = {**SMALL, "num_classes": None, "num_layers": 1, "image_size": (None, None), "pooling": "map"}
IMAGE |= {"position_grid": (2, 2), "max_num_patches": 6}


@pytest.fixture(scope="module")
def towers():
    return randomize(ImageTextModel(IMAGE, TEXT, text_projection=12, projection_bias=True))


@pytest.fixture(scope="module")
def folder(towers, tmp_path_factory):
    """transformers' files of them."""
    return save_weights(towers, tmp_path_factory.mktemp("packed") / "hf", "huggingface").parent


@pytest.fixture
def theirs(folder, tmp_path):
    """The same without our sidecar, as transformers itself writes them."""
    for name in ("model.safetensors", "config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


def test_both_towers_are_restored(towers, folder):
    again = from_pretrained(folder, kind="image_text")
    assert_same_arrays(arrays(again), arrays(towers))
    assert again.image.get_config() == {**towers.image.get_config(), "name": again.image.name}


def test_an_argument_packs_or_fixes_the_size(towers, theirs):
    fixed = from_pretrained(theirs)
    assert (type(fixed), fixed.image_size) == (VisionTransformer, (16, 16))
    assert fixed.preprocessing.antialias
    assert_same_arrays(arrays(fixed), arrays(towers.image))
    packed = from_pretrained(theirs, max_num_patches=9)
    assert (packed.max_num_patches, packed.position_grid) == (9, (2, 2))
    assert (packed.preprocessing.max_num_patches, packed.preprocessing.antialias) == (9, True)
    assert_same_arrays(arrays(packed), arrays(towers.image))
    dynamic = from_pretrained(theirs, image_size=(None, None))
    assert dynamic.position_interpolation == fixed.position_interpolation == "bilinear_antialias"
    with pytest.raises(ValueError, match=r"needs image_size=\(None, None\)"):
        from_pretrained(theirs, image_size=32, max_num_patches=9)
    bicubic = from_pretrained(theirs, max_num_patches=9, position_interpolation="bicubic")
    assert bicubic.get_layer("position_embedding").interpolation == "bicubic"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".keras"])
def test_a_packed_model_becomes_one_of_one_size(suffix, towers, theirs, folder, tmp_path, rng):
    """Its positions are resized as it resizes them itself."""
    source, size = folder, {"image_size": (24, 40)}
    if suffix:
        source = tmp_path / "towers.keras"
        towers.save(source)
    expected = from_pretrained(theirs, **size)
    table = arrays(towers.image)["position_embedding/table"]
    resized = resized_positions(table, (2, 2), (3, 5), "bilinear_antialias")
    np.testing.assert_array_equal(arrays(expected)["position_embedding/table"], resized)
    for kind in ("auto", "image_text"):
        found = from_pretrained(source, kind=kind, **size)
        image = getattr(found, "image", found)
        assert (type(image), image.preprocessing.image_size) == (VisionTransformer, (24, 40))
        assert_same_arrays(arrays(image), arrays(expected))
    text = {name: array for name, array in arrays(towers).items() if name.startswith("text/")}
    assert_same_arrays({name: arrays(found)[name] for name in text}, text)
    assert found.encode_images(rng.random((2, 24, 40, 3))).shape == (2, 12)


def test_what_no_file_says_is_that_of_the_type(theirs):
    bare = (theirs / "model.safetensors").rename(theirs / "bare.safetensors")
    read = read_checkpoint(bare, num_heads=3).arguments
    assert (read["activation"], read["preprocessing"]["interpolation"]) == ("gelu_tanh", "bicubic")


def test_a_model_of_one_size_is_packed(tmp_path):
    model = small(pooling="map", preprocessing={"image_size": 16, "resize": "crop", "crop_fraction": 0.5})
    path = save_weights(model, tmp_path / "m.safetensors", "timm")
    packed = from_pretrained(path, max_num_patches=5)
    assert_same_arrays(arrays(packed), arrays(model))
    assert packed.preprocessing.resize == "squash"
    assert np.isfinite(packed(packed.preprocessing([np.zeros((50, 9, 3), "uint8")]))).all()
