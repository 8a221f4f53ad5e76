"""Data sets by name. A new kind of data set is a row of `SOURCES`, and a file with its loader."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
import pkgutil
import re
from collections.abc import Callable, Sequence

from keras_vit import tasks
from keras_vit.data.dataset import Dataset as Dataset
from keras_vit.labels import label_kind
from keras_vit.messages import did_you_mean, names_arguments, redact_url
from keras_vit.rules import integer, one_of, optional, text
from keras_vit.types import Path

ON_BAD_IMAGE = one_of(("fail", "skip", "keep"))


@dataclasses.dataclass(frozen=True)
class Source:
    """A kind of data set.

    Args:
        load: "module:function" of its loader, which is imported when it is needed. The arguments are what
            follows the colon of a name, and those of `load_dataset`. It returns the fields of a `Dataset`
            but name and task, `class_names` and `splits` at least.
        help: What it is.
        placeholder: What follows the colon; None for a source without a colon.
        tasks: The tasks for which it has labels.
        title: A function from what follows the colon to the name that others may read.
        absolute: A function from what follows the colon to the same with absolute paths.
        has_fields: Whether its labels may be in a field that `fields` names.
        has_texts: Whether it may have captions, or texts of its classes.
    """

    load: str
    help: str
    placeholder: str | None
    tasks: tuple[str, ...] = tasks.NAMES
    title: Callable = str
    absolute: Callable = str
    has_fields: bool = False
    has_texts: bool = False


def _absolute(path):
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def _all_absolute(paths):
    return "::".join(map(_absolute, paths.split("::")))


def _without_path(name):
    """The name of what is at a path, or at the last of several."""
    last = redact_url(name.split("::")[-1])
    return os.path.basename(last if "://" in last else os.path.abspath(last))


STORED = {"has_fields": True, "has_texts": True}
SHARDS = {"placeholder": "PATH", "title": _without_path, "absolute": _all_absolute, **STORED}
SOURCES = {
    "digits": Source(
        "keras_vit.data.sources.digits:load_digits", "scikit-learn's scanned digits", None, ("single_label",)
    ),
    "digits_scenes": Source(
        "keras_vit.tasks.digits_scenes:load_digits_scenes",
        "scenes of these digits",
        None,
        tasks.SCENES,
    ),
    "digits_words": Source(
        "keras_vit.data.sources.digits_words:load_digits_words",
        "the digits with words for them",
        None,
        ("single_label",),
        has_texts=True,
    ),
    # Other readers get no path, which may be private.
    "folder": Source(
        "keras_vit.data.sources.folder:load_folder",
        "images in files",
        "PATH",
        title=_without_path,
        absolute=_absolute,
        has_texts=True,
    ),
    "hf": Source(
        "keras_vit.data.sources.hf:load_hf", "a data set of the Hugging Face Hub", "ORG/NAME", **STORED
    ),
    "parquet": Source("keras_vit.data.sources.parquet:load_parquet", "Parquet files", **SHARDS),
    # A prepared folder ends in the name and the version.
    "tfds": Source(
        "keras_vit.data.sources.tfds:load_tfds",
        "TensorFlow Datasets",
        "NAME",
        title=lambda name: "/".join(name.split("/")[-2:]),
    ),
    "vtab": Source("keras_vit.data.sources.vtab:load_vtab", "a task of VTAB-1k", "TASK", ("single_label",)),
    "webdataset": Source(
        "keras_vit.data.sources.webdataset:load_webdataset", "tar files of WebDataset", **SHARDS
    ),
}


@names_arguments
def load_dataset(
    name: Path,
    seed: int | None = 0,
    on_bad_image: str = "fail",
    *,
    task: str = "single_label",
    data_dir: Path | None = None,
    texts: bool = False,
    labels: bool = True,
    fields: Sequence[str] = (),
    classes: Path | None = None,
) -> Dataset:
    """Load a data set by its name.

    Args:
        name: The path of a folder, which is as "folder:PATH", or one of
            "digits": scikit-learn's 1797 scanned digits of 8×8 pixels, no download.
            "digits_scenes": for tasks whose labels move with the image, 6360 scenes of 32×32 pixels in which
            these digits overlap.
            "digits_words": "digits" with texts for recipes with `image_text`: words and numbers in several
            wordings, others in each split. Needs the package tokenizers.
            "folder:PATH": PATH/CLASS/*, or PATH/{train,val,test}/CLASS/*, or PATH/CLASS/{train,val,test}/*
            (val and test may be missing; other names of splits are in `keras_vit.data.files.SPLIT_NAMES`),
            or PATH/labels.csv with the columns `file` or `filename`, `label` and `split` (may be missing,
            then the split is that of the image's folder). For other tasks than
            "single_label" the table has a column for each class (0 or 1) or each target (a number) in
            place of `label`. Images are JPEG, PNG, BMP of 8, 24 or 32 bits per pixel, GIF, WebP and
            TIFF, and are read in their EXIF orientation. For maps it is PATH/images/* with files of the same
            names in a second folder, as PATH/masks/*.png for "segmentation", see
            `keras_vit.tasks.segmentation.folder`; for "detection" it has the files of COCO, YOLO, Pascal VOC
            or `metadata.jsonl`, see `keras_vit.tasks.detection.folder`.
            "tfds:NAME", "tfds:NAME/config", "tfds:NAME:version": a data set of TensorFlow Datasets,
            downloaded if necessary; or "tfds:/PATH", the folder of a prepared one. The splits of the
            official presets (`keras_vit.data.sources.tfds.PRESETS`), or its own.
            "vtab:TASK": one of the 19 tasks of VTAB-1k (`keras_vit.data.sources.vtab.TASKS`).
            "hf:ORG/NAME": a data set of the Hugging Face Hub, see `keras_vit.data.sources.hf`.
            "parquet:PATH": Parquet files, such as those of the Hugging Face Hub, see
            `keras_vit.data.sources.parquet`.
            "webdataset:PATH": tar files, such as `train-{0000..0127}.tar` or a folder of them, see
            `keras_vit.data.sources.webdataset`. This PATH and that of "parquet:" may be a URL, such as
            `https://…`, `s3://…` or `gs://…`, of shards that are read through a cache.
            "NAME*WEIGHT + NAME*WEIGHT": several of these in proportion to positive numbers, 1 where none is
            given, see `keras_vit.data.sources.mixture`.
        seed: The seed of the split where a folder (or digits) has none of its own; None holds out no images,
            so that there may be a training split alone, or another one.
        on_bad_image: For unreadable images of a folder: "fail" raises an error with the paths of those whose
            headers or ends are damaged, "skip" decodes all and lists those that it skips in `bad_images`,
            "keep" checks none, and those that are damaged are named where they are read. "skip" also
            leaves out images with wrong boxes or keypoints, of boxes also those in tar and Parquet files.
        task: The name of a kind of labels, one of `keras_vit.tasks.NAMES`.
        data_dir: For "tfds:" and "vtab:", the folder of prepared data sets; None for the default.
        texts: Whether to read the captions of images instead of their classes, of a folder as
            `keras_vit.tasks.image_text.folder` states. "digits_words" has texts of its classes.
        labels: Whether labels are necessary. False: a folder without folders of classes is read as images
            without class names, in any subfolders, split by chance unless names of folders state a train
            split and perhaps others.
        fields: For "webdataset:", ("label=json:KEY",) for labels in a value of each sample's JSON object; for
            "parquet:" and the Hub's, ("image=COLUMN", "label=COLUMN"). In a mixture, for all of these, or as
            "2:label=COLUMN" for the second source.
        classes: For "single_label", a text file with a class on each line, its name and perhaps, separated by
            tabs, other names that stand for it; these classes take the place of those of each source.

    Returns:
        Dataset. Where digits or a folder have no test split, a fifth of each class is held out for it;
        where there is no validation split, a tenth of each class of the training split.

    Raises:
        ValueError: for an unknown data set, one without labels of the task or without texts, a folder without
            images, with one class only or with too few to split, or an unreadable image.

    Example:
        >>> {split: len(samples) for split, samples in load_dataset("digits").splits.items()}
        {'train': 1302, 'validation': 140, 'test': 355}

    Source: UCI's optical recognition of handwritten digits, as scikit-learn bundles it; the folder
    layout of `vit_jax/input_pipeline.py`; `big_vision/configs/transfer.py`.
    """
    ON_BAD_IMAGE.check("on_bad_image", on_bad_image)
    optional(integer(at_least=0)).check("seed", seed)
    task = label_kind(task).name
    name = text.check("name", name_of(name))
    options = {"seed": seed, "on_bad_image": on_bad_image, "data_dir": data_dir, "labels": labels}
    options |= {"task": task, "texts": texts, "fields": tuple(fields)}
    if len(sources_of(name)) > 1 or classes is not None:
        from keras_vit.data.sources.mixture import load_mixture  # It imports this module.

        return Dataset(public_name(name), task=task, **load_mixture(name, classes=classes, **options))
    (kind, argument), shown = name.partition(":")[::2], public_name(name)
    source = SOURCES.get(kind)
    if source is None or bool(argument) != bool(source.placeholder) or ":" in name and not argument:
        raise ValueError(f"data set {shown!r} is unknown{_hint(name)}; expected {_known()}")
    if task not in source.tasks:
        raise ValueError(f"{shown} has no labels for task {task!r}; it has {', '.join(source.tasks)}")
    if fields and not source.has_fields:
        raise ValueError(f"{shown} has no fields to choose from; got {', '.join(fields)}")
    if texts and not source.has_texts:
        known = [kind for kind, source in SOURCES.items() if source.has_texts]
        raise ValueError(f"{shown} has no texts; expected a data set of {', '.join(known)}")
    loaded = pkgutil.resolve_name(source.load)(argument, **options)
    for split, samples in loaded["splits"].items():
        if not len(samples):
            per_class = " of each class" if loaded["class_names"] else ""
            raise ValueError(
                f"{shown!r} has too few images{per_class}: none for the {split} split; three "
                f"images{per_class} are enough for the three splits"
            )
    return Dataset(shown, task=task, **loaded)


def name_of(name):
    """The name of a data set, also for the path of its folder.

    >>> name_of(pathlib.Path("flowers")), name_of("digits")
    ('folder:flowers', 'digits')
    """
    is_path = isinstance(name, os.PathLike)
    name = os.fspath(name) if is_path else name
    if not isinstance(name, str) or name.partition(":")[0] in SOURCES:
        return name
    return f"folder:{name}" if is_path or os.path.isdir(os.path.expanduser(name)) else name


def sources_of(name):
    """The names of the sources of a mixture, each with its weight as in the name; another name without one.

    >>> sources_of("folder:flowers*0.7 + digits"), sources_of("folder:cats + dogs")
    ([('folder:flowers', '*0.7'), ('digits', '')], [('folder:cats + dogs', '')])
    """
    parts = [re.fullmatch(r"(.*?)(\*\d*\.?\d+)?", part, re.DOTALL) for part in name.split(" + ")]
    if len(parts) == 1 or not all(_is_source(part[1]) for part in parts):
        return [(name, "")]
    return [(part[1], part[2] or "") for part in parts]


def _is_source(name):
    """Whether a name begins with a kind of source, or with a word that is like one."""
    source, colon, argument = name.partition(":")
    if source in SOURCES:
        return bool(argument) == bool(SOURCES[source].placeholder)
    return bool(colon and did_you_mean(source, SOURCES))


def _each_source(name, change):
    """The name with each of its sources changed by a function of the kind and what follows the colon."""

    def changed(own):
        source, _, argument = own.partition(":")
        return change(source, argument) if source in SOURCES and argument else own

    return " + ".join(changed(own) + weight for own, weight in sources_of(name))


def absolute_name(name):
    """The name of a data set with absolute paths, which is the same in every folder.

    >>> absolute_name("folder:/data/../flowers"), absolute_name("digits*2 + webdataset:s3://bucket/a.tar")
    ('folder:/flowers', 'digits*2 + webdataset:s3://bucket/a.tar')
    """
    return _each_source(name_of(name), lambda kind, argument: f"{kind}:{SOURCES[kind].absolute(argument)}")


def public_name(name):
    """The name of a data set without the secrets of its URLs.

    >>> public_name("digits + webdataset:https://me:word@host/a.tar?key=5*2")
    'digits + webdataset:https://host/a.tar?…*2'
    """
    return _each_source(
        name, lambda kind, argument: f"{kind}:{'::'.join(map(redact_url, argument.split('::')))}"
    )


def _known():
    """The names of data sets, for a message."""
    known = [
        f"{kind}{f':{source.placeholder}' if source.placeholder else ''} ({source.help})"
        for kind, source in SOURCES.items()
    ]
    return f"{', '.join(known[:-1])} or {known[-1]}"


def _hint(name):
    """The end of a message about an unknown name: the data set of this name."""
    prefix, colon, argument = name.partition(":")
    kinds = [own for own, source in SOURCES.items() if bool(source.placeholder) == bool(argument)]
    if (hint := did_you_mean(prefix, kinds)) or colon:
        return hint if prefix not in SOURCES else ""
    if hint := did_you_mean(name, importlib.import_module("keras_vit.data.sources.tfds").PRESETS, "tfds:{}"):
        return hint
    names = importlib.import_module("tensorflow_datasets").list_builders(with_community_datasets=False)
    return f" (did you mean 'tfds:{name}'?)" if name.partition("/")[0] in names else ""


def folder_of(name):
    """The folder of a data set of images in files; None for other data sets.

    >>> folder_of("folder:flowers"), folder_of("digits")
    (PosixPath('flowers'), None)
    """
    [(own, _), *others] = sources_of(name_of(name))
    source, argument = own.partition(":")[::2]
    return pathlib.Path(argument).expanduser() if source == "folder" and not others else None


def title_of(name):
    """A data set's name for other readers: of a folder, its name without its location.

    >>> title_of("folder:/home/me/flowers"), title_of("digits"), title_of("tfds:cifar10*2 + parquet:/a/b")
    ('flowers', 'digits', 'cifar10*2 + b')
    """
    return _each_source(name_of(name), lambda kind, argument: SOURCES[kind].title(argument))
