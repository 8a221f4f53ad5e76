"""Compute embeddings of a data set, part by part."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pyarrow

from keras_vit.data.datasets import Dataset, absolute_name, folder_of, load_dataset, title_of
from keras_vit.data.fingerprint import files_summary, fingerprint
from keras_vit.data.readable import readable_batches, why_unreadable
from keras_vit.embeddings import parts
from keras_vit.embeddings.encoder import CAPTIONS, OUTPUTS, Encoder, caption_encoder
from keras_vit.embeddings.exported_encoder import ExportedEncoder, export_format
from keras_vit.embeddings.plan import IMAGES_PER_PART, Plan, begin, read_plan
from keras_vit.labels import label_kind
from keras_vit.messages import redact_url
from keras_vit.models.backbones import backbone
from keras_vit.names import EMBEDDING_DTYPES
from keras_vit.progress import Progress
from keras_vit.rules import check_utf8, integer, one_of, optional
from keras_vit.types import Path
from keras_vit.weights.load import from_pretrained
from keras_vit.weights.model_digest import model_digest
from keras_vit.writing import exclusive

_PACKAGES = ("keras", "tensorflow", "pyarrow")
_OPENING = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Embedder:
    """A model and a data set, and the folder of their embeddings.

    Args:
        folder: The path of the folder.
        plan: Its `Plan`.
        dataset: `Dataset`.
        encoder: `Encoder`.
        class_names: Those of the model, or None.
        captions: A function from a list of texts to their vectors, and the length of these; or None.
    """

    folder: str
    plan: Plan
    dataset: Dataset
    encoder: Encoder
    class_names: tuple[str, ...] | None = None
    captions: tuple[Callable, int] | None = None

    def write(self, part: int, bar: Progress | None = None) -> tuple[int, int] | None:
        """Compute a part and write its file, unless it exists.

        Args:
            part: Its number.
            bar: The progress of images, or None.

        Returns:
            (the number of images, of those that cannot be read); None if the part exists.

        Raises:
            OSError: if a shard cannot be read, or the file cannot be written.
            ValueError: if the file is of another plan, or a number is not finite.
        """
        if parts.is_written(self.folder, self.plan, part):
            return None
        schema = parts.schema_of(self.plan, self._shapes, self._label_type(), self._metadata(part))
        errors = images = 0
        path = pathlib.Path(self.folder).expanduser() / self.plan.name(part)
        with parts.writing(path, schema) as write:
            for split, first, stop in self.plan.ranges(part):
                missing = np.ones(stop - first, bool)
                samples = self.dataset.split(split)
                batches = readable_batches(
                    samples, first, stop, self.encoder.preprocessing, self.plan.batch_size
                )
                for batch in batches:
                    heights, widths = batch.sizes.T
                    columns = {"width": widths, "height": heights, "label": list(batch.labels)}
                    columns |= self._places(split, batch.numbers) | {"status": [parts.OK] * len(widths)}
                    outputs = self.encoder(batch.inputs)
                    if self.captions:
                        captions = self.dataset.captions(split)
                        columns["texts"] = [[*captions[number]] for number in batch.numbers]
                        outputs[CAPTIONS] = self.captions[0]([*itertools.chain(*columns["texts"])])
                    write(parts.rows_of(schema, self.plan, columns, outputs))
                    missing[batch.numbers - first] = False
                    if bar is not None:
                        bar.update(len(widths))
                for number in np.flatnonzero(missing) + first:
                    status = why_unreadable(samples, int(number))
                    columns = self._places(split, [number]) | {"status": [status]}
                    write(parts.rows_of(schema, self.plan, columns, None))
                errors += np.count_nonzero(missing)
                images += stop - first
                if bar is not None:
                    bar.update(np.count_nonzero(missing))
        return images, int(errors)

    def cosine(self, part: int) -> float | None:
        """The smallest cosine between the first output of an exported file and the model's in float32.

        Args:
            part: The part whose first batch is computed; None is returned if it cannot be read.
        """
        for split, first, stop in self.plan.ranges(part):
            stop = min(stop, first + self.plan.batch_size)
            samples, size = self.dataset.split(split), self.plan.batch_size
            for batch in readable_batches(samples, first, stop, self.encoder.preprocessing, size):
                return round(float(self.encoder.cosines(batch.inputs).min()), 6)
        return None

    @property
    def _shapes(self):
        return self.encoder.shapes | ({CAPTIONS: (self.captions[1],)} if self.captions else {})

    def _places(self, split, numbers):
        samples = self.dataset.split(split)
        paths = [samples.place(int(number)) for number in numbers]
        check_utf8(paths)
        return {"key": [f"{split}/{number:09}" for number in numbers], "path": paths}

    def _label_type(self):
        label_type = label_kind(self.dataset.task)
        if not self.dataset.class_names or label_type.moves or self.dataset.texts is not None:
            return None
        return pyarrow.int64() if label_type.is_class_id else pyarrow.list_(pyarrow.float32())

    def _metadata(self, part):
        from keras_vit import __version__

        return {
            "plan": self.plan.digest,
            "part": part,
            "model": self.plan.model,
            "model_digest": self.plan.model_digest,
            "model_classes": self.class_names and list(self.class_names),
            "outputs": {name: list(shape) for name, shape in self._shapes.items()},
            "preprocessing": self.encoder.preprocessing.get_config(),
            "dataset": title_of(self.dataset.name),
            "class_names": list(self.dataset.class_names),
            "versions": {
                "keras_vit": __version__,
                **{name: importlib.metadata.version(name) for name in _PACKAGES},
                "backend": keras.backend.backend(),
            },
        }


def plan_embeddings(
    folder: Path,
    source: str,
    model: keras.Model,
    options: dict[str, Any],
    *,
    partitions: int | None = None,
    outputs: Sequence[str] = ("pooled",),
    dtype: str = "float16",
    batch_size: int = 64,
    format: str | None = None,
    split_seed: int | None = None,
) -> Embedder:
    """Begin a folder of embeddings, or continue one.

    Args:
        folder: The path of the folder, which is created.
        source: The path of the model, or another source of `from_pretrained`, which `embed_part` loads.
        model: The model there.
        options: Arguments of `load_dataset`, with the name. Unless they say otherwise, labels are read if all
            images have them, images that cannot be read are kept, and no images are held out.
        partitions: The number of parts; None: one for each 10,000 images.
        outputs: Names among `OUTPUTS`: "pooled" (the representation; of an `ImageTextModel` the vector that
            it compares with texts), "tokens" (the grid of patch tokens), "logits" and "classes" (the
            probability of each class; of a segmenter the fraction of the pixels); and besides these
            "captions": of an `ImageTextModel` the vectors of the captions of each image.
        dtype: Of the numbers that are stored, "float16" or "float32".
        batch_size: Images that are computed at a time; the numbers depend on it within rounding errors.
        format: None: the model computes. "tflite", "onnx", "openvino" or another of `EXPORT_FORMATS`: a file
            in this format does, in the folder `model` there, which computes either pooled, or logits and
            classes.
        split_seed: The seed of the split that the model was trained on, by which `read_labeled` holds images
            out; None: the model's.

    Returns:
        Embedder.

    Raises:
        ValueError: if the folder was begun with something else, the model lacks an output, or the data set
            cannot be loaded.

    Example:
        >>> from keras_vit.embeddings import plan_embeddings
        >>> embedder = plan_embeddings(tmp / "out", "", model, {"name": "digits"}, partitions=4)
        >>> embedder.plan.splits, embedder.encoder.shapes
        ({'train': 1797}, {'pooled': (24,)})
    """
    backbone(model)  # Others are refused.
    outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in outputs:
        one_of((*OUTPUTS, CAPTIONS)).check("outputs", name)
    if outputs == (CAPTIONS,):
        raise ValueError(f"expected {CAPTIONS} besides another output; got {CAPTIONS} alone")
    if not outputs or len({*outputs}) < len(outputs):
        raise ValueError(
            f"expected outputs among {', '.join(OUTPUTS)}, each once; got {', '.join(outputs) or 'none'}"
        )
    one_of(EMBEDDING_DTYPES).check("dtype", dtype)
    integer(at_least=1).check("batch_size", batch_size)
    optional(integer(at_least=1)).check("partitions", partitions)
    writes_captions = CAPTIONS in outputs
    is_chosen = writes_captions or "labels" in options
    defaults = {"seed": None, "labels": writes_captions, "texts": writes_captions}
    options = {**defaults, "on_bad_image": _on_bad_image(options), **options}
    # Other processes may continue in another folder.
    paths = {name: os.path.abspath(options[name]) for name in ("data_dir", "classes") if options.get(name)}
    options |= {**paths, "name": absolute_name(options["name"])}
    options = json.loads(json.dumps(options, default=os.fspath))
    dataset, options = _labeled_if_possible(options, is_chosen)
    if writes_captions and dataset.captions(next(iter(dataset.splits))) is None:
        raise ValueError(f"{dataset.name!r} has no captions for the output {CAPTIONS}")
    splits = {split: len(samples) for split, samples in dataset.splits.items()}
    images = sum(splits.values())
    partitions = partitions or math.ceil(images / IMAGES_PER_PART)
    if partitions > images:
        raise ValueError(f"expected at most {images} parts, one for each image; got {partitions}")
    source = os.path.abspath(source) if os.path.exists(source) else redact_url(source)
    digests = model_digest(model), {**options, "name": dataset.name}, data_digest(dataset)
    format = None if format is None else export_format(format)
    split_seed = model.split_seed if split_seed is None else split_seed
    plan = Plan(source, *digests, splits, partitions, outputs, dtype, batch_size, format, split_seed)
    embedder = _embedder(folder, plan, dataset, model)
    begin(folder, plan)
    return embedder


def _labeled_if_possible(options, is_chosen):
    """The data set, and its options: with labels if it is no folder and has those of all its images.

    A folder with images of classes has its labels anyway.
    """
    if not (is_chosen or folder_of(options["name"])):
        with contextlib.suppress(ValueError):  # It is raised again if it is not about labels.
            dataset = load_dataset(**{**options, "labels": True})
            if not dataset.unlabeled:
                return dataset, {**options, "labels": True}
    return load_dataset(**options), options


def embed(embedder: Embedder, shard: tuple[int, int] = (0, 1), claim: bool = False) -> dict[str, int]:
    """Compute the parts that are missing, with a progress bar.

    Args:
        embedder: An `Embedder`.
        shard: (i, n): those parts whose number modulo n is i.
        claim: Whether to leave out parts that other processes compute at the moment, by file locks.

    Returns:
        dict of `parts`, `written`, the number of parts that other processes compute (`elsewhere`), and the
        numbers of `images` and of `errors` that were written. Of an exported file also `cosine`: the smallest
        cosine between its output and the model's own in float32, of the first batch of the first part.

    Raises:
        ValueError: for a shard index outside of [0, n), or as `Embedder.write`.

    Example:
        >>> from keras_vit.embeddings.computing import embed, plan_embeddings
        >>> embedder = plan_embeddings(tmp / "out", "", model, {"name": "digits"}, partitions=3)
        >>> embed(embedder)
        {'parts': 3, 'written': 3, 'elsewhere': 0, 'images': 1797, 'errors': 0}
        >>> embed(embedder)["written"]
        0
    """
    if not 0 <= shard[0] < shard[1]:
        raise ValueError(f"expected a shard (i, n) with i from 0 to n - 1; got {shard}")
    plan, totals = embedder.plan, {"parts": 0, "written": 0, "elsewhere": 0, "images": 0, "errors": 0}
    partitions = range(shard[0], plan.partitions, shard[1])
    missing = [part for part in partitions if not parts.is_written(embedder.folder, plan, part)]
    total = sum(stop - first for part in missing for _, first, stop in plan.ranges(part))
    totals["parts"] = len(partitions)
    with Progress(None, "embedding", total=total, unit="image") as bar:
        for part in missing:
            with _claimed(embedder, part) if claim else contextlib.nullcontext(True) as is_own:
                if not is_own:
                    totals["elsewhere"] += 1
                    continue
                if embedder.plan.export_format and "cosine" not in totals:
                    totals["cosine"] = embedder.cosine(part)
                if counts := embedder.write(part, bar):
                    totals["written"] += 1
                    totals["images"] += counts[0]
                    totals["errors"] += counts[1]
    return totals


def embed_part(folder: Path, part: int) -> str:
    """Compute one part of embeddings that were begun, in any process or thread and in any order.

    The model and the data set of the last folder stay open, so that engines of distributed computing can call
    this function for each part.

    Args:
        folder: The path of the folder.
        part: The number of the part.

    Returns:
        The path of the file, a str.

    Raises:
        ValueError: if the folder has no plan, the model or the data have changed, or there is no such part.

    Example:
        >>> from keras_vit.embeddings import embed_part, plan_embeddings
        >>> model.save(tmp / "model.keras")
        >>> _ = plan_embeddings(tmp / "out", f"{tmp}/model.keras", model, {"name": "digits"}, partitions=4)
        >>> embed_part(tmp / "out", 3).rpartition("/")[2]
        'part-00003-of-00004.parquet'
    """
    folder = os.path.expanduser(folder)
    plan = read_plan(folder)
    if not 0 <= part < plan.partitions:
        raise ValueError(f"expected a part from 0 to {plan.partitions - 1}; got {part}")
    with _OPENING:
        embedder = _opened(os.path.abspath(folder), plan.digest)
    embedder.write(part)
    return os.path.join(folder, plan.name(part))


@functools.lru_cache(maxsize=1)
def _opened(folder, digest):
    plan = read_plan(folder)
    model, dataset = from_pretrained(plan.model, kind="stored"), planned_data(folder, plan)
    for name, before, now in (
        ("model", plan.model_digest, model_digest(model)),
        ("data set", plan.data_digest, data_digest(dataset)),
    ):
        if before != now:
            raise ValueError(f"the {name} has changed since {folder!r} was begun: choose a new folder")
    return _embedder(folder, plan, dataset, model)


def planned_data(folder, plan):
    """The `Dataset` of a `Plan`.

    Raises:
        ValueError: as `load_dataset`, or if its URLs had queries, which a plan does not have.
    """
    if "?…" in plan.dataset["name"]:
        raise ValueError(
            f"{os.fspath(folder)!r} was begun with the URLs {plan.dataset['name']}, of which no secrets are "
            "stored; expected keras-vit embed with all of them"
        )
    return load_dataset(**plan.dataset)


def _embedder(folder, plan, dataset, model):
    outputs = tuple(name for name in plan.outputs if name != CAPTIONS)
    options = model, outputs, plan.batch_size
    encoder = Encoder(*options)
    if plan.export_format is not None:
        encoder = ExportedEncoder(encoder, *options, folder, plan.export_format)
    captions = caption_encoder(model, plan.batch_size) if CAPTIONS in plan.outputs else None
    return Embedder(os.fspath(folder), plan, dataset, encoder, model.class_names, captions)


def _on_bad_image(options):
    """Masks and boxes of a folder are read with their images, so that all are checked."""
    moves = label_kind(options.get("task", "single_label")).moves
    return "fail" if moves and folder_of(options["name"]) else "keep"


def data_digest(dataset):
    """A digest of a `Dataset`, which a plan has: of its classes, sizes and files, not of their times."""
    facts = fingerprint(dataset)
    facts["files"] = files_summary(facts["files"].drop_columns(["time"]))
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


@contextlib.contextmanager
def _claimed(embedder, part):
    """Whether no other process computes a part, which none begins meanwhile."""
    lock = pathlib.Path(embedder.folder).expanduser() / f".{embedder.plan.name(part)}.lock"
    with exclusive(lock) as is_free:
        yield is_free
        if is_free:
            lock.unlink(missing_ok=True)  # The part exists then, and is not computed again.
