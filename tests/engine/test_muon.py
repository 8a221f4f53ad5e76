import keras
import numpy as np
import pytest
from reference.small import small

from keras_vit.engine.muon import Muon, matrix_shape
from keras_vit.training import AdamW


def orthogonalized(matrix):
    """Five iterations of Newton and Schulz in float64."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def as_matrix(path, array):
    """A kernel of a block as (inputs, outputs)."""
    if array.ndim == 2:
        return array
    return array.reshape(-1, array.shape[2]) if "/out/" in path else array.reshape(array.shape[0], -1)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.03)])
def test_steps_follow_the_formulas(dtype, tolerance, rng):
    """Those of blocks' kernels are orthogonal matrices, all others are AdamW's."""
    one, other = small(gated_mlp=True), small(gated_mlp=True)
    other.set_weights(one.get_weights())
    options = {"weight_decay": 0.5, "layer_decay": 0.7, "epsilon": 1e-8}
    muon, adamw = Muon(0.1, iteration_dtype=dtype, **options), AdamW(0.1, **options)
    variables = one.trainable_variables
    paths = [variable.path for variable in variables]
    kernels = [path for path in paths if path.startswith("encoder_block") and path.endswith("/kernel")]
    assert len(kernels) == 2 * (4 + 3)
    weights = {v.path: v.numpy().astype("float64") for v in variables if v.path in kernels}
    momenta = dict.fromkeys(kernels, 0.0)
    for _ in range(3):
        gradients = {v.path: rng.standard_normal(v.shape).astype("float32") for v in variables}
        tensors = [keras.ops.convert_to_tensor(gradients[path]) for path in paths]
        muon.apply(tensors, variables)
        adamw.apply(tensors, other.trainable_variables)
        for path in kernels:
            momenta[path] = 0.95 * momenta[path] + 0.05 * gradients[path]
            step = as_matrix(path, 0.95 * momenta[path] + 0.05 * gradients[path])
            rate = 0.1 * 0.7 ** (2 - int(path[len("encoder_block_")]))
            step = orthogonalized(step) * 0.2 * np.sqrt(max(step.shape))
            weights[path] = weights[path] * (1 - 0.5 * rate) - rate * step.reshape(weights[path].shape)
    for variable, of_adamw in zip(variables, other.trainable_variables):
        expected = weights.get(variable.path, of_adamw.numpy())
        np.testing.assert_allclose(variable.numpy(), expected, atol=tolerance, err_msg=variable.path)


def test_kernels_of_attention_are_matrices():
    model = small()
    shapes = {v.path: matrix_shape(v) for v in model.trainable_variables}
    size = model.hidden_size
    for name in ("query", "key", "value", "out"):
        assert shapes[f"encoder_block_0/attention/{name}/kernel"] == (size, size)
    for path in ("patch_embedding/kernel", "head/kernel", "encoder_block_0/attention/query/bias"):
        assert shapes[path] is None
