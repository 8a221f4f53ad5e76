"""The end of a run whose validations no longer improve."""

import keras


def without_improvement(rows, name, largest):
    """The number of validations since the first of the best.

    Args:
        rows: Rows of `metrics.csv`; those of steps without a validation lack the score.
        name: The column of the score.
        largest: Whether a larger score is better.

    Example:
        >>> rows = [{"val_loss": 2.0}, {"val_loss": 1.0}, {"loss": 1.0}, {"val_loss": 1.0}]
        >>> without_improvement(rows, "val_loss", largest=False)
        1
    """
    scores = [row[name] if largest else -row[name] for row in rows if name in row]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


class StopEarly(keras.callbacks.Callback):
    """End `fit` after a validation if as many as `patience` have not improved.

    The count is a function of `metrics.csv`, so a resumed run ends where one without interruption would.

    Args:
        checkpoints: The run's `Checkpoints`, whose best metric is the score.
        rows: The rows of `metrics.csv` up to the step at which `fit` begins.
        patience: The number of validations.
        devices: The run's devices, whose workers all end together.
    """

    def __init__(self, checkpoints, rows, patience, devices):
        super().__init__()
        self.score = checkpoints.best, checkpoints.largest
        self.rows, self.patience, self.devices = [*rows], patience, devices

    @property
    def is_due(self):
        """Whether the run has ended by the rows."""
        return without_improvement(self.rows, *self.score) >= self.patience

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({name: float(value) for name, value in logs.items()})
        if self.score[0] in logs and not self.devices.smallest(int(not self.is_due)):
            self.model.stop_training = True
