"""torch models with random weights, and comparisons of their outputs with ours."""

import keras
import numpy as np
import torch
from reference.comparing import assert_close
from reference.small import compute


def randomised(module, scale=0.3, seed=1):
    """Give every parameter a random value, so that a swapped, missing or zero one fails."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            start = 1.0 if parameter.ndim == 1 and "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(start + scale * torch.randn(parameter.shape, generator=generator))
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
