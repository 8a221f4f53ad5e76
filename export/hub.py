"""A SavedModel to publish: archive, documentation page, and metadata for Kaggle Models."""

import dataclasses
import json
import pathlib
import re
import tempfile

from keras_vit.export.archive import extract_archive, make_archive
from keras_vit.export.description import read_description
from keras_vit.export.hub_page import KINDS, card, kind_of, page, read_contents, summary
from keras_vit.export.hub_usage import fine_tuning, usage
from keras_vit.export.saved_model import open_saved_model
from keras_vit.writing import atomic_path

KAGGLE_LICENCES = {  # by their SPDX names in small letters
    "apache-2.0": "Apache 2.0",
    "bsd-3-clause": "BSD-3-Clause",
    "mit": "MIT",
    "gpl-2.0": "GPL 2",
    "gpl-3.0": "GPL 3",
    "agpl-3.0": "GNU Affero General Public License 3.0",
    "lgpl-3.0": "GNU Lesser General Public License 3.0",
    "cc0-1.0": "CC0: Public Domain",
    "cc-by-4.0": "Attribution 4.0 International (CC BY 4.0)",
    "cc-by-nc-4.0": "Attribution-NonCommercial 4.0 International (CC BY-NC 4.0)",
    "cc-by-nc-nd-4.0": "Attribution-NonCommercial-NoDerivatives 4.0 International (CC BY-NC-ND 4.0)",
    "cc-by-nc-sa-4.0": "CC BY-NC-SA 4.0",
    "cc-by-sa-4.0": "CC BY-SA 4.0",
}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """How good a model was found to be.

    Args:
        value: The number.
        dataset, split: On what.
        images: On how many.
        metric: What was measured.
        image_size: (height, width) of the images, where the model takes any.

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
    """What is known of a model and is not in its SavedModel; None where it is not known.

    Args:
        licence: Of the weights, by its SPDX name.
        trained_on: The data, in words and in order: "ImageNet-21k, ImageNet-1k".
        accuracy: A tuple of `Measurement`s of these very weights.
        source: The weights it started from, or who trained it.
        url: Where the archive will lie.

    Raises:
        ValueError: for an address that is none of a .tar.gz, and for text that is not one line.

    Example:
        >>> Facts(licence="Apache-2.0", url="https://example.org/vit/1.tar.gz").accuracy
        ()
    """

    licence: str | None = None
    trained_on: str | None = None
    accuracy: tuple[Measurement, ...] = ()
    source: str | None = None
    url: str | None = None

    def __post_init__(self):
        if self.url is not None and not re.fullmatch(r"(https?|gs)://[^\s\"'<>\\]+\.tar\.gz", self.url):
            raise ValueError(f"url must be the address of a .tar.gz; got {self.url!r}")
        for name in ("licence", "trained_on", "source"):
            text = getattr(self, name)
            if text is not None and (not text.strip() or len(text.splitlines()) > 1):
                raise ValueError(f"{name} must be one line of text; got {text!r}")


def export_hub(saved_model, folder, *, name, publisher, version=None, facts=Facts()):
    """Write what it takes to publish a SavedModel, for TF Hub's library or on Kaggle Models.

    `NAME.tar.gz` is what `hub.load`, `hub.KerasLayer` and `SavedModelLayer` fetch from any address;
    `NAME.md` documents it in TF Hub's form; `model-metadata.json` and
    `model-instance-metadata.json` go to Kaggle beside the SavedModel's folder. They say what the
    SavedModel says of itself and the facts that are given, and nothing else.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        folder: Folder to write; it must not exist.
        name: Of the model: letters, digits, "_", "." and "-".
        publisher: Of the model: lower-case letters, digits and "-".
        version: A number; None: the SavedModel's folder's own where it is one, else 1.
        facts: `Facts` that the SavedModel does not hold.

    Returns:
        dict of `archive`, `page`, `model_metadata` and `instance_metadata`, paths of files.

    Raises:
        ValueError: if a name cannot be one on TF Hub, the folder exists, or keras_vit did not write the
            SavedModel. Nothing is left under the folder's name if writing fails.

    Example:
        >>> saved = export_saved_model(model, "export/saved_model/1")
        >>> facts = Facts(licence="Apache-2.0", accuracy=(Measurement(0.9, "digits", "test", 360),))
        >>> files = export_hub(saved, "hub", name="vit-digits", publisher="me", facts=facts)
        >>> sorted(file.name for file in files.values())
        ['model-instance-metadata.json', 'model-metadata.json', 'vit-digits.md', 'vit-digits.tar.gz']

    Source: github.com/tensorflow/tfhub.dev; docs/models_metadata.md of github.com/Kaggle/kaggle-api.
    """
    saved_model, folder = pathlib.Path(saved_model), pathlib.Path(folder)
    if version is None:
        version = int(saved_model.name) if saved_model.name.isdecimal() else 1
    check_names(name, publisher, version)
    description = read_description(saved_model)
    inside = read_contents(saved_model)
    contents = {
        f"{name}.md": page(description, facts, inside, f"{publisher}/{name}/{version}"),
        "model-metadata.json": _as_json(_kaggle_model(description, facts, inside, name, publisher)),
        "model-instance-metadata.json": _as_json(
            _kaggle_instance(description, facts, inside, name, publisher)
        ),
    }
    with atomic_path(folder, overwrite=False) as temporary:
        temporary.mkdir()
        make_archive(saved_model, temporary / f"{name}.tar.gz")
        for file, text in contents.items():
            (temporary / file).write_text(text, encoding="utf-8")
    keys = ("archive", "page", "model_metadata", "instance_metadata")
    return dict(zip(keys, (folder / file for file in (f"{name}.tar.gz", *contents))))


def open_archive(path, threads=None):
    """The arguments of `ExportedModel` for an archive, unpacked outside the cache."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        return open_saved_model(extract_archive(path, pathlib.Path(folder) / "1"), threads)


def check_names(name, publisher, version):
    """Raise ValueError unless TF Hub takes each of them.

    Args:
        name, publisher, version: As for `export_hub`; the version a number or its digits.

    Raises:
        ValueError: with the first that it does not take.

    Example:
        >>> check_names("vit_s16.digits", "me", 3)
    """
    for what, text, pattern, allowed in (
        ("name", name, r"\w[\w.-]*", 'letters, digits, "_", "." and "-" (not "." or "-" first)'),
        ("publisher", publisher, r"[a-z\d-]+", 'lower-case letters, digits and "-"'),
        ("version", str(version), r"\d+", "digits"),
    ):
        if not (isinstance(text, str) and re.fullmatch(pattern, text, re.ASCII)):
            raise ValueError(f"{what} must consist of {allowed}; got {text!r}")


def _as_json(values):
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _kaggle_model(description, facts, inside, name, publisher):
    return {
        "ownerSlug": publisher,
        "title": name,
        "slug": _slug(name),
        "subtitle": summary(description),
        "isPrivate": True,
        "description": card(description, facts, inside, facts.url or name),
        **({"provenanceSources": facts.source} if facts.source else {}),
    }


def _kaggle_instance(description, facts, inside, name, publisher):
    licence = KAGGLE_LICENCES.get((facts.licence or "").lower())
    programs = usage(description, "${PATH}"), fine_tuning(description, "${PATH}", inside.trainable)
    return {
        "ownerSlug": publisher,
        "modelSlug": _slug(name),
        "instanceSlug": KINDS[kind_of(description)].slug,
        "framework": "tensorFlow2",
        "overview": summary(description),
        "usage": "\n".join(filter(None, programs)),
        **({"licenseName": licence} if licence else {}),
        "fineTunable": inside.trainable > 0,
        "trainingData": [facts.trained_on] if facts.trained_on else [],
        "modelInstanceType": "Unspecified",
    }


def _slug(name):
    """A name as it stands in an address of Kaggle's: small letters, digits and dashes."""
    return re.sub(r"[^a-z\d]+", "-", name.lower(), flags=re.ASCII).strip("-")
