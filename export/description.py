"""What an exported model says of itself, in every format: what goes in, what comes out, what it is."""

import dataclasses
import json
import os
import pathlib

import keras_vit
from keras_vit.models.config import DYNAMIC_SIZE, OPTIONS, ViTConfig, stem_stride
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks import TASKS

FILE = "keras_vit.json"  # its name inside SavedModels, LiteRT and ONNX files
LABELS = "labels.txt"  # one class name a line
ELSEWHERE = ("preprocessing", "class_names", "task", "split_seed")  # arguments with fields of their own


@dataclasses.dataclass(frozen=True)
class Description:
    """What an exported model is.

    Args:
        task: "single_label", "multi_label" or "regression": what its numbers mean.
        image_size: (height, width) that it reads; (None, None) for any.
        channels: Of its images.
        num_outputs: Numbers an image that come out: classes, or channels of the representation.
        class_names: One a class, or None.
        resize, crop_fraction, interpolation, antialias: As in `Preprocessing`: how its images are
            resized. The pixels' normalisation is part of what is exported.
        parameters: How many it has.
        architecture: The constructor arguments of the `VisionTransformer`.
        version: Of keras_vit, by which it was exported.
        seed: By which the data set that it was trained on was split, where it has no test split of its own.

    Example:
        >>> describe(model).output, describe(model).preprocessing.mean
        ('logits', (0.0, 0.0, 0.0))
    """

    task: str
    image_size: tuple[int | None, int | None]
    channels: int
    num_outputs: int
    class_names: tuple[str, ...] | None
    resize: str
    crop_fraction: float
    interpolation: str
    antialias: bool
    parameters: int
    architecture: dict
    version: str
    seed: int = 0

    @property
    def is_classifier(self):
        """Whether one row of class scores an image comes out."""
        return self.num_classes is not None and self.architecture["pooling"] is not None

    @property
    def num_classes(self):
        """Size of the head, None without one."""
        return self.architecture["num_classes"]

    @property
    def output(self):
        """The name of the output that is the live model's: "logits", "values" or "representation"."""
        if self.num_classes is None:
            return "representation"
        return "values" if self.task == "regression" else "logits"

    @property
    def usual_size(self):
        """(height, width) of its images; where it takes any, of those that its position grid is for."""
        if self.image_size != DYNAMIC_SIZE:
            return self.image_size
        grid, patch, resnet = (self.architecture[name] for name in ("position_grid", "patch_size", "resnet"))
        return tuple(cells * side * stem_stride(resnet) for cells, side in zip(grid, patch))

    @property
    def labels(self):
        """The class names, or the classes' numbers as strings; empty where there are no classes."""
        if self.output != "logits":
            return ()
        return self.class_names or tuple(str(i) for i in range(self.num_classes))

    @property
    def preprocessing(self):
        """Makes of any images the float32 ones in [0, 1] that the export takes."""
        return Preprocessing(
            image_size=None if self.image_size == DYNAMIC_SIZE else self.image_size,
            resize=self.resize,
            crop_fraction=self.crop_fraction,
            interpolation=self.interpolation,
            antialias=self.antialias,
            mean=(0.0,) * self.channels,
            std=(1.0,) * self.channels,
        )

    def as_json(self):
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + "\n"


def describe(model, task="single_label", seed=0):
    """The Description of a `VisionTransformer` that is about to be exported.

    Args:
        model: A `VisionTransformer`.
        task: What its outputs mean; of no consequence where it has no head.
        seed: Of the split that it was trained on.

    Raises:
        ValueError: if the task is unknown, or a class name is of several lines.

    Example:
        >>> describe(model, "multi_label").labels[:2]
        ('0', '1')
    """
    if task not in TASKS:
        raise ValueError(f"task {task!r} is unknown; choose one of {TASKS}")
    broken = [name for name in model.class_names or () if name.splitlines() not in ([], [name])]
    if broken:
        raise ValueError(f"class names must be one line each, as {LABELS} holds them; got {broken[0]!r}")
    config = json.loads(json.dumps(model.get_config()))  # as it will be read back
    prepare = config["preprocessing"]
    return Description(
        task=task,
        image_size=tuple(model.image_size),
        channels=model.in_channels,
        num_outputs=model.output.shape[-1],
        class_names=model.class_names,
        parameters=model.count_params(),
        architecture={name: config[name] for name in OPTIONS if name not in ELSEWHERE},
        version=keras_vit.__version__,
        seed=seed,
        **{name: prepare[name] for name in ("resize", "crop_fraction", "interpolation", "antialias")},
    )


def parse_description(text, path):
    """The Description in an exported file; what a later version of keras_vit tells besides is left out.

    Args:
        text: What `as_json` made, or None where the file has none.
        path: The file, for the message.

    Raises:
        ValueError: if keras_vit did not write it, or it describes no model.
    """
    try:
        values = json.loads(text)
        for name in ("image_size", "class_names"):
            values[name] = values[name] and tuple(values[name])
        known = {field.name for field in dataclasses.fields(Description)}
        description = Description(**{name: value for name, value in values.items() if name in known})
    except (TypeError, KeyError, ValueError, RecursionError):
        raise ValueError(f"{os.fspath(path)!r} was not exported by keras_vit: it has no {FILE}") from None
    try:
        _check(description)
    except (TypeError, LookupError, AttributeError, ArithmeticError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{os.fspath(path)!r} is damaged, or of a later version: in its {FILE} {reason}"
        ) from None
    return description


def _check(description):
    """Raise an error unless this describes a model, and its fields agree with each other."""
    d = description
    config = ViTConfig(**{**d.architecture, "class_names": d.class_names})
    expected = {"channels": config.in_channels}
    if config.image_size != DYNAMIC_SIZE:  # else LiteRT files have one of their own
        expected["image_size"] = config.image_size
    if d.output != "representation":
        expected["num_outputs"] = config.num_classes
    wrong = [name for name, value in expected.items() if getattr(d, name) != value]
    wrong += [name for name in ("num_outputs", "parameters", "seed") if type(getattr(d, name)) is not int]
    wrong += ["task"] * (d.task not in TASKS) + ["version"] * (type(d.version) is not str)
    wrong += ["class_names"] * (not all(isinstance(name, str) for name in d.class_names or ()))
    if wrong:
        raise ValueError(", ".join(f"{name} is {str(getattr(d, name))[:60]!r}" for name in wrong))
    _ = d.preprocessing  # which checks the fields that it is made of


def read_description(saved_model):
    """The Description in a SavedModel's folder.

    Raises:
        ValueError: if keras_vit did not write it.

    Example:
        >>> read_description(export_saved_model(model, "described/1")) == describe(model)
        True
    """
    file = pathlib.Path(saved_model).expanduser() / "assets" / FILE
    text = file.read_text(encoding="utf-8") if file.is_file() else None
    return parse_description(text, saved_model)


def damaged(path, error):
    """A ValueError for an exported file that its runtime cannot open."""
    return ValueError(
        f"{os.fspath(path)!r} is damaged, or cannot be opened here: {' '.join(str(error).split())[:200]}"
    )
