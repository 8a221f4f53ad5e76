"""Published checkpoints: their sources, and what their arrays do not determine.

The rows are in `catalogue.csv`, sorted by name. A name has these parts:

    vit_b16_augreg_in21k_ft_in1k_384
    vit                               family: vit, deit, deit3, eva, eva02, beit, beitv2, beit3, aimv2,
                                      pe_core, pe_lang, pe_spatial, naflexvit, flexivit, test_vit
        b16                           size and patch; "r50_b16" for R50+B/16; timm's word for sizes that
                                      only timm has ("betwixt16", "so150m_16" with a digit at the end)
            …                         the rest of timm's name of the architecture: clip, siglip, gap, reg4,
                                      dinov2, distilled
            augreg_in21k_ft_in1k      training data and method: timm's tag, without "fb_"
                                 384  side of the image in pixels, or "1024x768", unless it is 224

"_hf" precedes the tag of Google's, Meta's, OpenAI's and LAION's own repositories, which use transformers'
layout; SigLIP's and CLIP's also hold the text tower. "_npz" ends the names of the authors' .npz files,
whose buckets have required credentials since 2026-02; the name without it is public. For AugReg it may be
another run than the file that the authors recommend. CLIP weights trained with quick_gelu are listed with
that activation only.

The columns and their sources:

* `variant`: a name in `variants.py`. For newer families it also sets options that no array shows. DINOv2 with
  GELU, CLIP and SigLIP have the names of plain models. Empty for sizes that only timm has.
* `options`: arguments that differ from the layout's defaults or that it leaves open (`layouts/timm.py`), from
  the architectures of timm 1.0.31.
* `prepare`: resize, perhaps the crop fraction, interpolation, and the mean and std of `NORMS`. timm and
  transformers resize with Pillow, which antialiases; "aliased" rows do not. timm's rows follow its own
  configurations, Google's repositories their
  `preprocessor_config.json` or, for SigLIP, `convert_siglip_to_hf.py` of transformers, LAION's
  `pretrained.py` of open_clip 3.3.0, and Meta's `datasets.py` of facebookresearch/deit (the repositories of
  the undistilled models state another mean). big_vision's S/16 was resized by area, which antialiased
  bilinear approximates.
  The repositories of DINOv3 follow `convert_dinov3_vit_to_hf.py` of transformers, and for SAT-493M the README
  of facebookresearch/dinov3.
* `pretrained_on`: the names that the authors' papers, model cards or READMEs give their data.
* `license`: `LICENSE_SOURCES`.
* `top1`: ImageNet-1k validation accuracy in per cent, at this size, as reported by `top1_source`; empty where
  no source reports it.
* `revision`, `sha256`, `bytes`: commit of the repository, and digest and size of its weights, as stated by
  `pin_source`; empty where no source states them, and then the newest version is used, unchecked.

Architectures that `VisionTransformer` cannot express are excluded: parallel blocks, differential attention,
relative positions other than BEiT's, convolutional stems. Rows of models with rotary positions that only timm
has need the repository's `config.json`, which says so.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import fnmatch
import os
import pathlib
import re

from keras_vit import rules
from keras_vit.messages import listed, names_arguments
from keras_vit.variants import is_variant, other_spelling, parse_variant

CSV = pathlib.Path(__file__).with_name("catalogue.csv")

# Mean and std of pixels in [0, 1].
NORMS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "satellite": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
}
LICENSE_SOURCES = {
    "hf://timm/": "timm 1.0.31, configuration of the weights",
    "hf://google/siglip": "model cards",
    "hf://openai/": "LICENSE of openai/CLIP",
    "hf://laion/": "model cards",
    "hf://google/": "model cards, LICENSE of google-research/vision_transformer",
    "hf://facebook/dinov3-": "LICENSE.md of facebookresearch/dinov3",
    "hf://facebook/": "model cards, README of facebookresearch/deit",
    "gs://vit_models/": "LICENSE of google-research/vision_transformer",
    "gs://big_vision/": "README of google-research/big_vision",
}
# Licenses under which everybody may use the weights for anything.
_OPEN = ("apache-2.0", "mit", "cc-by-4.0")
_FILE = re.compile(r"\.(npz|npy|keras|h5|safetensors|bin|pth?|ckpt|tflite|onnx|zip|t?gz)(:|$)", re.IGNORECASE)
_TIMM = "hf://timm/"
_TORCHVISION = (_TIMM, "hf://laion/")  # Their authors crop with it: by timm and open_clip.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/(?!\d+$)[A-Za-z0-9][\w.-]*")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint.

    Args:
        name: The short name.
        source: "hf://OWNER/REPOSITORY" or "gs://BUCKET/PATH".
        variant: Size for `parse_variant`, or None for a size without such a name.
        image_size: (height, width) of training or fine-tuning.
        num_classes: Size of its head; None for features. CLIP's projection counts as a head.
        options: Arguments of `VisionTransformer` that the file's layout does not imply.
        preprocessing: Arguments of `Preprocessing` except `image_size`.
        class_names: Name of the list of its classes for `class_names`, or None.
        pretrained_on: Training data, in order.
        license, license_source: License (SPDX where there is one) and its source, or None.
        top1, top1_source: ImageNet-1k accuracy in per cent and its source, or None.
        revision: Commit of the repository, or None.
        sha256, bytes: Digest and size of the file at that revision, or None.
        pin_source: Source of revision, digest and size, or None.

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
    license: str | None
    license_source: str | None
    top1: float | None
    top1_source: str | None
    revision: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    pin_source: str | None = None

    @property
    def url(self) -> str:
        """The source at its revision, for `fetch`."""
        return f"{self.source}@{self.revision}" if self.revision else self.source


def _row(cells):
    """`Checkpoint` of a row of the CSV file."""
    row = {name: text or None for name, text in cells.items()}
    for name, number in {"num_classes": int, "top1": float, "bytes": int}.items():
        row[name] = row[name] and number(row[name])
    prepare = row.pop("prepare").split()
    resize, *crop_fraction, interpolation, norm = [word for word in prepare if word != "aliased"]
    preprocessing = {"resize": resize, "interpolation": interpolation, "antialias": "aliased" not in prepare}
    preprocessing["mean"], preprocessing["std"] = NORMS[norm]
    if crop_fraction:
        preprocessing["crop_fraction"] = float(crop_fraction[0])
        preprocessing["crop_rounding"] = "even" if row["source"].startswith(_TORCHVISION) else "down"
    options = dict(option.split("=") for option in cells["options"].split())
    owner = next(start for start in LICENSE_SOURCES if row["source"].startswith(start))
    derived = {
        "image_size": _size(row["image_size"]),
        "options": {name: int(value) if value.isdecimal() else value for name, value in options.items()},
        "preprocessing": preprocessing,
        "class_names": "imagenet_1k" if row["num_classes"] == 1000 else None,
        "license_source": row["license"] and LICENSE_SOURCES[owner],
    }
    return Checkpoint(**row | derived)


def _size(text):
    """(height, width) of "224" or "1024x768"."""
    height, _, width = text.partition("x")
    return int(height), int(width or height)


with CSV.open(encoding="utf-8", newline="") as _file:
    CATALOGUE = {row["name"]: _row(row) for row in csv.DictReader(_file)}
_BY_SOURCE = {row.source: row for row in CATALOGUE.values()}


def find(source_or_name: str) -> Checkpoint | None:
    """Find the row of a short name or of a source.

    Args:
        source_or_name: A short name; a name in timm or on Hugging Face; or a source of the catalogue,
            optionally with "@REVISION" and the path of a file if it is an hf:// one.

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
    return _BY_SOURCE.get(text)


def license_note(row):
    """A sentence about a license that restricts the use of a row's weights, or None.

    Example:
        >>> license_note(find("vit_s16_dinov3_hf_lvd1689m"))[47:87]
        "the weights have Meta's DINOv3 license, "
    """
    if row is None or row.license is None or row.license in _OPEN:
        return None
    title = "Meta's DINOv3 license" if row.license == "dinov3-license" else f"the license {row.license}"
    return f"{row.source}: the weights have {title}, which restricts their use; read it in the repository"


def _repository(text):
    """hf:// URL of a name in timm or on Hugging Face; None for a URL, a variant or a path."""
    if _is_path(text):
        return None
    for url in (_TIMM + text, f"hf://{text}"):
        if url in _BY_SOURCE:
            return url
    if _REPOSITORY.fullmatch(text) and not _exists(text.partition("/")[0]):
        return f"hf://{text}"
    return None


def _is_path(text):
    """Whether this is a URL, the name of a file, or a path that exists."""
    return "://" in text or _FILE.search(text) or _exists(text)


def _exists(text):
    return os.path.exists(os.path.expanduser(text))


def resolve(source):
    """Resolve a name to a source for `fetch`.

    Args:
        source: A short name; the name of a row in timm, such as "vit_base_patch16_224.augreg_in21k";
            the name of any repository on Hugging Face, "ORG/NAME", if neither that path nor the
            folder ORG exists; or a path or URL, which is returned unchanged.

    Returns:
        The source of the row, at its revision if it has one, or of the repository; or `source`.

    Raises:
        ValueError: for an unknown name, with the closest known names, and for the name of a variant.

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
    text = os.fsdecode(rules.path.check("source", source))
    if text in CATALOGUE:
        return CATALOGUE[text].url
    if _is_path(text):
        return source
    repository = _repository(text)
    if repository in _BY_SOURCE:
        return _BY_SOURCE[repository].url
    _refuse_architecture(text)
    if repository:
        return repository
    if "/" in text or "\\" in text:
        return source
    known = [*CATALOGUE, *(name.removeprefix(_TIMM) for name in _BY_SOURCE if name.startswith(_TIMM))]
    close = difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.5)
    if not close and pathlib.Path(text).suffix:
        return source
    hint = f"did you mean {', '.join(map(repr, close))}?" if close else "`keras-vit models` lists the names"
    raise ValueError(f"no checkpoint is called {text!r}; {hint}")


def _refuse_architecture(text):
    """Raise ValueError for the name of a variant, or of a timm model without the tag of its weights."""
    start = f"{_TIMM}{text.removeprefix('timm/')}."
    if tagged := [row for row in CATALOGUE.values() if row.source.startswith(start)]:
        names = listed([repr(row.source.removeprefix(_TIMM)) for row in _best_first(tagged)], 3)
        raise ValueError(f"no checkpoint is called {text!r}, which names no weights; did you mean {names}?")
    if variant := text if is_variant(text) else "." not in text and other_spelling(text):
        rows = _best_first(row for row in CATALOGUE.values() if row.variant == variant)
        names = f", such as {rows[0].name!r} of list_models(variant={variant!r})" if rows else ""
        raise ValueError(
            f"{text!r} is a variant and has no weights: VisionTransformer.from_variant({variant!r}) builds "
            f"it with random ones; expected the name of a checkpoint{names}"
        )


def _best_first(rows):
    return sorted(rows, key=lambda row: -(row.top1 or 0))


@names_arguments
def list_models(filter: str = "", *, variant: str | None = None) -> list[str]:
    """List the names of published checkpoints, for `from_pretrained`.

    Args:
        filter: A string, or several that must all match: a part of the name, the variant, or the source,
            which ends with the name in timm or on Hugging Face. A string with the wildcards `*`, `?` or
            `[…]` must match one of them completely. Case is ignored.
        variant: Size, such as "B/16"; None: any.

    Returns:
        Sorted list of str. `find` returns the row of a name: size, classes, license, accuracy, source.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> list_models("deit3*384", variant="S/16")
        ['deit3_s16_in1k_384', 'deit3_s16_in22k_ft_in1k_384']
        >>> list_models(["vit_base_patch16_*.augreg_*", "384"])  # timm's names
        ['vit_b16_augreg_in1k_384', 'vit_b16_augreg_in21k_ft_in1k_384']
    """
    if variant:
        parse_variant(variant)
    texts = [filter] if isinstance(filter, str) else rules.items(rules.text).check("filter", filter)
    return [
        row.name
        for row in CATALOGUE.values()
        if variant in (None, row.variant) and all(matches(text, *_names(row)) for text in texts)
    ]


def matches(text, *names):
    """Return whether a string is part of one of the names, or with wildcards matches one completely.

    >>> matches("b16", "vit_B16_dino"), matches("b16*", "vit_b16_dino"), matches("*b16*", "vit_b16_dino")
    (True, False, True)
    """
    text = text.lower()
    pattern = text if re.search(r"[*?[]", text) else f"*{text}*"
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for name in names)


def _names(row):
    """Strings that a filter may match."""
    path = row.source.partition("://")[2]
    return row.name, row.source, path, path.removeprefix("timm/"), row.variant or ""
