"""How to train: the numbers of a run, by name; each recipe with its source, command and cost."""

import dataclasses

OPTIMIZERS = ("sgd", "adamw")


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value):
    return _is_int(value) or isinstance(value, float)


def _is_area(value):
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))
    return pair and 0 < value[0] <= value[1] <= 1


# What a field must be, in words and as a test.
RULES = {
    "base_lr": ("a number above 0", lambda v: _is_number(v) and v > 0),
    **dict.fromkeys(
        ("total_steps", "batch_size", "eval_every"), ("a positive int", lambda v: _is_int(v) and v > 0)
    ),
    **dict.fromkeys(("warmup_steps", "seed"), ("an int of at least 0", lambda v: _is_int(v) and v >= 0)),
    **dict.fromkeys(("momentum", "label_smoothing"), ("in [0, 1)", lambda v: _is_number(v) and 0 <= v < 1)),
    "shift": ("in [0, 1]", lambda v: _is_number(v) and 0 <= v <= 1),
    "weight_decay": ("a number of at least 0", lambda v: _is_number(v) and v >= 0),
    "clip_norm": ("a number above 0 or None", lambda v: v is None or _is_number(v) and v > 0),
    "crop_area": ("(smallest, largest) in (0, 1] or None", lambda v: v is None or _is_area(v)),
    "flip": ("True or False", lambda v: isinstance(v, bool)),
}


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
        shift: Largest random shift as a share of the image's side, in [0, 1].
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
    shift: float = 0.0
    flip: bool = True
    eval_every: int = 100
    seed: int = 0

    def __post_init__(self):
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r} is unknown; choose one of {OPTIMIZERS}")
        for name, (rule, fits) in RULES.items():
            value = getattr(self, name)
            if not fits(value):
                raise ValueError(f"{name} must be {rule}; got {value!r}")
        if self.optimizer == "sgd" and self.weight_decay:
            raise ValueError(f"weight_decay is of 'adamw'; got {self.weight_decay!r} with 'sgd'")
        if self.crop_area is not None:
            object.__setattr__(self, "crop_area", tuple(self.crop_area))

    def with_changes(self, **changes):
        """This recipe with other numbers. A new `total_steps` alone shortens the warm-up with it."""
        unknown = [name for name in changes if name not in {f.name for f in dataclasses.fields(self)}]
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(self))
            raise ValueError(f"a recipe has no {', '.join(unknown)}; its fields are {known}")
        changed = dataclasses.replace(self, **changes)
        if "warmup_steps" in changes:
            return changed
        warmup = self.warmup_steps * changed.total_steps // self.total_steps
        return dataclasses.replace(changed, warmup_steps=warmup)


RECIPES = {
    # A small model from scratch on scikit-learn's 8×8 scans: `keras-vit quickstart`.
    "digits": Recipe(
        optimizer="adamw",
        base_lr=2e-3,
        total_steps=1200,
        warmup_steps=120,
        batch_size=64,
        weight_decay=0.5,
        label_smoothing=0.1,
        crop_area=None,
        shift=0.1,
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
