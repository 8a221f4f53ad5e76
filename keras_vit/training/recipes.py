"""How to train: the numbers of a run, by name; each recipe with its source, command and cost."""

import dataclasses

OPTIMIZERS = ("sgd", "adamw")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The numbers of a training run.

    Args:
        optimizer: "sgd" (with momentum) or "adamw" (decoupled weight decay, on kernels only).
        base_lr: The learning rate at the end of the warm-up.
        total_steps, warmup_steps, decay: See `WarmupDecay`.
        batch_size: Images in a step.
        momentum: Of "sgd".
        weight_decay: Of "adamw"; it is multiplied by the learning rate.
        clip_norm: Largest global norm of a gradient, or None.
        label_smoothing: Share of a label that is spread over all classes, in [0, 1).
        crop_area: Smallest and largest share of the image for random crops, or None for none.
        flip: Whether half of the training images are mirrored.
        eval_every: Steps between evaluations on the validation split, each with a checkpoint.
        seed: Of the split, the order, the augmentation and new weights.

    Raises:
        ValueError: for an unknown optimizer, or a number that cannot be.

    Example:
        >>> RECIPES["finetune"].with_changes(total_steps=50).warmup_steps
        10
    """

    optimizer: str
    base_lr: float
    total_steps: int
    warmup_steps: int
    batch_size: int
    decay: str = "cosine"
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    label_smoothing: float = 0.0
    crop_area: tuple[float, float] | None = (0.05, 1.0)
    flip: bool = True
    eval_every: int = 100
    seed: int = 0

    def __post_init__(self):
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r} is unknown; choose one of {OPTIMIZERS}")
        for name in ("total_steps", "batch_size", "eval_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive int; got {value!r}")
        if not self.base_lr > 0:
            raise ValueError(f"base_lr must be above 0; got {self.base_lr!r}")
        if self.crop_area is not None:
            low, high = self.crop_area
            if not 0 < low <= high <= 1:
                raise ValueError(f"crop_area must be (smallest, largest) in (0, 1]; got {self.crop_area!r}")
            object.__setattr__(self, "crop_area", (low, high))

    def with_changes(self, **changes):
        """This recipe with other numbers. A new `total_steps` alone shortens the warm-up with it."""
        unknown = [name for name in changes if name not in {f.name for f in dataclasses.fields(self)}]
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(self))
            raise ValueError(f"a recipe has no {', '.join(unknown)}; its fields are {known}")
        if "total_steps" in changes and "warmup_steps" not in changes:
            warmup = self.warmup_steps * changes["total_steps"] // self.total_steps
            changes["warmup_steps"] = warmup
        return dataclasses.replace(self, **changes)


RECIPES = {
    # A small model from scratch on scikit-learn's 8×8 scans: `keras-vit quickstart`.
    "digits": Recipe(
        optimizer="adamw",
        base_lr=3e-3,
        total_steps=900,
        warmup_steps=90,
        batch_size=64,
        weight_decay=0.1,
        label_smoothing=0.1,
        crop_area=(0.7, 1.0),
        flip=False,
    ),
    # The official fine-tuning at the length of its AugReg notebook: `keras-vit finetune --weights F`.
    # `vit_jax/configs/augreg.py`: SGD with momentum, clip 1, cosine, 100 of 500 steps of warm-up.
    "finetune": Recipe(optimizer="sgd", base_lr=0.03, total_steps=500, warmup_steps=100, batch_size=512),
}


def find_recipe(name):
    """The recipe of that name; ValueError where there is none."""
    if name not in RECIPES:
        raise ValueError(f"recipe {name!r} is unknown; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]
