"""A SavedModel to publish: archive, model card, and metadata for Kaggle Models."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_vit.export.description import Description, read_description
from keras_vit.export.hub_card import model_card, summary, usage
from keras_vit.export.saved_model import open_saved_model
from keras_vit.export.tar_archive import extract_archive, make_archive
from keras_vit.tasks import get_task
from keras_vit.types import Path
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.export.formats import ExportJob

KAGGLE_LICENSES = {  # by their SPDX names in lowercase
    "apache-2.0": "Apache 2.0",
    "bsd-3-clause": "BSD-3-Clause",
    "mit": "MIT",
    "gpl-3.0": "GPL 3",
    "cc0-1.0": "CC0: Public Domain",
    "cc-by-4.0": "Attribution 4.0 International (CC BY 4.0)",
    "cc-by-nc-4.0": "Attribution-NonCommercial 4.0 International (CC BY-NC 4.0)",
    "cc-by-sa-4.0": "CC BY-SA 4.0",
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The value of a metric of a model on a data set.

    Args:
        value: The value.
        dataset, split: What it was measured on.
        images: The number of images.
        metric: The name of the metric.
        image_size: (height, width) of the images, if the model takes any.

    Example:
        >>> Measurement(0.9471, "digits", "test", 360).metric
        'top-1 accuracy'
    """

    value: float
    dataset: str
    split: str
    images: int
    metric: str = "top-1 accuracy"
    image_size: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts about a model for its model card that are not in its SavedModel; None for unknown ones.

    Args:
        license: Of the weights, by its SPDX name.
        trained_on: The data sets in order: "ImageNet-21k, ImageNet-1k".
        accuracy: A tuple of `Measurement`s of these weights.
        source: The weights that training started from, or who trained them.
        url: URL at which the archive will be published.

    Raises:
        ValueError: for a URL that does not end in .tar.gz, and for text that is not one line.

    Example:
        >>> Facts(license="Apache-2.0", url="https://example.org/vit/1.tar.gz").accuracy
        ()
    """

    license: str | None = None
    trained_on: str | None = None
    accuracy: tuple[Measurement, ...] = ()
    source: str | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None and not re.fullmatch(r"(https?|gs)://[^\s\"'<>\\]+\.tar\.gz", self.url):
            raise ValueError(f"url must be the URL of a .tar.gz; got {self.url!r}")
        for name in ("license", "trained_on", "source"):
            text = getattr(self, name)
            if text is not None and (not text.strip() or len(text.splitlines()) > 1):
                raise ValueError(f"{name} must be one line of text; got {text!r}")


def export_hub(
    saved_model: Path,
    folder: Path,
    *,
    name: str,
    publisher: str,
    version: int | None = None,
    facts: Facts = Facts(),
) -> dict[str, pathlib.Path]:
    """Write the files for publishing a SavedModel on any web server or on Kaggle Models.

    `NAME.tar.gz` is the archive that `hub.load`, `hub.KerasLayer` and `SavedModelLayer` fetch from a URL;
    `NAME.md` is its model card; `model-metadata.json` and `model-instance-metadata.json` are uploaded to
    Kaggle with the SavedModel's folder.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        folder: Folder to write; it must not exist.
        name: Of the model: letters, digits, "_", "." and "-".
        publisher: Of the model: lowercase letters, digits and "-".
        version: An integer; None for the name of the SavedModel's folder if that is a number, else 1.
        facts: `Facts` that the SavedModel does not hold.

    Returns:
        dict of paths: `archive`, `page` (the model card), `model_metadata` and `instance_metadata`.

    Raises:
        ValueError: if a name has other characters, the folder exists, or keras_vit did not write the
            SavedModel. Nothing is left under the folder's name if writing fails.

    Example:
        >>> saved = export_saved_model(model, "export/saved_model/1")
        >>> facts = Facts(license="Apache-2.0", accuracy=(Measurement(0.9, "digits", "test", 360),))
        >>> files = export_hub(saved, "hub", name="vit-digits", publisher="me", facts=facts)
        >>> sorted(file.name for file in files.values())
        ['model-instance-metadata.json', 'model-metadata.json', 'vit-digits.md', 'vit-digits.tar.gz']

    Source: docs/models_metadata.md of github.com/Kaggle/kaggle-api.
    """
    saved_model, folder = (pathlib.Path(path).expanduser() for path in (saved_model, folder))
    if version is None:
        version = int(saved_model.name) if saved_model.name.isdecimal() else 1
    check_names(name, publisher, version)
    description = read_description(saved_model)
    card = model_card(description, facts, facts.url or name)
    license = KAGGLE_LICENSES.get((facts.license or "").lower())
    headless = description.num_classes is None
    slug = re.sub(r"[^a-z\d]+", "-", name.lower(), flags=re.ASCII).strip("-")
    model = {
        "ownerSlug": publisher,
        "title": name,
        "slug": slug,
        "subtitle": summary(description),
        "isPrivate": True,
        "description": card,
        **({"provenanceSources": facts.source} if facts.source else {}),
    }
    instance = {
        "ownerSlug": publisher,
        "modelSlug": slug,
        "instanceSlug": "feature-vector" if headless else get_task(description.task).slug,
        "framework": "tensorFlow2",
        "overview": summary(description),
        "usage": usage(description, "${PATH}"),
        **({"licenseName": license} if license else {}),
        "fineTunable": True,
        "trainingData": [facts.trained_on] if facts.trained_on else [],
        "modelInstanceType": "Unspecified",
    }
    texts = {
        "page": (f"{name}.md", f"# {publisher}/{name}, version {version}\n\n{card}"),
        "model_metadata": ("model-metadata.json", _as_json(model)),
        "instance_metadata": ("model-instance-metadata.json", _as_json(instance)),
    }
    with atomic_path(folder, overwrite=False) as temporary:
        temporary.mkdir()
        make_archive(saved_model, temporary / f"{name}.tar.gz")
        for file, text in texts.values():
            (temporary / file).write_text(text, encoding="utf-8")
    archive = {"archive": folder / f"{name}.tar.gz"}
    return archive | {kind: folder / file for kind, (file, _) in texts.items()}


def write_job(job: ExportJob, path: pathlib.Path) -> None:
    """Write the model of an `ExportJob`."""
    names: dict[str, Any] = {"name": job.name, "publisher": job.publisher, "version": job.version}
    export_hub(job.saved_model, path.parent, **names, facts=job.facts or Facts())


def check_job(job: ExportJob) -> None:
    """Raise ValueError for names of an `ExportJob` with characters that are not allowed."""
    check_names(job.name, job.publisher, job.version)


def open_archive(
    path: pathlib.Path, threads: int | None = None
) -> tuple[Description, Callable[..., dict[str, np.ndarray]]]:
    """The arguments of `ExportedModel` for an archive, unpacked outside the cache."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        return open_saved_model(extract_archive(path, pathlib.Path(folder) / "1"), threads)


def check_names(name: str, publisher: str, version: int | str) -> None:
    """Raise ValueError for a name, publisher or version with characters that are not allowed.

    Args:
        name, publisher, version: As for `export_hub`; the version an integer or its digits.

    Example:
        >>> check_names("vit_s16.digits", "me", 3)
    """
    for what, text, pattern, allowed in (
        ("name", name, r"\w[\w.-]*", 'letters, digits, "_", "." and "-" (not "." or "-" first)'),
        ("publisher", publisher, r"[a-z\d-]+", 'lowercase letters, digits and "-"'),
        ("version", str(version), r"\d+", "digits"),
    ):
        if not (isinstance(text, str) and re.fullmatch(pattern, text, re.ASCII)):
            raise ValueError(f"{what} must consist of {allowed}; got {text!r}")


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
