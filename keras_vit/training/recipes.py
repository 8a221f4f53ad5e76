"""The hyperparameters of a training run; the named recipes are in `named_recipes.py`."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_vit import rules
from keras_vit.data.augmentation.options import CROP_AREA, Augmentation
from keras_vit.engine.device_dtype import AUTO, SUPPORTED
from keras_vit.engine.optimizers import LAYER_DECAY
from keras_vit.engine.schedules import DECAYS
from keras_vit.messages import did_you_mean, listed
from keras_vit.rules import field
from keras_vit.tasks import NAMES, task_with_labels
from keras_vit.types import Tensor
from keras_vit.variants import SIZES as SIZES_OF_MODEL

OPTIMIZERS = ("sgd", "adamw", "muon")
# By field, the optimizers that use it; others have its default.
USED_BY = {
    "momentum": ("sgd",),
    "accumulator_dtype": ("sgd",),
    "beta_2": ("adamw", "muon"),
    "weight_decay": ("adamw", "muon"),
}
LOSSES = ("softmax", "sigmoid")
DTYPES = (AUTO, *SUPPORTED)
# Informational fields, which are not part of a run's identity.
PROVENANCE = ("source", "cost", "result")
# The fields that `sized_for` chooses.
SIZES = ("batch_size", "total_steps", "warmup_steps", "eval_every")

_POSITIVE_INT = rules.integer(at_least=1)
_NATURAL = rules.integer(at_least=0)
_POSITIVE = rules.number(above=0)
_ARGUMENTS = rules.Rule("a dict of arguments", lambda value: isinstance(value, dict))
_FRACTION = rules.number(0, below=1)
_NUMBERS = rules.items(rules.number(0))
_SIZES = rules.Rule(
    "a tuple of different positive ints, two or more,",
    lambda value: (
        rules.items(_POSITIVE_INT).accepts(value) and len({*value}) == len(value) and len(value) > 1
    ),
)
_CLASS_WEIGHTS = rules.optional(
    rules.Rule(
        "'balanced', a tuple of numbers of at least 0",
        lambda value: value == "balanced" or _NUMBERS.accepts(value),
    )
)


@dataclasses.dataclass(frozen=True)
class Recipe(Augmentation):
    """The hyperparameters of a training run, including the fields of `Augmentation`.

    Args:
        optimizer: "sgd" (with momentum), "adamw" (decoupled weight decay, on kernels only) or "muon" (the
            same, with orthogonal steps for the kernels of blocks).
        base_lr: The learning rate at the end of the warm-up.
        total_steps, warmup_steps, decay: See `WarmupDecay`.
        batch_size: Images per step, on all devices together.
        task: "single_label", "multi_label" (several classes or none), "regression" (numbers),
            "segmentation" (a class for each pixel), "depth" (a number for each pixel), "detection"
            (objects with boxes) or "keypoints" (points of an object).
        loss: Of single labels: "softmax", or "sigmoid" (binary cross-entropy, summed over the classes).
            Multi-label tasks always use "sigmoid"; other tasks have a loss of their own.
        momentum: Of "sgd".
        beta_2: Of "adamw" and "muon": the decay of its mean of squared gradients.
        accumulator_dtype: dtype of the momentum buffer of "sgd": "bfloat16" as in the official code; None:
            float32.
        weight_decay: Of "adamw" and "muon"; it is multiplied by the learning rate.
        layer_decay: Factor of the rate from each block to the one before it, in (0, 1], or None.
        clip_norm: Largest global norm of a gradient, or None.
        ema: Momentum of the moving average of the weights, which is then evaluated and saved, or None.
        accumulation_steps: Micro-batches per step on each device.
        label_smoothing: Fraction of a label that is spread over all classes, in [0, 1).
        class_weights: Weights of the classes in the loss and the metrics of training, not of validation, for
            single labels: "balanced" (in inverse proportion to the training images of a class), a tuple with
            a number for each class, or None.
        dropout_rate, stochastic_depth_rate, patch_dropout_rate: Of the model in training.
        head_bias: Initial value of the biases of a new head for classes or numbers.
        freeze: Name of the last frozen layer, such as "encoder_block_8"; "encoder_norm" for a linear probe;
            or None.
        probe_first: Whether the head starts as the linear probe of the frozen features of at most 20,000
            training images (`fit_head`), instead of at zero.
        model: Other arguments of `VisionTransformer`. If they have all sizes, they are for runs without
            weights and without all sizes of another model.
        head_options: Of a task whose model is an encoder with a head of its own: arguments of this model,
            such as the `head` of an `ImageSegmenter`; None for its defaults.
        image_text: Arguments of `ImageTextModel` besides the image tower, to train it on a data set with
            texts; the tokenizer determines the vocabulary and the length of `text`. Without `text`, both
            towers come from the weights. None for another model.
        distillation: Of a run with teachers: arguments of
            `keras_vit.tasks.distillation.task.DistillationOptions`; None for its defaults.
        pretrainer: Of an objective without labels: arguments of the model that is trained, besides its
            encoder; None for its defaults.
        image_size: (height, width) for training unless another is given, or None.
        patch_sizes: Sides of patches in pixels, of which one is drawn for each batch (FlexiViT); the model's
            own `patch_size` is that of its stored kernel and of the validation. None: only the model's own.
        dtype: "float32", "mixed_bfloat16" or "mixed_float16", which scales the loss; "auto": that of
            `device_dtype`, which a run chooses when it begins and keeps when it is resumed.
        remat: Whether to recompute the blocks in the backward pass instead of storing their activations.
        crop_area, scale_jitter, shift, flip, photometric, randaugment, layers: See `Augmentation`.
        random_erasing, mixup, cutmix, mosaic, rotate: See `Augmentation`.
        train_samples: Number of training samples, a random subset; of single labels with as equal numbers
            from each class as possible. None: all.
        eval_every: Steps between evaluations on the validation split.
        checkpoint_every: Steps between checkpoints, a divisor of `eval_every`; None: the same.
        patience: Number of validations without a better score, of the metric by which the best checkpoint
            is chosen, after which a run ends; its model is that of the best one. None: all `total_steps`.
        seed: Of the order, the augmentation, dropout and initial weights.
        split_seed: Of the images that are held out if the data set has no validation or test split of its
            own; None: `seed`.
        source, cost, result: Where the values come from, and the cost and result of a run.

    Raises:
        ValueError: for a value that is not allowed.

    Example:
        >>> RECIPES["finetune"].with_changes(total_steps=50).warmup_steps
        10
    """

    optimizer: str = field(rules.one_of(OPTIMIZERS))
    base_lr: float = field(_POSITIVE)
    total_steps: int = field(_POSITIVE_INT)
    warmup_steps: int = field(_NATURAL)
    batch_size: int = field(_POSITIVE_INT)
    decay: str = field(rules.one_of(DECAYS), default="cosine")
    task: str = field(rules.one_of(NAMES), default="single_label")
    loss: str = field(rules.one_of(LOSSES), default="softmax")
    momentum: float = field(_FRACTION, default=0.9)
    beta_2: float = field(_FRACTION, default=0.999, kw_only=True)
    accumulator_dtype: str | None = field(rules.one_of(("bfloat16", "float32", None)), default=None)
    weight_decay: float = field(rules.number(0), default=0.0)
    layer_decay: float | None = field(LAYER_DECAY, default=None)
    clip_norm: float | None = field(rules.optional(_POSITIVE), default=1.0)
    ema: float | None = field(rules.optional(_FRACTION), default=None)
    accumulation_steps: int = field(_POSITIVE_INT, default=1)
    label_smoothing: float = field(_FRACTION, default=0.0)
    class_weights: str | tuple[float, ...] | None = field(_CLASS_WEIGHTS, default=None, kw_only=True)
    dropout_rate: float = field(_FRACTION, default=0.0)
    stochastic_depth_rate: float = field(_FRACTION, default=0.0)
    patch_dropout_rate: float = field(_FRACTION, default=0.0, kw_only=True)
    head_bias: float = field(rules.number(), default=0.0)
    freeze: str | None = field(rules.optional(rules.text), default=None)
    probe_first: bool = field(rules.boolean, default=False, kw_only=True)
    model: dict = field(_ARGUMENTS, default_factory=dict)
    image_size: tuple[int, int] | None = None
    patch_sizes: tuple[int, ...] | None = field(rules.optional(_SIZES), default=None, kw_only=True)
    dtype: str = field(rules.one_of(DTYPES), default=AUTO)
    remat: bool = field(rules.boolean, default=False)
    crop_area: tuple[float, float] | None = field(CROP_AREA, default=(0.05, 1.0), kw_only=True)
    flip: bool = field(rules.boolean, default=True, kw_only=True)
    head_options: dict | None = field(rules.optional(_ARGUMENTS), default=None)
    image_text: dict | None = field(rules.optional(_ARGUMENTS), default=None)
    distillation: dict | None = field(rules.optional(_ARGUMENTS), default=None, kw_only=True)
    pretrainer: dict | None = field(rules.optional(_ARGUMENTS), default=None)
    train_samples: int | None = field(rules.optional(_POSITIVE_INT), default=None)
    eval_every: int = field(_POSITIVE_INT, default=100)
    checkpoint_every: int | None = field(rules.optional(_POSITIVE_INT), default=None)
    patience: int | None = field(rules.optional(_POSITIVE_INT), default=None, kw_only=True)
    seed: int = field(_NATURAL, default=0)
    split_seed: int | None = field(rules.optional(_NATURAL), default=None, kw_only=True)
    source: str = ""
    cost: str = ""
    result: str = ""

    def __post_init__(self):
        super().__post_init__()
        for name in ("class_weights", "patch_sizes"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, default in self._unused_by(self.optimizer).items():
            value, users = getattr(self, name), " or ".join(map(repr, USED_BY[name]))
            if value != default:
                raise ValueError(f"{name} needs the optimizer {users}; got {value!r} for {self.optimizer!r}")
        if self.eval_every % self.checkpoint_steps:
            raise ValueError(
                f"checkpoint_every must divide eval_every; got {self.checkpoint_every} and {self.eval_every}"
            )
        task_with_labels(self).check_recipe(self)

    @classmethod
    def _unused_by(cls, optimizer):
        """The defaults of the fields that an optimizer does not use."""
        return {name: getattr(cls, name) for name, users in USED_BY.items() if optimizer not in users}

    @property
    def has_sizes(self) -> bool:
        """Whether `model` has all sizes of a model, so that a run needs no other."""
        return all(name in self.model for name in (*SIZES_OF_MODEL, "patch_size"))

    @property
    def held_out_seed(self) -> int:
        """The seed of the split of the data set."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def checkpoint_steps(self) -> int:
        """Steps between checkpoints."""
        return self.checkpoint_every or self.eval_every

    def images_at_once(self, replicas: int = 1) -> int:
        """The number of images of a micro-batch on each of several devices.

        >>> RECIPES["finetune"].with_changes(accumulation_steps=8).images_at_once(replicas=2)
        32
        """
        return max(self.batch_size // (replicas * self.accumulation_steps), 1)

    def with_changes(self, **changes: Any) -> Recipe:
        """This recipe with other values.

        With another `total_steps`, `warmup_steps` scales unless it is given; and unless `eval_every` or
        `checkpoint_every` is given, both are at most `total_steps`. With another `optimizer`, the fields that
        it does not use have their defaults unless they are given.
        """
        known = [each.name for each in dataclasses.fields(self)]
        if unknown := [name for name in changes if name not in known]:
            hinted = [f"{name}{did_you_mean(name, known)}" for name in unknown]
            raise ValueError(f"a recipe has no {', '.join(hinted)}; its fields are {listed(known, 10)}")
        steps = changes.get("total_steps")
        is_given = {"eval_every", "checkpoint_every"} & {*changes}
        if not is_given and isinstance(steps, int) and 0 < steps < self.eval_every:
            divides = self.checkpoint_every and steps % self.checkpoint_every == 0
            changes |= {"eval_every": steps, "checkpoint_every": self.checkpoint_every if divides else None}
        if "optimizer" in changes:
            changes = self._unused_by(changes["optimizer"]) | changes
        changed = dataclasses.replace(self, **changes)
        if "warmup_steps" in changes:
            return changed
        warmup = self.warmup_steps * changed.total_steps // self.total_steps
        return dataclasses.replace(changed, warmup_steps=warmup)

    def sized_for(self, images: Tensor, **changes: Any) -> Recipe:
        """This recipe with a batch size and a number of steps for the number of training images.

        * `batch_size`: the largest power of two up to a quarter of the images, from 8 to this recipe's.
        * `total_steps`: 40 epochs to the nearest 100, from 100 to this recipe's.
        * `warmup_steps`: in proportion to the steps.
        * `eval_every`: 50, or this recipe's if that is less or the steps are this recipe's.

        With 5,761 images or more, `finetune` keeps its 500 steps of 512 images. The learning rate does not
        scale with the batch size: gradients are clipped to a norm, which bounds a step at any batch size.

        Args:
            images: The number of training images.
            **changes: Fields to set instead.

        Example:
            >>> sized = RECIPES["finetune"].sized_for(81)
            >>> sized.batch_size, sized.total_steps, sized.warmup_steps
            (16, 200, 40)
        """
        fits = 1 << (max(images // 4, 8).bit_length() - 1)
        changed = self.with_changes(**changes)
        batch_size = changed.batch_size if "batch_size" in changes else min(fits, self.batch_size)
        steps = max(100, round(40 * images / batch_size / 100) * 100)
        steps = changed.total_steps if "total_steps" in changes else min(steps, self.total_steps)
        sized = {
            "batch_size": batch_size,
            "total_steps": steps,
            "eval_every": min(self.eval_every, 50, steps) if steps < self.total_steps else self.eval_every,
        }
        return self.with_changes(**sized | changes)

    def hyperparameters(self) -> dict[str, Any]:
        """All fields but the informational ones, as a dict."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in PROVENANCE}
