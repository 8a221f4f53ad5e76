import keras
import numpy as np
import pytest
from made.sampling import some, some_on_jax
from reference.comparing import float_weights, numpy
from reference.small import HYBRID, NO_TRANSFORMER, SMALL, assert_same_as_numpy, images_for, small

from keras_vit import VisionTransformer
from keras_vit.models.vit.resnet_stem import FORMS, resnet_stem

SLOW = pytest.mark.tensorflow_only("JAX compiles the stems for 5 to 10 s each")
STEMS = [  # image, units per stage, patch, grid
    (32, (), 4, (2, 2)),
    ((33, 47), (1, 2), 1, (5, 6)),
    pytest.param((32, 60), (1, 1, 1), 2, (1, 2), marks=SLOW),
    pytest.param(64, (1, 1, 1, 1), 1, (2, 2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("image, resnet, patch, grid", some(STEMS, 3))
@pytest.mark.parametrize("form", [*FORMS])
def test_a_hybrid_equals_numpy(image, resnet, patch, grid, form):
    options = {"image_size": image, "resnet": resnet, "patch_size": patch, "resnet_form": form}
    model = small(**HYBRID | options)
    assert model.get_layer("patch_embedding").output.shape[1:3] == grid
    assert_same_as_numpy(model)


def test_without_a_transformer_the_grid_is_pooled():
    assert_same_as_numpy(small(**HYBRID | NO_TRANSFORMER | {"image_size": (32, 24), "resnet": (1,)}))


@SLOW
def test_a_hybrid_of_any_size_equals_one_of_that_size():
    image = (41, 27)
    hybrid = {**HYBRID, "resnet": (1, 1), "pooling": "gap", "position_embedding": "sincos2d"}
    free, fixed = small(**hybrid | {"image_size": (None, None)}), small(**hybrid | {"image_size": image})
    images = images_for(fixed)
    np.testing.assert_allclose(numpy(free(images)), numpy(fixed(images)), atol=1e-5)


@pytest.mark.parametrize("form", some(some_on_jax(FORMS, 2), 2))
def test_the_form_of_the_stem_matters_where_its_weights_are_small(form):
    """With kernels of 3e-5 the epsilons decide what the stem computes."""
    model = small(**HYBRID | {"resnet": (1,), "resnet_form": form})
    for weight in float_weights(model):
        if "conv" in weight.path:
            weight.assign(1e-4 * weight)
    assert_same_as_numpy(model)
    other = VisionTransformer.from_config({**model.get_config(), "resnet_form": ({*FORMS} - {form}).pop()})
    other.set_weights(model.get_weights())
    images = images_for(model)
    assert np.abs(numpy(other(images)) - numpy(model(images))).max() > 1e-2


def test_a_new_unit_is_the_identity_except_for_its_relu():
    images = keras.Input((16, 16, 3))
    model = keras.Model(images, resnet_stem(images, (2,), width=32))
    before, after = (model.get_layer(f"block1_unit{i}").output for i in (1, 2))
    before, after = keras.Model(images, [before, after])(np.random.default_rng(0).random((1, 16, 16, 3)))
    assert numpy(before).any()
    np.testing.assert_array_equal(numpy(before), numpy(after))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"resnet": (1, 0)}, r"list of positive ints, one per stage, or None; got \(1, 0\)"),
        ({"resnet": (1,), "resnet_width": 40}, "resnet_width must be a multiple of 32.*got 40"),
        ({"resnet": (1,), "image_size": 12, "patch_size": 4}, "3×3 .* smaller than the patch of 4×4"),
    ],
)
def test_a_stem_that_cannot_be_built_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**{**SMALL, **HYBRID, **options})
