"""The configuration of a training run."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any

from keras_vit import rules, tasks
from keras_vit.data.datasets import name_of, public_name
from keras_vit.engine.device_dtype import AUTO
from keras_vit.messages import redact_url
from keras_vit.training.recipes import Recipe

if TYPE_CHECKING:
    from keras_vit.tasks.task import Task

CLASSIFY = "classify"


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a training run.

    Args:
        dataset: A name, as for `load_dataset`.
        recipe: The hyperparameters.
        model: A variant such as "B/16", or constructor arguments of `VisionTransformer`. It may be None if
            there are `weights`, or sizes in the recipe's `model`; the checkpoint must have these sizes.
        weights: The checkpoint to start from: its source, or a `.keras` file or run of this package. Its
            `pre_logits` is dropped and the head is initialized, as in official fine-tuning; the head of a
            segmenter is kept as by `from_pretrained(segmenter=…)`. None: random weights.
        image_size: (height, width); None: the recipe's, the checkpoint's, or the model's own.
        on_bad_image: "fail" or "skip".
        objective: "classify", for any task of the recipe; or a name in `keras_vit.tasks.OBJECTIVES`, such
            as "masked_patch", which needs no labels and trains a model without a head ("distill": with the
            teachers' head).
        target: Of "masked_patch", and refused for others: see `MaskedPatchPredictor`.
        sha256: The digest that the file of `weights` must have, in hexadecimal; None: any.
        tokenizer: Of a recipe with `image_text`: what `read_text_preprocessing` reads, perhaps followed by a
            colon and its family. None: that of the weights with the text tower, or of the data set.
        fields, classes: As for `load_dataset`.
        teachers: The sources of models whose outputs the trained one learns, as the recipe's `distillation`
            says; empty for none. "embeddings:DIR" is a folder of embeddings with logits.
    """

    dataset: str = rules.field(rules.text)
    recipe: Recipe = rules.field(
        rules.Rule("a Recipe, such as find_recipe('finetune')", lambda value: isinstance(value, Recipe))
    )
    model: str | dict | None = None
    weights: str | None = None
    image_size: tuple[int, int] | None = None
    on_bad_image: str = "fail"
    objective: str = rules.field(rules.one_of((CLASSIFY, *tasks.OBJECTIVES)), default=CLASSIFY)
    target: str = "mean_color"
    sha256: str | None = None
    tokenizer: str | None = None
    fields: tuple[str, ...] = ()
    classes: str | None = None
    teachers: tuple[str, ...] = ()

    def __post_init__(self):
        fields = {"dataset": name_of(self.dataset)}
        paths = {"weights": self.weights, "tokenizer": self.tokenizer, "classes": self.classes}
        fields |= {name: os.fspath(path) for name, path in paths.items() if isinstance(path, os.PathLike)}
        fields["teachers"] = tuple(map(os.fspath, self.teachers))
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        rules.check_fields(self)
        if self.model is None and self.weights is None and not self.recipe.has_sizes:
            raise ValueError("expected a model, to train from random weights, or weights; got neither")
        if self.sha256 is not None and self.weights is None:
            raise ValueError(f"expected weights with sha256, their digest; got sha256={self.sha256!r} alone")
        if self.objective == CLASSIFY and self.recipe.pretrainer is not None:
            expected = " or ".join(map(repr, tasks.OBJECTIVES))
            raise ValueError(
                f"a recipe with a pretrainer trains without labels: expected objective {expected}; got "
                f"{self.objective!r}"
            )
        if ignored := self._ignored():
            raise ValueError(
                f"objective {self.objective!r} with task {self.recipe.task!r} does not use "
                f"{', '.join(ignored)}; leave them out"
            )

    def _ignored(self):
        """The fields that are set although this run does not use them."""
        values, defaults = vars(self.recipe) | vars(self), DEFAULTS["recipe"] | DEFAULTS
        ignored = sorted(tasks.fields_of_tasks() - {*self.task.recipe_fields})
        return [f"{name}={values[name]!r}" for name in ignored if values[name] != defaults[name]]

    @functools.cached_property
    def task(self) -> Task:
        """The task: of the recipe's labels, around it, of pairs of images and texts, or without labels."""
        if self.objective != CLASSIFY:
            return tasks.objectives()[self.objective](self)
        for task in tasks.wrapped_tasks():
            if task.applies(self):
                return task(self)
        return tasks.task_with_labels(self.recipe)

    def with_dtype(self, dtype: str) -> RunConfig:
        """This configuration with a dtype in place of the recipe's "auto"."""
        if self.recipe.dtype != AUTO:
            return self
        return dataclasses.replace(self, recipe=dataclasses.replace(self.recipe, dtype=dtype))

    def as_json(self) -> dict[str, Any]:
        """The configuration as JSON values, without the recipe's informational fields and secrets of URLs."""
        sources = {"weights": self.weights, "tokenizer": self.tokenizer, "classes": self.classes}
        return {
            **dataclasses.asdict(self),
            "recipe": self.recipe.hyperparameters(),
            "dataset": public_name(self.dataset),
            "teachers": tuple(map(redact_url, self.teachers)),
            **{name: source and redact_url(source) for name, source in sources.items()},
        }


def _defaults(of):
    return {f.name: f.default for f in dataclasses.fields(of) if f.default is not dataclasses.MISSING}


DEFAULTS = {**_defaults(RunConfig), "recipe": _defaults(Recipe)}
