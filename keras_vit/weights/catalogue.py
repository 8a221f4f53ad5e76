"""One row per published checkpoint: where it is, and what its arrays do not tell.

The rows are `catalogue.csv`, sorted by name. A name reads from left to right:

    vit_b16_augreg_in21k_ft_in1k_384
    vit                               family: vit, deit, deit3, eva, flexivit, test_vit
        b16                           size and patch; "r50_b16" for R50+B/16, and sizes that only timm
                                      has by its word ("betwixt16", "so150m_16" with a digit at the end)
            …                         what else timm's name of the architecture says: clip, siglip, gap,
                                      reg4, dinov2, distilled
            augreg_in21k_ft_in1k      what it was trained on and how: timm's tag, without "fb_"
                                 384  side of the image in pixels, unless it is 224

"_hf" stands before the tag of Google's and Meta's own repositories, in transformers' layout. "_npz"
ends the names of the authors' .npz files, whose buckets have asked for credentials since 2026-02. The
plain name is then the one that anybody can fetch; for AugReg it need not be the same run as the file
that the authors recommend. Of CLIP weights trained with quick_gelu only that reading is here, and of
SigLIP at 384 with patches of 14, which do not divide it, the same weights at 378.

What the columns hold and where it is from:

* `options`: arguments that the layout would choose otherwise or leaves open (`layouts/timm.py`); read
  off the architectures of timm 1.0.31.
* `prepare`: resize, interpolation, and the mean and std of `NORMS`. timm's and transformers' resizes go
  through Pillow, which smooths; "aliased" ones do not. timm's rows are its own configurations (where it
  squashes to an image 1/0.95 as large and crops, only the squashing is kept), Google's repositories
  have their `preprocessor_config.json`, and Meta's have `datasets.py` of facebookresearch/deit (the
  repositories of the undistilled models state another mean). big_vision's S/16 was resized by area,
  for which the smoothed bilinear stands.
* `licence`: `LICENCE_SOURCES`.
* `top1`: per cent of ImageNet-1k's validation images, at this size, as `top1_source` reports it; empty
  where no source does.
* `revision`, `sha256`, `bytes`: the repository's commit, and what its weights are checked against, as
  `pin_source` states them; empty where no source does, and then the newest version is fetched, unchecked.

Architectures that `VisionTransformer` cannot express are left out: norms of query and key, RMSNorm,
SwiGLU, RoPE, parallel blocks, relative positions, convolutions as stem, no last norm.
"""

import ast
import csv
import dataclasses
import difflib
import fnmatch
import functools
import os
import pathlib
import re

from keras_vit.variants import parse_variant

CSV = pathlib.Path(__file__).with_name("catalogue.csv")

# Mean and std of the pixels in [0, 1].
NORMS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
LICENCE_SOURCES = {
    "hf://timm/": "timm 1.0.31, configuration of the weights",
    "hf://google/": "model cards, LICENSE of google-research/vision_transformer",
    "hf://facebook/": "model cards, README of facebookresearch/deit",
    "gs://vit_models/": "LICENSE of google-research/vision_transformer",
    "gs://big_vision/": "README of google-research/big_vision",
}
_FILE = re.compile(r"\.(npz|npy|keras|h5|safetensors|bin|pth?|ckpt|tflite|onnx|zip|t?gz)(:|$)", re.IGNORECASE)
_TIMM = "hf://timm/"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/(?!\d+$)[A-Za-z0-9][\w.-]*")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint.

    Args:
        name: The short name.
        source: Where it is: "hf://OWNER/REPOSITORY" or "gs://BUCKET/PATH".
        variant: Its size as `parse_variant` takes it, or None for a size that has no such name.
        image_size: (height, width) that it was trained or fine-tuned for.
        num_classes: Size of its head; None for features. CLIP's projection counts as a head.
        options: Arguments of `VisionTransformer` that the file's layout does not imply.
        preprocessing: Arguments of `Preprocessing`, all but `image_size`.
        class_names: Name of the list of its classes, as `class_names` takes it, or None.
        pretrained_on: The data, in order.
        licence, licence_source: Its licence (SPDX where there is one) and who states it; or None.
        top1, top1_source: ImageNet-1k accuracy in per cent and who reports it; or None.
        revision: Commit of the repository that is fetched; or None.
        sha256, bytes: Of the file at that revision; or None.
        pin_source: Who states them; or None.

    Example:
        >>> CATALOGUE["vit_b16_augreg_in21k_ft_in1k_384"].source
        'hf://timm/vit_base_patch16_384.augreg_in21k_ft_in1k'
        >>> CATALOGUE["vit_b16_clip_openai"].options
        {'activation': 'quick_gelu'}
    """

    name: str
    source: str
    variant: str | None
    image_size: tuple[int, int]
    num_classes: int | None
    options: dict
    preprocessing: dict
    class_names: str | None
    pretrained_on: str
    licence: str | None
    licence_source: str | None
    top1: float | None
    top1_source: str | None
    revision: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    pin_source: str | None = None

    @property
    def address(self):
        """The source at its revision, as `fetch` takes it."""
        return f"{self.source}@{self.revision}" if self.revision else self.source


def _row(cells):
    """A line of the CSV as a `Checkpoint`."""
    given = {name: text or None for name, text in cells.items()}
    resize, *fraction, interpolation, norm = [word for word in cells["prepare"].split() if word != "aliased"]
    classes = given["num_classes"] and int(given["num_classes"])
    owner = next(start for start in LICENCE_SOURCES if cells["source"].startswith(start))
    mean, std = NORMS[norm]
    return Checkpoint(
        **{name: given[name] for name in ("name", "source", "variant", "pretrained_on")},
        **{name: given[name] for name in ("licence", "top1_source", "revision", "sha256", "pin_source")},
        image_size=(int(cells["image_size"]),) * 2,
        num_classes=classes,
        options={
            name: _value(text) for name, _, text in (o.partition("=") for o in cells["options"].split())
        },
        preprocessing={
            "resize": resize,
            **({"crop_fraction": float(fraction[0])} if fraction else {}),
            "interpolation": interpolation,
            "antialias": "aliased" not in cells["prepare"].split(),
            "mean": mean,
            "std": std,
        },
        class_names="imagenet_1k" if classes == 1000 else None,
        licence_source=given["licence"] and LICENCE_SOURCES[owner],
        top1=given["top1"] and float(given["top1"]),
        bytes=given["bytes"] and int(given["bytes"]),
    )


def _value(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _read():
    with CSV.open(encoding="utf-8", newline="") as file:
        return {row.name: row for row in map(_row, csv.DictReader(file))}


CATALOGUE = _read()


@functools.cache
def _by_source():
    return {row.source: row for row in CATALOGUE.values()}


def find(source_or_name):
    """The row of a short name or of a source.

    Args:
        source_or_name: A short name; the name in timm or on Hugging Face; a source as the catalogue has
            it; or an hf:// one followed by "@REVISION" or the path of a file.

    Returns:
        `Checkpoint`, or None if there is no such row.

    Example:
        >>> find("hf://timm/vit_base_patch16_224.augreg_in21k@main/model.safetensors").name
        'vit_b16_augreg_in21k'
        >>> find("vit_base_patch16_224.augreg_in21k").name
        'vit_b16_augreg_in21k'
        >>> find("a_model_of_mine")

    Source: the module's docstring.
    """
    text = os.fspath(source_or_name)
    if text in CATALOGUE:
        return CATALOGUE[text]
    text = _repository(text) or text
    if text.startswith("hf://"):  # hf://OWNER/REPOSITORY[@REVISION][/PATH]
        owner, _, rest = text.removeprefix("hf://").partition("/")
        text = f"hf://{owner}/{rest.partition('/')[0].partition('@')[0]}"
    return _by_source().get(text)


def _repository(text):
    """The address of what timm or Hugging Face call so; None for an address, a variant or a path."""
    if "://" in text or _FILE.search(text) or _exists(text):
        return None
    for address in (_TIMM + text, f"hf://{text}"):
        if address in _by_source():
            return address
    if _REPOSITORY.fullmatch(text) and not _exists(text.partition("/")[0]):
        return f"hf://{text}"
    return None


def _exists(text):
    return os.path.exists(os.path.expanduser(text))


def _is_variant(text):
    try:
        return bool(parse_variant(text))
    except ValueError:
        return False


def resolve(source):
    """What to fetch for something that may be a name.

    Args:
        source: A short name; the name of a row in timm, such as "vit_base_patch16_224.augreg_in21k";
            the name of any repository on Hugging Face, "ORG/NAME", where neither that path nor the
            folder ORG exists; or a path or an address, which is returned as it is.

    Returns:
        The address of the row, at its revision where it has one, or of the repository; or `source`.

    Raises:
        ValueError: for what can only be a name and is in no row, with the closest names; for a variant.

    Example:
        >>> resolve("vit_b16_augreg_in21k")
        'hf://timm/vit_base_patch16_224.augreg_in21k'
        >>> resolve("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k")
        'hf://timm/vit_base_patch16_224.augreg2_in21k_ft_in1k@063c6c38a5d8510b2e57df480445e94b231dad2c'
        >>> resolve("ViT-B_16.npz")
        'ViT-B_16.npz'
        >>> resolve("vit_h14_mea")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: no checkpoint is called 'vit_h14_mea'; did you mean 'vit_h14_mae', ...

    Source: the names are ours.
    """
    text = os.fspath(source)
    if text in CATALOGUE:
        return CATALOGUE[text].address
    if repository := _repository(text):
        row = _by_source().get(repository)
        return row.address if row else repository
    if not _exists(text) and _is_variant(text):
        raise ValueError(f"{text!r} is a variant, which has no weights; give a checkpoint, or train a model")
    if "/" in text or "\\" in text or _FILE.search(text) or _exists(text):  # an address has a slash
        return source
    known = [*CATALOGUE, *(name.removeprefix(_TIMM) for name in _by_source() if name.startswith(_TIMM))]
    close = difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.5)
    if not close and pathlib.Path(text).suffix:
        return source
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else "`keras-vit models` lists the names"
    raise ValueError(f"no checkpoint is called {text!r}; {hint}")


def list_models(filter="", *, variant=None):
    """The names of the published checkpoints, for `from_pretrained`.

    Args:
        filter: A text, or several that must all match: a part of the name, the variant, or the source,
            which ends with the name in timm or on Hugging Face. A text with the wildcards `*`, `?` or
            `[…]` must match one of them as a whole. Case does not matter.
        variant: Size, such as "B/16"; None: any.

    Returns:
        list of str, sorted. `find` gives what is known of one: size, classes, licence, accuracy, source.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> list_models("deit3*384", variant="S/16")
        ['deit3_s16_in1k_384', 'deit3_s16_in22k_ft_in1k_384']
        >>> list_models(["vit_base_patch16_*.augreg_*", "384"])  # as timm calls them
        ['vit_b16_augreg_in1k_384', 'vit_b16_augreg_in21k_ft_in1k_384']
    """
    if variant:
        parse_variant(variant)
    texts = [filter] if isinstance(filter, str) else filter
    return [
        row.name
        for row in CATALOGUE.values()
        if variant in (None, row.variant) and all(matches(text, *_names(row)) for text in texts)
    ]


def matches(text, *names):
    """Whether a text is part of one of the names, or with wildcards matches it as a whole.

    >>> matches("b16", "vit_B16_dino"), matches("b16*", "vit_b16_dino"), matches("*b16*", "vit_b16_dino")
    (True, False, True)
    """
    text = text.lower()
    pattern = text if re.search(r"[*?[]", text) else f"*{text}*"
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for name in names)


def _names(row):
    """What a checkpoint may be looked for by."""
    address = row.source.partition("://")[2]
    return row.name, row.source, address, address.removeprefix("timm/"), row.variant or ""
