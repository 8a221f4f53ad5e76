import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import arrays, assert_close
from reference.small import HYBRID, small
from reference.vit_numpy import RESNET_EPSILONS

from keras_vit import from_pretrained
from keras_vit.inspection import filter_components


def components_by_numpy(kernel, count):
    """Eigenvectors of the covariance of the filters, and the fractions of the eigenvalues."""
    filters = kernel.astype("float64").reshape(-1, kernel.shape[-1])  # a column each
    values, vectors = np.linalg.eigh(np.cov(filters))
    vectors = vectors.T[::-1][:count]
    vectors *= [[1 if max(v, key=abs) > 0 else -1] for v in vectors]
    return vectors.reshape(count, *kernel.shape[:3]), values[::-1][:count] / values.sum()


def assert_components(model, kernel, count):
    components, explained = filter_components(model, count)
    expected, fractions = components_by_numpy(kernel, count)
    assert_close(components, expected, 1e-5)
    assert_close(explained, fractions, 1e-5)
    assert components.dtype == explained.dtype == "float32"


@pytest.mark.parametrize("name", ["token.npz", "bigvision_map.npz"])
def test_components_are_the_eigenvectors_of_the_covariance(name, golden):
    model = from_pretrained(golden / name)
    assert_components(model, arrays(model)["patch_embedding/kernel"], 8)


@pytest.mark.parametrize("options", [{"in_channels": 1}, {"in_channels": 5, "patch_size": (4, 2)}])
def test_other_channels_and_patches(options):
    model = small(**options)
    assert_components(model, arrays(model)["patch_embedding/kernel"], 5)


@pytest.mark.parametrize("form", RESNET_EPSILONS)
def test_a_stems_root_convolution_is_standardized(form):
    """With stds from 1e-2 to 1e-5, so that epsilon matters."""
    model = small(**HYBRID, resnet=(), resnet_form=form)
    root = model.get_layer("conv_root").kernel
    kernel = np.random.default_rng(0).normal(1, 1, root.shape) * np.geomspace(1e-2, 1e-5, root.shape[-1])
    root.assign(kernel)
    kernel = arrays(model)["conv_root/kernel"].astype("float64")
    std_epsilon, variance_epsilon, _ = RESNET_EPSILONS[form]
    std = np.sqrt(kernel.var((0, 1, 2)) + variance_epsilon) + std_epsilon
    assert_components(model, (kernel - kernel.mean((0, 1, 2))) / std, 4)


def test_the_default_count_is_the_papers_or_all():
    for options, count in (({"hidden_size": 36}, 28), ({}, 12), ({"in_channels": 1, "patch_size": 2}, 4)):
        components, explained = filter_components(small(**options))
        assert len(components) == len(explained) == count
    np.testing.assert_allclose(explained.sum(), 1, rtol=1e-6)
    assert [*explained] == sorted(explained, reverse=True)


@by_table("count", [0, 13, 1.0, True])
def test_a_count_out_of_range_is_refused(count):
    with pytest.raises(ValueError, match=f"expected count to be an integer from 1 to 12; got {count!r}"):
        filter_components(small(), count)


def test_filters_that_are_all_the_same_vary_along_nothing():
    model = small()
    layer = model.get_layer("patch_embedding")
    layer.kernel.assign(np.full(layer.kernel.shape, 0.5))
    components, explained = filter_components(model, 3)
    assert np.isfinite(components).all() and explained.tolist() == [0, 0, 0]
