"""The hyperparameters of a training run; the named recipes are in `named_recipes.py`."""

import dataclasses

from keras_vit import rules
from keras_vit.data.augmentation_options import CROP_AREA, Augmentation
from keras_vit.rules import field
from keras_vit.tasks import TASKS

OPTIMIZERS = ("sgd", "adamw")
LOSSES = ("softmax", "sigmoid")
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
# Informational fields, which are not part of a run's identity.
PROVENANCE = ("source", "cost", "result")
# The fields that `sized_for` chooses.
SIZES = ("batch_size", "total_steps", "warmup_steps", "eval_every")

_POSITIVE_INT = rules.integer(at_least=1)
_NATURAL = rules.integer(at_least=0)
_POSITIVE = rules.number(above=0)
_ARGUMENTS = rules.Rule("a dict of VisionTransformer arguments", lambda value: isinstance(value, dict))
_FRACTION = rules.number(0, below=1)


@dataclasses.dataclass(frozen=True)
class Recipe(Augmentation):
    """The hyperparameters of a training run, those of `Augmentation` among them.

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

    optimizer: str = field(rules.one_of(OPTIMIZERS))
    base_lr: float = field(_POSITIVE)
    total_steps: int = field(_POSITIVE_INT)
    warmup_steps: int = field(_NATURAL)
    batch_size: int = field(_POSITIVE_INT)
    decay: str = "cosine"
    task: str = field(rules.one_of(TASKS), default="single_label")
    loss: str = field(rules.one_of(LOSSES), default="softmax")
    momentum: float = field(_FRACTION, default=0.9)
    accumulator_dtype: str | None = field(rules.one_of(("bfloat16", "float32", None)), default=None)
    weight_decay: float = field(rules.number(0), default=0.0)
    layer_decay: float | None = field(rules.optional(rules.number(above=0, high=1)), default=None)
    clip_norm: float | None = field(rules.optional(_POSITIVE), default=1.0)
    ema: float | None = field(rules.optional(_FRACTION), default=None)
    accumulation_steps: int = field(_POSITIVE_INT, default=1)
    label_smoothing: float = field(_FRACTION, default=0.0)
    dropout_rate: float = field(_FRACTION, default=0.0)
    stochastic_depth_rate: float = field(_FRACTION, default=0.0)
    head_bias: float = field(rules.number(), default=0.0)
    freeze: str | None = field(rules.optional(rules.text), default=None)
    model: dict = field(_ARGUMENTS, default_factory=dict)
    image_size: tuple[int, int] | None = None
    dtype: str = field(rules.one_of(DTYPES), default="float32")
    remat: bool = field(rules.boolean, default=False)
    crop_area: tuple[float, float] | None = field(CROP_AREA, default=(0.05, 1.0), kw_only=True)
    flip: bool = field(rules.boolean, default=True, kw_only=True)
    train_samples: int | None = field(rules.optional(_POSITIVE_INT), default=None)
    eval_every: int = field(_POSITIVE_INT, default=100)
    checkpoint_every: int | None = field(rules.optional(_POSITIVE_INT), default=None)
    seed: int = field(_NATURAL, default=0)
    source: str = ""
    cost: str = ""
    result: str = ""

    def __post_init__(self):
        super().__post_init__()
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

    def hyperparameters(self):
        """All fields but the informational ones, as a dict."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in PROVENANCE}
