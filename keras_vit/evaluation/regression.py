"""How good a model is that puts out numbers of its own."""

import numpy as np


def regression_scores(outputs, targets):
    """The numbers of a regression.

    Args:
        outputs, targets: (samples, outputs).

    Returns:
        dict of `samples`; `mse` and `mae`, the mean squared and absolute error over samples and outputs;
        and `r2`, the share of the targets' variance that is explained, the mean over outputs (None if
        an output's targets are all the same).

    Raises:
        ValueError: if there are no samples or the shapes differ.

    Example:
        >>> regression_scores([[1.0], [2.0], [3.0]], [[1.0], [2.0], [4.0]])["mae"]
        0.3333333333333333
    """
    outputs, targets = np.asarray(outputs, "float64"), np.asarray(targets, "float64")
    if outputs.shape != targets.shape or outputs.ndim != 2 or not len(outputs):
        raise ValueError(
            "outputs and targets must both be (samples, outputs), with a sample at least; "
            f"got {outputs.shape} and {targets.shape}"
        )
    errors = outputs - targets
    left = np.square(errors).sum(axis=0)
    variation = np.square(targets - targets.mean(axis=0)).sum(axis=0)
    return {
        "samples": len(targets),
        "mse": float(np.square(errors).mean()),
        "mae": float(np.abs(errors).mean()),
        "r2": float(np.mean(1 - left / variation)) if variation.all() else None,
    }
