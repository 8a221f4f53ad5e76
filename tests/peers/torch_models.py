"""torch models with random weights, and comparisons of their outputs with ours."""

import re

import numpy as np
import torch
from reference.comparing import BOUND, arrays, assert_close, numpy
from reference.small import compute


def randomized(module, scale=0.3, seed=1):
    """Give every parameter a random value, so that a swapped, missing or zero one fails."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            is_scale = parameter.ndim == 1 and re.search(r"(norm|\bln_).*weight$", name) is not None
            parameter.copy_(is_scale + scale * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def read_whole(kind, folder, **options):
    """The model that a class of transformers reads from a folder, of which no array is missing or unused."""
    model, report = kind.from_pretrained(folder, output_loading_info=True, **options)
    assert not {what: keys for what, keys in report.items() if keys}
    return model.eval()


def images_of(height, width, channels=3, batch=2):
    """Random images, channels last."""
    return np.random.default_rng(0).uniform(-1, 1, (batch, height, width, channels)).astype("float32")


def channels_first(images):
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def assert_same_stages(model, images, expected):
    """Our stages equal those of the other project."""
    computed = compute(model, images, [*expected])
    for name, theirs in expected.items():
        assert_close(computed[name], theirs.detach().numpy())


def assert_same_gradients(model, compute_loss, theirs, loss, load, fixed=(), bound=BOUND):
    """Our loss and its gradients equal those of the other project.

    Args:
        model: Ours.
        compute_loss: A function that returns its loss.
        theirs, loss: The other project's model, and its loss.
        load: A function that returns a model of ours with the parameters of `theirs`, whose values become the
            gradients.
        fixed: Paths of weights that the other project does not train.
        bound: The largest difference, relative to the loss and to the largest gradient.
    """
    import tensorflow as tf

    weights = [weight for weight in model.trainable_weights if weight.path not in fixed]
    with tf.GradientTape() as tape:
        our_loss = compute_loss()
    gradients = tape.gradient(our_loss, [weight.value for weight in weights], unconnected_gradients="zero")
    assert_close(our_loss, loss.detach().numpy(), bound)
    loss.backward()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else 0 * parameter)
    expected = arrays(load())
    largest = max(np.abs(expected[weight.path]).max() for weight in weights)
    for weight, gradient in zip(weights, gradients):
        error = np.abs(numpy(gradient) - expected[weight.path]).max()
        assert error <= bound * largest, f"{weight.path}: {error / largest:.2g} of the largest"
