"""How a run trains: its numbers as a `Recipe`, checked; the named ones are in `named_recipes.py`."""

import dataclasses

OPTIMIZERS = ("sgd", "adamw")
LOSSES = ("softmax", "sigmoid")
TASKS = ("single_label", "multi_label", "regression")
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
# What one field says to people; a run is the same run whatever stands there.
STATEMENTS = ("source", "cost", "result")
# What `sized_for` chooses.
SIZES = ("batch_size", "total_steps", "warmup_steps", "eval_every")


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value):
    return _is_int(value) or isinstance(value, float)


def _or_none(rule, fits):
    return f"{rule} or None", lambda value: value is None or fits(value)


_POSITIVE_INT = ("a positive int", lambda v: _is_int(v) and v > 0)
_SHARE = ("in [0, 1)", lambda v: _is_number(v) and 0 <= v < 1)
_POSITIVE = ("a number above 0", lambda v: _is_number(v) and v > 0)
_SOME_SHARE = ("in (0, 1]", lambda v: _is_number(v) and 0 < v <= 1)


def _one_of(options):
    return f"one of {options}", lambda value: value in options


# What a field must be, in words and as a test. The images' changes are checked by `Augmentation`.
RULES = {
    "optimizer": _one_of(OPTIMIZERS),
    "loss": _one_of(LOSSES),
    "task": _one_of(TASKS),
    "dtype": _one_of(DTYPES),
    "base_lr": _POSITIVE,
    **dict.fromkeys(("total_steps", "batch_size", "eval_every", "accumulation_steps"), _POSITIVE_INT),
    **dict.fromkeys(("checkpoint_every", "train_samples"), _or_none(*_POSITIVE_INT)),
    **dict.fromkeys(("warmup_steps", "seed"), ("an int of at least 0", lambda v: _is_int(v) and v >= 0)),
    **dict.fromkeys(("momentum", "label_smoothing", "dropout_rate", "stochastic_depth_rate"), _SHARE),
    "ema": _or_none(*_SHARE),
    "layer_decay": _or_none(*_SOME_SHARE),
    "weight_decay": ("a number of at least 0", lambda v: _is_number(v) and v >= 0),
    "clip_norm": _or_none(*_POSITIVE),
    "head_bias": ("a number", _is_number),
    "accumulator_dtype": _or_none(*_one_of(("bfloat16", "float32"))),
    "remat": ("True or False", lambda v: isinstance(v, bool)),
    "freeze": _or_none("the name of a layer", lambda v: isinstance(v, str)),
    "model": ("a dict of VisionTransformer arguments", lambda v: isinstance(v, dict)),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The numbers of a training run.

    The default of a field that a later version adds is what runs did before, so that a run that an earlier
    version began goes on as it was.

    Args:
        optimizer: "sgd" (with momentum) or "adamw" (decoupled weight decay, on kernels only).
        base_lr: The learning rate at the end of the warm-up.
        total_steps, warmup_steps, decay: See `WarmupDecay`.
        batch_size: Images in a step, on all devices together.
        task: "single_label", "multi_label" (several classes or none) or "regression" (numbers).
        loss: Of labels: "softmax", or "sigmoid" (each class on its own; summed over the classes).
            A multi-label task has the sigmoid's, a regression the squared error.
        momentum: Of "sgd".
        accumulator_dtype: In what "sgd" keeps its trace: "bfloat16" as the official code; None: float32.
        weight_decay: Of "adamw"; it is multiplied by the learning rate.
        layer_decay: Factor of the rate from each block to the one before it, in (0, 1], or None.
        clip_norm: Largest global norm of a gradient, or None.
        ema: Momentum of the weights' moving average, which is then what is evaluated and kept, or None.
        accumulation_steps: Micro-batches of a step on each device, one after the other in memory.
        label_smoothing: Share of a label that is spread over all classes, in [0, 1).
        dropout_rate, stochastic_depth_rate: Of the model while it is trained.
        head_bias: Start value of a new head's biases.
        freeze: Name of the last layer that is not trained, such as "encoder_block_8"; "encoder_norm"
            trains what follows the encoder alone (a linear probe); or None.
        model: Other arguments of `VisionTransformer` that belong to the recipe.
        image_size: (height, width) that it trains at where nothing else is asked for, or None.
        dtype: "float32", "mixed_bfloat16" or "mixed_float16".
        remat: Whether blocks are computed a second time in the backward pass instead of kept.
        crop_area, shift, flip, randaugment, layers, random_erasing, mixup, cutmix: See `Augmentation`.
        train_samples: How many training samples are used, as evenly from the classes as can be;
            None: all.
        eval_every: Steps between evaluations on the validation split.
        checkpoint_every: Steps between checkpoints, a divisor of `eval_every`; None: the same.
        seed: Of the split, the order, the augmentation, dropout and new weights.
        source, cost, result: Where the numbers come from, what a run of them costs and what comes out.

    Raises:
        ValueError: for a value that cannot be.

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
    task: str = "single_label"
    loss: str = "softmax"
    momentum: float = 0.9
    accumulator_dtype: str | None = None
    weight_decay: float = 0.0
    layer_decay: float | None = None
    clip_norm: float | None = 1.0
    ema: float | None = None
    accumulation_steps: int = 1
    label_smoothing: float = 0.0
    dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    head_bias: float = 0.0
    freeze: str | None = None
    model: dict = dataclasses.field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    dtype: str = "float32"
    remat: bool = False
    crop_area: tuple[float, float] | None = (0.05, 1.0)
    shift: float = 0.0
    flip: bool = True
    randaugment: tuple[int, float] | None = None
    layers: tuple = ()
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    train_samples: int | None = None
    eval_every: int = 100
    checkpoint_every: int | None = None
    seed: int = 0
    source: str = ""
    cost: str = ""
    result: str = ""

    def __post_init__(self):
        for name, (rule, fits) in RULES.items():
            value = getattr(self, name)
            if not fits(value):
                raise ValueError(f"{name} must be {rule}; got {value!r}")
        if self.optimizer == "sgd" and self.weight_decay:
            raise ValueError(f"weight_decay is of 'adamw'; got {self.weight_decay!r} with 'sgd'")
        if self.eval_every % self.checkpoint_steps:
            raise ValueError(
                f"checkpoint_every must divide eval_every; got {self.checkpoint_every} and {self.eval_every}"
            )
        if self.task != "single_label" and (self.label_smoothing or self.mixup or self.cutmix):
            raise ValueError(
                f"label_smoothing, mixup and cutmix are for single labels; the task is {self.task!r}"
            )

    @property
    def checkpoint_steps(self):
        """Steps between checkpoints."""
        return self.checkpoint_every or self.eval_every

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

    def sized_for(self, images, **changes):
        """This recipe with a batch size and a number of steps that fit the training images.

        * `batch_size`: the largest power of two up to a quarter of the images, from 8 to this recipe's.
        * `total_steps`: 40 epochs to the nearest 100, from 100 to this recipe's.
        * `warmup_steps`: in proportion to the steps.
        * `eval_every`: 50, or this recipe's where that is less or the steps are this recipe's.

        `finetune` stays at 500 steps of 512 images from 5,761 images on. The learning rate is not scaled with
        the batch: gradients are clipped to a norm, which bounds the length of a step at any batch size.

        Args:
            images: The number of training images.
            **changes: Fields that are given and not chosen.

        Example:
            >>> sized = RECIPES["finetune"].sized_for(81)
            >>> sized.batch_size, sized.total_steps, sized.warmup_steps
            (16, 200, 40)
        """
        fits = 1 << (max(images // 4, 8).bit_length() - 1)
        given = self.with_changes(**changes)
        batch_size = given.batch_size if "batch_size" in changes else min(fits, self.batch_size)
        steps = max(100, round(40 * images / batch_size / 100) * 100)
        steps = given.total_steps if "total_steps" in changes else min(steps, self.total_steps)
        sized = {
            "batch_size": batch_size,
            "total_steps": steps,
            "eval_every": min(self.eval_every, 50) if steps < self.total_steps else self.eval_every,
        }
        return self.with_changes(**sized | changes)

    def numbers(self):
        """All fields but those that say something to people, as JSON values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in STATEMENTS}
