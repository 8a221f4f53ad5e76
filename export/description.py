"""The description of an exported model, which every format contains."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_vit.export.checks import damaged
from keras_vit.export.outputs import outputs_around
from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.models.backbones import backbone
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, stem_stride
from keras_vit.preprocessing.image_preprocessing import Preprocessing
from keras_vit.rules import SIZE, integer, items, one_of, optional, pair, text
from keras_vit.types import Path, Size

if TYPE_CHECKING:
    import keras

    from keras_vit.labels.label_kind import LabelKind

models, schema = LazyModule("keras_vit.models"), LazyModule("keras_vit.models.vit.schema")

FILE = "keras_vit.json"  # in SavedModels, LiteRT and ONNX files
LABELS = "labels.txt"  # one class name a line
RESIZING = ("resize", "crop_fraction", "interpolation", "antialias", "crop_rounding")  # as in `Preprocessing`
# The options that are not in `Description.architecture`.
NOT_ARCHITECTURE = ("preprocessing", "class_names", "task", "split_seed")
_INVALID = (TypeError, LookupError, AttributeError, ArithmeticError, ValueError, RecursionError)
# The part of the architecture that opened exports read, which every version writes. The rest, of which other
# versions have more or less, is checked where a model is built from it.
_READ = {
    "image_size": items(optional(integer(at_least=1)), 2),
    "in_channels": integer(at_least=1),
    "patch_size": SIZE,
    "resnet": optional(items(integer(at_least=1))),
    "pooling": optional(text),
    "position_grid": optional(items(integer(at_least=1), 2)),
    "num_classes": optional(integer(at_least=1)),
}


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of an exported model.

    Args:
        task: The name of its task, such as "single_label".
        image_size: (height, width) of its images; (None, None) for any.
        channels: The number of channels of its images.
        num_outputs: Outputs per image, pixel or patch: classes, values, or channels of the representation.
        class_names: One name per class, or None.
        resize, crop_fraction, interpolation, antialias, crop_rounding: How images are resized, as in
            `Preprocessing`.
        parameters: The number of its parameters.
        architecture: The constructor arguments of the `VisionTransformer` in it.
        version: The version of keras_vit that exported it.
        seed: The seed of the split of the data that it was trained on, if the data set has no test split.
        mean, std: By channel, how the exported model normalizes the pixels itself.
        kind: The `kind` of its class.
        around: The constructor arguments of a model around the `VisionTransformer`; None of one alone.

    Example:
        >>> describe(model).output, describe(model).preprocessing.mean
        ('logits', (0.0, 0.0, 0.0))
    """

    task: str
    image_size: tuple[Any, Any]  # two ints, or None twice
    channels: int
    num_outputs: int
    class_names: tuple[str, ...] | None
    resize: str
    crop_fraction: float
    interpolation: str
    antialias: bool
    crop_rounding: str
    parameters: int
    architecture: dict[str, Any]
    version: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int = 0
    kind: str = "classifier"
    around: dict[str, Any] | None = None

    @property
    def is_map(self) -> bool:
        """Whether the output is a map of each image, such as the logits of its pixels."""
        return label_kind(self.task).is_map

    @property
    def is_classifier(self) -> bool:
        """Whether the output is one row of class scores for each image."""
        has_rows = self.kind not in outputs_around() and self.architecture["pooling"] is not None
        return has_rows and self.num_classes is not None

    def __getattr__(self, name: str) -> Any:
        """An attribute of the live model that its task reads, of those that its outputs name."""
        around = None if name.startswith("_") else self.around
        if not around or name not in outputs_around()[self.kind].attributes:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return around[name]

    patch_size = property(lambda self: tuple(self.architecture["patch_size"]))
    resnet = property(lambda self: self.architecture["resnet"])

    @property
    def num_classes(self) -> int | None:
        """Size of the head, None without one."""
        return (self.around or self.architecture)["num_classes"]

    @property
    def output(self) -> str:
        """The name of the live model's output: "logits", "values" or "representation"."""
        return "representation" if self.num_classes is None else label_kind(self.task).output_name

    @property
    def native_image_size(self) -> tuple[int, int]:
        """(height, width) of its images; of a model for any size, the size of its position grid."""
        if self.image_size != DYNAMIC_SIZE:
            return self.image_size
        grid, patch, resnet = (self.architecture[name] for name in ("position_grid", "patch_size", "resnet"))
        return tuple(cells * side * stem_stride(resnet) for cells, side in zip(grid, patch))

    def with_size(self, size: Size | None = None) -> Description:
        """This Description at a fixed size; ValueError if the model takes another size only.

        Args:
            size: Side of the images in pixels, or (height, width); None for `native_image_size`.
        """
        size = self.native_image_size if size is None else pair(size, "image_size")
        if self.image_size not in (DYNAMIC_SIZE, size):
            raise ValueError(f"image_size must be the model's {self.image_size}; got {size}")
        return dataclasses.replace(self, image_size=size)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names, or the classes' numbers as strings; empty where there are no classes."""
        if self.output != "logits":
            return ()
        return self.class_names or tuple(str(i) for i in range(self.num_classes or 0))

    @property
    def preprocessing(self) -> Preprocessing:
        """Makes of any images the float32 ones in [0, 1] that the export takes."""
        options = {name: getattr(self, name) for name in RESIZING}
        options |= {"mean": (0.0,) * self.channels, "std": (1.0,) * self.channels}
        size = None if self.image_size == DYNAMIC_SIZE else self.image_size
        return Preprocessing(size, **options)

    @property
    def live_preprocessing(self) -> Preprocessing:
        """The live model's `Preprocessing`, which normalizes, too."""
        return dataclasses.replace(self.preprocessing, mean=self.mean, std=self.std)

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + "\n"

    def build(self, preprocessing: Callable[..., Any]) -> keras.Model:
        """The live model in float32, of random weights, with a `Preprocessing`.

        Example:
            >>> description = describe(model)
            >>> description.build(description.live_preprocessing).output.shape
            (None, 10)
        """
        config = {**self.architecture, "preprocessing": preprocessing, "dtype": "float32"}
        model = models.VisionTransformer.from_config(config)
        if self.around is None:
            return model
        return getattr(models, outputs_around()[self.kind].model_class)(model, **self.around)

    @property
    def files(self) -> dict[str, str]:
        """The texts by file name that every format contains."""
        labels = {LABELS: "".join(f"{label}\n" for label in self.labels)} if self.labels else {}
        return {FILE: self.as_json(), **labels}


def describe(model: keras.Model, task: str | None = None, seed: int = 0) -> Description:
    """The Description of a model to export.

    Args:
        model: A model of images, of a class that is exported.
        task: The task of its head; None for the model's, "single_label" if it has none.
        seed: The seed of the split that it was trained on.

    Raises:
        ValueError: if the task is unknown or not the model's, a class name has several lines, or the model
            reads packed patches.

    Example:
        >>> describe(model, "multi_label").labels[:2]
        ('0', '1')
    """
    import keras_vit
    from keras_vit.tasks import task_of_model

    encoder, label_task = backbone(model), task_of_model(model, task)
    encoder.check_one_size("this export, unlike export_image_text,")
    _check_task(model.kind, label_task.label)
    integer().check("seed", seed)
    broken = [name for name in model.class_names or () if name.splitlines() not in ([], [name])]
    if broken:
        raise ValueError(f"class names must be one line each for {LABELS}; got {broken[0]!r}")
    config = json.loads(json.dumps(encoder.get_config()))  # tuples become lists, as when it is read
    prepare, options = model.preprocessing.get_config(), schema.options_of(encoder.schema)
    return Description(
        task=label_task.name,
        image_size=tuple(model.image_size),
        channels=model.in_channels,
        num_outputs=model.output.shape[-1] if model.num_classes is None else model.num_classes,
        class_names=model.class_names,
        parameters=model.count_params(),
        architecture={name: config[name] for name in options if name not in NOT_ARCHITECTURE},
        version=keras_vit.__version__,
        mean=tuple(prepare["mean"]),
        std=tuple(prepare["std"]),
        seed=seed,
        kind=model.kind,
        around=None if encoder is model else _arguments(model),
        **{name: prepare[name] for name in RESIZING},
    )


def _check_task(kind: str, label: LabelKind) -> None:
    """Raise ValueError unless models of a kind have outputs for the labels of a task."""
    if around := outputs_around().get(kind):
        one_of([around.task]).check("task", label.name)
    elif label.moves:
        raise ValueError(f"expected a task with one output per image; got {label.name!r}")


def _arguments(model: keras.Model) -> dict[str, Any]:
    """The constructor arguments of a model, without its encoder and what else a Description has."""
    config = json.loads(json.dumps(model._config()))
    return {name: value for name, value in config.items() if name not in NOT_ARCHITECTURE}


def parse_description(text: str | bytes | None, path: Path) -> Description:
    """The Description in an exported file; fields of later versions of keras_vit are ignored.

    Args:
        text: The contents of `keras_vit.json`, or None if there is none.
        path: The exported file, for the message.

    Raises:
        ValueError: if keras_vit did not write it, or it describes no model.
    """
    if text is None:
        raise ValueError(f"{os.fspath(path)!r} was not exported by keras_vit: it has no {FILE}")
    try:
        values = json.loads(text)
        lists = ("image_size", "class_names", "mean", "std")
        values |= {name: tuple(values[name]) for name in lists if values.get(name) is not None}
        known = {field.name for field in dataclasses.fields(Description)}
        description = Description(**{name: value for name, value in values.items() if name in known})
        _check(description)
    except _INVALID as error:
        raise damaged(path, f"{FILE}: {error}") from None
    return description


def _check(description: Description) -> None:
    """Raise an error unless this describes a model, and its fields agree with each other."""
    d = description
    for name, rule in _READ.items():
        rule.check(name, d.architecture[name])
    channels, image_size = d.architecture["in_channels"], tuple(d.architecture["image_size"])
    expected = {"channels": channels}
    if image_size != DYNAMIC_SIZE:  # A LiteRT file may fix a size that the model leaves open.
        expected["image_size"] = image_size
    if d.output != "representation":
        expected["num_outputs"] = integer(at_least=1).check("num_classes", d.num_classes)
    for name, value in expected.items():
        one_of([value]).check(name, getattr(d, name))
    for name in ("num_outputs", "parameters", "seed"):
        integer().check(name, getattr(d, name))
    text.check("version", d.version)
    optional(items(text)).check("class_names", d.class_names)
    if d.class_names is not None:
        one_of([d.num_classes]).check("number of class names", len(d.class_names))
    one_of(["classifier", *outputs_around()]).check("kind", d.kind)
    one_of([d.kind in outputs_around()]).check("model around", d.around is not None)
    _check_task(d.kind, label_kind(d.task))
    # The constructor of Preprocessing checks these fields.
    one_of([channels]).check("channels of mean and std", d.live_preprocessing.channels)


def read_description(saved_model: Path) -> Description:
    """The Description in a SavedModel's folder.

    Raises:
        ValueError: if keras_vit did not write it, or it describes no `VisionTransformer`.

    Example:
        >>> read_description(export_saved_model(model, "described/1")) == describe(model)
        True
    """
    file = pathlib.Path(saved_model).expanduser() / "assets" / FILE
    text = file.read_text(encoding="utf-8") if file.is_file() else None
    description = parse_description(text, saved_model)
    try:
        names = description.class_names if description.around is None else None
        cls, options = schema.class_and_options(description.architecture, models.VisionTransformer)
        cls.schema(**{**options, "class_names": names})
    except _INVALID as error:
        raise damaged(saved_model, f"{FILE}: {error}") from None
    return description
