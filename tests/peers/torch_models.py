"""torch models with random weights, and comparisons of their outputs with ours."""

import re

import keras
import numpy as np
import torch
from reference.comparing import arrays, assert_close, float_weights, numpy
from reference.small import compute


def randomized(module, scale=0.3, seed=1):
    """Give every parameter a random value, so that a swapped, missing or zero one fails."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            is_scale = parameter.ndim == 1 and re.search(r"(norm|\bln_).*weight$", name) is not None
            parameter.copy_(is_scale + scale * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def images_of(height, width, channels=3, batch=2):
    """Random images, channels last."""
    return np.random.default_rng(0).uniform(-1, 1, (batch, height, width, channels)).astype("float32")


def channels_first(images):
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def stages_of(model, images, *names):
    return {name: keras.ops.convert_to_numpy(x) for name, x in compute(model, images, names).items()}


def assert_same_stages(model, images, expected, report=None):
    """Our stages equal those of the other project."""
    computed = stages_of(model, images, *expected)
    for name, theirs in expected.items():
        if isinstance(theirs, torch.Tensor):
            theirs = theirs.detach().numpy()
        if report is not None:
            error = np.abs(computed[name] - theirs).max() / np.abs(theirs).max()
            report(f"largest difference in {name}", f"{error:.1e}")
        assert_close(computed[name], theirs)


def assert_same_gradients(model, batch, theirs, loss, load):
    """Our loss of a batch of pairs and its gradients equal those of the other project.

    `load` returns a model of ours with the parameters of `theirs`, whose values become the gradients.
    """
    import tensorflow as tf

    weights = float_weights(model)
    with tf.GradientTape() as tape:
        our_loss = model.compute_loss(y_pred=model(batch))
    gradients = tape.gradient(our_loss, [weight.value for weight in weights])
    assert_close(our_loss, loss.detach().numpy())
    loss.backward()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else 0 * parameter)
    expected = arrays(load())
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for weight, gradient in zip(weights, gradients):
        error = np.abs(numpy(gradient) - expected[weight.path]).max()
        assert error <= 3e-6 * largest, f"{weight.path}: {error / largest:.2g} of the largest"
