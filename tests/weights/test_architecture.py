import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.comparing import arrays, float_weights
from reference.small import HYBRID, NO_TRANSFORMER, SMALL, small

from keras_vit import VisionTransformer, from_pretrained
from keras_vit.weights.architecture import infer_arguments
from keras_vit.weights.layouts import vit_jax

HEADS, CELLS = st.integers(1, 3), st.integers(1, 3)
TOLD_BY_ARRAYS = ("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "num_classes")
ARCHITECTURES = [
    {},
    {"pooling": "gap"},
    {"representation_size": 9, "num_classes": None},
    {"image_size": (24, 24), "patch_size": (4, 4), "in_channels": 1},
    {**HYBRID, "resnet": (), "patch_size": 4},
    {**HYBRID, "image_size": 64, "resnet": (2, 1), "resnet_width": 64},
    {**HYBRID, **NO_TRANSFORMER, "resnet": (1, 1)},
]


@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_the_arrays_tell_the_architecture(options):
    model = small(**options)
    inferred = infer_arguments(arrays(model))
    grid = inferred.pop("position_grid", None)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(inferred)) == {name: config[name] for name in inferred}
    assert {*TOLD_BY_ARRAYS, "pooling", "representation_size", "in_channels"} <= {*inferred}
    if options.get("num_layers", 1):
        assert grid == model.get_layer("position_embedding").grid_size
    rebuilt = VisionTransformer(image_size=model.image_size, **inferred)
    assert {w.path: w.shape for w in rebuilt.weights} == {w.path: w.shape for w in model.weights}


def test_anything_with_a_shape_will_do():
    model = VisionTransformer(**SMALL)
    assert infer_arguments({w.path: w for w in model.weights})["num_heads"] == 3


def test_arrays_of_no_vision_transformer_are_refused():
    with pytest.raises(ValueError, match="patch_embedding/kernel must have 4 axes; got no such array"):
        infer_arguments({"dense/kernel": np.zeros((3, 3))})


def official(model):
    """The model's arrays by the official keys: the inverse of what the layout reads."""
    by_key = {}
    for weight in float_weights(model):
        matches = [
            vit_jax.NAMES[ours].format(**match.groupdict())
            for ours in vit_jax.NAMES
            if (match := vit_jax._pattern(ours).fullmatch(weight.path))
        ]
        assert len(matches) == 1, f"{weight.path} has {len(matches)} official names"
        by_key[matches[0]] = arrays(model)[weight.path]
    return by_key


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    side=CELLS,
    patch=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    heads=HEADS,
    head_size=st.integers(2, 5),
    num_layers=st.integers(1, 3),
    mlp_dim=st.integers(1, 9),
    num_classes=st.none() | st.integers(1, 6),
    representation_size=st.none() | st.integers(1, 6),
    pooling=st.sampled_from(["token", "gap"]),
    in_channels=st.integers(1, 4),
)
def test_a_random_architecture_written_in_the_official_layout_loads_back_as_it_was(
    tmp_path, side, patch, heads, head_size, **options
):
    side += options["pooling"] == "gap"  # one token alone has nothing to attend to
    size = tuple(side * p for p in patch)
    model = small(
        **options, image_size=size, patch_size=patch, num_heads=heads, hidden_size=heads * head_size
    )
    np.savez(tmp_path / "model.npz", **official(model))
    loaded = from_pretrained(tmp_path / "model.npz")
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    expected = arrays(model)
    assert arrays(loaded).keys() == expected.keys()
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_an_architecture_written_in_the_official_layout_loads_back_as_it_was(options, tmp_path):
    model = small(**options)
    np.savez(tmp_path / "model.npz", **official(model))
    loaded = from_pretrained(tmp_path / "model.npz", image_size=model.image_size)
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, arrays(model)[name])
