"""The plan of a folder of embeddings: what is computed of which data, in which parts."""

import dataclasses
import hashlib
import json
import os
import pathlib

from keras_vit.messages import one_line
from keras_vit.writing import atomic_path

FORMAT = "keras_vit embeddings 1"
FILE = "plan.json"
IMAGES_PER_PART = 10_000
WORDS = {
    **{"model_digest": "model", "data_digest": "state of the data", "partitions": "number of parts"},
    **{"splits": "number of images", "outputs": "choice of outputs"},
    "export_format": "format",
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a folder of embeddings holds. Its parts are the unit of work, which any process can compute.

    Attributes:
        model: Where the model is, as `keras-vit --model` names it.
        model_digest: That of `model_digest`.
        dataset: The arguments of `load_dataset`.
        data_digest: A digest of the data set's fingerprint.
        splits: The number of images of each split. The parts divide all of them, one split after another.
        partitions: The number of parts, of equal numbers of images (up to one).
        outputs: The names of what is computed, in order.
        dtype: Of the numbers that are stored, "float16" or "float32".
        batch_size: Images that are computed at a time.
        export_format: How the model computes: None for Keras, or the name of an export format.
        split_seed: The seed of the split that the model was trained on; None if unknown. Nothing that is
            computed depends on it.

    Example:
        >>> from keras_vit.embeddings.plan import Plan
        >>> plan = Plan("a.keras", "1f", {"name": "digits"}, "2e", {"train": 7, "test": 3}, 2)
        >>> plan.ranges(1), plan.name(1)
        ([('train', 5, 7), ('test', 0, 3)], 'part-00001-of-00002.parquet')
    """

    model: str
    model_digest: str
    dataset: dict
    data_digest: str
    splits: dict[str, int]
    partitions: int
    outputs: tuple[str, ...] = ("pooled",)
    dtype: str = "float16"
    batch_size: int = 64
    export_format: str | None = None
    split_seed: int | None = dataclasses.field(default=None, compare=False)

    @property
    def images(self):
        return sum(self.splits.values())

    @property
    def digest(self):
        """A digest of what is compared, in hexadecimal; parts of another one are other embeddings."""
        names = [field.name for field in dataclasses.fields(self) if field.compare]
        compared = {name: getattr(self, name) for name in names}
        return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()

    def name(self, part):
        """The name of the file of a part."""
        return f"part-{part:05}-of-{self.partitions:05}.parquet"

    def ranges(self, part):
        """The images of a part: (split, first, stop) in order."""
        start, stop = (n * self.images // self.partitions for n in (part, part + 1))
        ranges, before = [], 0
        for split, count in self.splits.items():
            first, last = max(start - before, 0), min(stop - before, count)
            if first < last:
                ranges.append((split, first, last))
            before += count
        return ranges


def begin(folder, plan):
    """Write the plan of a new folder, or check that it is that of an existing one.

    Args:
        folder: Its path; it is created.
        plan: A `Plan`.

    Raises:
        ValueError: if the folder has another plan, or files without one.

    Example:
        >>> from keras_vit.embeddings.plan import begin
        >>> begin(tmp / "out", Plan("a.keras", "1f", {"name": "digits"}, "2e", {"train": 7}, 1))
        >>> begin(tmp / "out", Plan("a.keras", "3d", {"name": "digits"}, "2e", {"train": 7}, 1))
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: '.../out' was begun with another model; choose a new folder
    """
    path = pathlib.Path(folder).expanduser()
    if not (path / FILE).exists():
        if path.exists() and any(not file.name.startswith(".") for file in path.iterdir()):
            raise ValueError(f"{os.fspath(folder)!r} is not empty and holds no {FILE}; choose a new folder")
        content = json.dumps({"format": FORMAT, **dataclasses.asdict(plan)}, indent=2) + "\n"
        try:
            with atomic_path(path / FILE, overwrite=False) as temporary:
                temporary.write_text(content)
        except ValueError:  # Another process may have written it now.
            if not (path / FILE).exists():
                raise
    known = read_plan(folder)
    if known != plan:
        before, now = dataclasses.asdict(known), dataclasses.asdict(plan)
        changed = [name for name in before if before[name] != now[name]]
        values = "" if changed[0].endswith("digest") else f": {before[changed[0]]}, and now {now[changed[0]]}"
        raise ValueError(
            f"{os.fspath(folder)!r} was begun with another {WORDS.get(changed[0], changed[0])}{values}; "
            "choose a new folder"
        )


def read_plan(folder):
    """The `Plan` of a folder.

    Raises:
        ValueError: if there is none, or it is damaged or of another version.
    """
    path = pathlib.Path(folder).expanduser() / FILE
    if not path.is_file():
        raise ValueError(f"{os.fspath(folder)!r} holds no {FILE}; make it with keras-vit embed")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError(f"expected a JSON object; got {type(fields).__name__}")
        if fields.pop("format") != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}")
        return Plan(**{**fields, "outputs": tuple(fields["outputs"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)!r} is damaged: {one_line(error)}") from None
