"""`TextPreprocessing`: how texts become the token ids that a text tower reads."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import string
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.lazy import optional_package
from keras_vit.messages import one_line
from keras_vit.preprocessing.text_growth import check_growth, check_sentencepiece
from keras_vit.rules import Rule, boolean, check_fields, field, integer, one_of, optional, text
from keras_vit.types import Path

LARGEST = 1 << 27  # bytes of a tokenizer's file; Gemma's tokenizer.json has 34 million
MOST_IDS = 1 << 31  # those of int32
_TRIAL = "a Z 0 \u2603"  # a text that no tokenizer may fail to encode; few know the snowman
PACKAGES = ("tokenizers", "sentencepiece")
CONFIG = "tokenizer_config.json"
OWN = "keras_vit"  # in it: the arguments of `TextPreprocessing` but the tokenizer

# How each family of models prepares its texts, and the files that hold its tokenizer, the preferred first.
_END = {"end": "</s>", "pad": "</s>"}
_PIECES = ("spiece.model", "sentencepiece.model", "tokenizer.model", "tokenizer.json")
FAMILIES = {
    "siglip": {"length": 64, "lower": True, "remove_punctuation": True, **_END},
    "siglip2": {"length": 64, "lower": True, "end": "<eos>", "pad": "<pad>"},
    "clip": {"length": 77, "start": "<|startoftext|>", "end": "<|endoftext|>", "pad": "<|endoftext|>"},
    "lit": {"length": 16, **_END},
    "lit_bert": {"length": 16, "start": "[CLS]", "pad": "[PAD]"},
}
FILES = {
    "siglip": _PIECES,
    "siglip2": ("tokenizer.json", "tokenizer.model", "spiece.model"),
    "clip": ("tokenizer.json", "vocab.json"),
    "lit": _PIECES,
    "lit_bert": ("tokenizer.json", "vocab.txt"),
}
_WRITTEN = {"sentencepiece": "spiece.model", "tokenizers": "tokenizer.json"}  # by form
# The names of transformers' classes; Gemma's are those of SigLIP 2 before it had its own.
_CLASSES = {
    "SiglipTokenizer": "siglip",
    "Siglip2Tokenizer": "siglip2",
    "GemmaTokenizer": "siglip2",
    "CLIPTokenizer": "clip",
}
_CLIP_WORDS = (  # of Radford et al.'s `simple_tokenizer.py`
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PACKED = Rule("a tokenizer's file, compressed by zlib, in base 64", lambda value: isinstance(value, str))


@dataclasses.dataclass(frozen=True)
class TextPreprocessing:
    """How texts are prepared for a text tower, in inference as in its training.

    Called with texts it returns their token ids: a start token, the text's tokens, an end token, which stays
    if the text is too long, and padding up to a fixed length. `from_files` makes it from a checkpoint's own
    files. They are part of the configuration, so a saved model needs no other file.

    Args:
        tokenizer: The tokenizer's file, compressed by zlib, in base 64.
        form: "tokenizers" (the file is a `tokenizer.json` of that library) or "sentencepiece".
        length: Number of token ids of a text.
        lower: Whether texts are converted to lower case. In the form "tokenizers" each character is
            converted by itself, in "sentencepiece" as `str.lower` does: the two differ in the Greek sigma.
        remove_punctuation: Whether ASCII punctuation is removed, and white space becomes single spaces.
        start, end: Tokens before and behind the text's, or None.
        pad: Token of the padding.

    Call arguments:
        texts: A str or a list of them.

    Returns:
        A NumPy array of int32, (number of texts, length).

    Raises:
        ValueError: for a file that holds no tokenizer, a token that it does not have, too short a length, or
            texts that are no str.
        ImportError: if tokenizers or sentencepiece is missing, with the command that installs them. Neither
            is needed before the first call.

    Example:
        >>> words = {"[PAD]": 0, "[CLS]": 1, "[UNK]": 2, "a": 3, "red": 4, "car": 5}
        >>> _ = (tmp / "vocab.txt").write_text("\\n".join(words))
        >>> prepare = TextPreprocessing.from_files(tmp, "lit_bert", length=6)
        >>> prepare(["A red car", "a green car"]).tolist()
        [[1, 3, 4, 5, 0, 0], [1, 3, 2, 5, 0, 0]]

    Source: `big_vision/pp/ops_text.py`, whose `eos="sticky"` keeps the end token; `vit_jax/preprocess.py` for
    LiT; Radford et al. 2021 (CLIP), `simple_tokenizer.py`.
    """

    tokenizer: str = field(_PACKED, repr=False)
    form: str = field(one_of(("tokenizers", "sentencepiece")))
    length: int = field(integer(at_least=1))
    lower: bool = field(boolean, default=False)
    remove_punctuation: bool = field(boolean, default=False)
    start: str | None = field(optional(text), default=None)
    end: str | None = field(optional(text), default=None)
    pad: str = field(text, default="<pad>")

    def __post_init__(self):
        check_fields(self)
        if self.length <= len(self._around):
            raise ValueError(f"length must be at least {1 + len(self._around)}; got {self.length}")

    @classmethod
    def from_files(cls, path: Path, family: str | None = None, **options: Any) -> TextPreprocessing:
        """Make it from the files of a checkpoint.

        Args:
            path: A tokenizer's file, or a folder with one: `tokenizer.json`, `spiece.model`,
                `tokenizer.model`, `vocab.json` with `merges.txt` next to it (CLIP), or `vocab.txt` (BERT).
                A `tokenizer_config.json` next to it is read, too.
            family: "siglip", "siglip2", "clip", "lit" (sentencepiece) or "lit_bert", by which models prepare
                their texts; None: as `tokenizer_config.json` says, by all arguments if this package wrote it,
                otherwise by the class that it names.
            **options: Arguments of `TextPreprocessing`, instead of those of the family and of the files.

        Returns:
            TextPreprocessing.

        Raises:
            ValueError: if there is no such file, or it cannot be read, or the family is unknown.
        """
        path = pathlib.Path(path).expanduser()
        config = read_config(path if path.is_dir() else path.parent)
        described = describe(config, family)
        if described is None:
            name, known = config.get("tokenizer_class"), ", ".join(map(repr, FAMILIES))
            raise ValueError(
                f"{CONFIG} names no known tokenizer_class (got {name}); give family, one of {known}"
            )
        known, names = described
        if path.is_dir():
            path, folder = next((path / name for name in names if (path / name).is_file()), None), path
            if path is None:
                raise ValueError(f"{os.fspath(folder)!r} holds no {' or '.join(names)}")
        form, content = _read(path)
        prepared = cls(pack(content), form, **{**known, **options})
        prepared._compiled  # noqa: B018  A damaged file is refused here, not at the first call.
        return prepared

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        texts = [texts] if isinstance(texts, str) else list(texts)
        for each in texts:
            if not isinstance(each, str):
                raise ValueError(f"texts must be a str or a list of them; got a {type(each).__name__}")
        encode, ids = self._compiled
        start, end = ([ids[token]] if token else [] for token in (self.start, self.end))
        most = self.length - len(self._around)
        prepared = np.full((len(texts), self.length), ids[self.pad], "int32")
        for row, tokens in zip(prepared, encode([self._clean(each) for each in texts])):
            tokens = [*start, *tokens[:most], *end]
            row[: len(tokens)] = tokens
        return prepared

    @property
    def vocabulary_size(self) -> int:
        """Number of the tokenizer's tokens."""
        return self._library.size

    @property
    def digest(self) -> str:
        """The sha256 of the tokenizer's file and of the other arguments, in hexadecimal."""
        return hashlib.sha256(b"".join(self.files().values())).hexdigest()

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def files(self) -> dict[str, bytes]:
        """The files from which transformers and `from_files` read it: dict from names to bytes."""
        classes = {"sentencepiece": "SiglipTokenizer"}
        default = "CLIPTokenizer" if self.start == FAMILIES["clip"]["start"] else "PreTrainedTokenizerFast"
        default = "Siglip2Tokenizer" if self.lower and self.form == "tokenizers" else default
        config = {
            "tokenizer_class": classes.get(self.form, default),
            "model_max_length": self.length,
            "padding_side": "right",
            "do_lower_case": self.lower,
            **{"bos_token": self.start, "eos_token": self.end, "pad_token": self.pad},
        }
        config = {name: value for name, value in config.items() if value is not None}
        config[OWN] = {name: value for name, value in self.get_config().items() if name != "tokenizer"}
        name = _WRITTEN[self.form]
        return {name: unpack(self.tokenizer), CONFIG: (json.dumps(config, indent=1) + "\n").encode()}

    @property
    def _around(self):
        return [token for token in (self.start, self.end) if token]

    def _clean(self, text):
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)  # Half of a pair is no text.
        if self.lower and self.form == "sentencepiece":
            text = text.lower()
        if self.remove_punctuation:
            text = " ".join(text.translate(_PUNCTUATION).split())
        return text

    @functools.cached_property
    def _library(self):
        make = {"tokenizers": _Tokenizers, "sentencepiece": _SentencePiece}[self.form]
        return make(unpack(self.tokenizer), self.lower)

    @functools.cached_property
    def _compiled(self):
        """The function from texts to lists of ids, and the ids of the tokens around them."""
        ids = {token: self._library.token_id(token) for token in (*self._around, self.pad)}
        if missing := [token for token, found in ids.items() if found is None]:
            raise ValueError(f"the tokenizer has no token {missing[0]!r}")
        if self._library.size > MOST_IDS:
            raise ValueError(f"expected token ids below {MOST_IDS}; got {self._library.size - 1}")
        self._library.encode([_TRIAL])
        return self._library.encode, ids

    def __getstate__(self):
        """The fields: copies and other processes build the library's object again."""
        return self.get_config()


class _Tokenizers:
    """A tokenizer of the library `tokenizers`."""

    def __init__(self, content, lower):
        library = optional_package("tokenizers", "this model's text", PACKAGES)
        with _value_error("not a tokenizer.json"):
            check_growth(json.loads(content))
            tokenizer = library.Tokenizer.from_str(content.decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if lower:
            steps = [library.normalizers.Lowercase(), *filter(None, [tokenizer.normalizer])]
            tokenizer.normalizer = library.normalizers.Sequence(steps)
        self.tokenizer, self.token_id = tokenizer, tokenizer.token_to_id
        self.size = 1 + max(tokenizer.get_vocab().values(), default=-1)

    def encode(self, texts):
        with _value_error("the tokenizer cannot encode the text"):
            return [found.ids for found in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


class _SentencePiece:
    """A model of the library `sentencepiece`, whose texts are in lower case already."""

    def __init__(self, content, lower):
        library = optional_package("sentencepiece", "this model's text", PACKAGES)
        with _value_error("not a model of sentencepiece"):
            if not content:  # of which the library makes a processor without a model
                raise ValueError("the file is empty")
            check_sentencepiece(content)
            self.processor = library.SentencePieceProcessor(model_proto=content)
            self.size = self.processor.get_piece_size()

    def encode(self, texts):
        with _value_error("the tokenizer cannot encode the text"):
            return self.processor.encode(texts)

    def token_id(self, token):
        number = self.processor.piece_to_id(token)
        return number if self.processor.id_to_piece(number) == token else None


@contextlib.contextmanager
def _value_error(words):
    """A context in which any error of a library is a ValueError; panics of Rust are no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(f"{words}: {one_line(error)}") from None


def pack(content):
    """The bytes of a file as text for a configuration.

    >>> unpack(pack(b"vocabulary"))
    b'vocabulary'
    """
    return base64.b64encode(zlib.compress(content, 9)).decode()


def unpack(packed):
    """The bytes of a file, or ValueError."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(packed, validate=True), LARGEST)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"tokenizer must be {_PACKED.words}: {error}") from None
    if not unpacking.eof:
        raise ValueError(f"tokenizer must be {_PACKED.words}, of at most {LARGEST} bytes")
    return content


def describe(config, family=None):
    """The options of a tokenizer and the possible names of its file, by a family or its configuration.

    Args:
        config: The contents of a `tokenizer_config.json`, or {}.
        family: As for `TextPreprocessing.from_files`.

    Returns:
        (dict of arguments of `TextPreprocessing`, tuple of names); None if neither describes a tokenizer.

    >>> describe({"tokenizer_class": "CLIPTokenizerFast"})[1]
    ('tokenizer.json', 'vocab.json')
    """
    stored = config.get(OWN)
    if family is None and stored is not None:
        known = {each.name for each in dataclasses.fields(TextPreprocessing)} - {"tokenizer"}
        is_whole = isinstance(stored, dict) and {"form", "length"} <= stored.keys() <= known
        if not is_whole or stored["form"] not in [*_WRITTEN]:
            raise ValueError(f"{CONFIG}: {OWN} must hold arguments of TextPreprocessing; got {stored!r}")
        return {name: stored[name] for name in stored if name != "form"}, (_WRITTEN[stored["form"]],)
    if family is None:
        family = _CLASSES.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
        if family is None:
            return None
    one_of(FAMILIES).check("family", family)
    return {**FAMILIES[family], **_options_in(config)}, FILES[family]


def read_config(folder):
    """The `tokenizer_config.json` of a folder; {} if there is none."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(_content(path))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} is not readable JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{os.fspath(path)!r} must hold an object; got a {type(config).__name__}")
    return config


def _options_in(config):
    """The options that a `tokenizer_config.json` sets."""
    options, length, pad = {}, config.get("model_max_length"), config.get("pad_token")
    if isinstance(length, int) and 0 < length < 10**6:  # A huge one stands for none.
        options["length"] = length
    pad = pad.get("content") if isinstance(pad, dict) else pad
    if isinstance(pad, str):
        options["pad"] = pad
    if config.get("tokenizer_class") == "SiglipTokenizer" and "do_lower_case" in config:
        options["lower"] = config["do_lower_case"]
    return options


def _read(path):
    """(form, bytes) of a tokenizer's file; vocabularies become a `tokenizer.json`."""
    try:
        content = _content(path)
        if path.suffix == ".model":
            return "sentencepiece", content
        if path.suffix == ".txt":
            return "tokenizers", _of_bert(content)
        if path.suffix == ".json" and not isinstance((stored := json.loads(content)).get("model"), dict):
            return "tokenizers", _of_clip(stored, _content(path.with_name("merges.txt")))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{os.fspath(path)!r} is no file of a tokenizer: {error}") from None
    if path.suffix != ".json":
        raise ValueError(f"expected a .json, .model or .txt file of a tokenizer; got {os.fspath(path)!r}")
    return "tokenizers", content


def _content(path):
    if not path.is_file():
        raise ValueError(f"no such file: {os.fspath(path)!r}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    return path.read_bytes()


def _of_clip(vocabulary, merges):
    """A `tokenizer.json` from CLIP's `vocab.json` and `merges.txt`, whose first line is its version."""
    library = optional_package("tokenizers", "CLIP's text", PACKAGES)
    lines = [line for line in merges.decode().split("\n") if line and not line.startswith("#version")]
    start, end = (FAMILIES["clip"][name] for name in ("start", "end"))
    pairs = [tuple(line.split(" ")) for line in lines]
    model = library.models.BPE(vocabulary, pairs, unk_token=end, end_of_word_suffix="</w>")
    tokenizer = library.Tokenizer(model)
    normalizers, split = library.normalizers, library.pre_tokenizers
    spaces = normalizers.Replace(library.Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    splitter = split.Split(library.Regex(_CLIP_WORDS), "removed", invert=True)
    tokenizer.pre_tokenizer = split.Sequence([splitter, split.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([start, end])
    return tokenizer.to_str().encode()


def _of_bert(vocabulary):
    """A `tokenizer.json` from BERT's `vocab.txt` of lower case, as the authors of LiT read it."""
    library = optional_package("tokenizers", "BERT's text", PACKAGES)
    entries = vocabulary.decode().removesuffix("\n").split("\n")
    model = library.models.WordPiece({word: i for i, word in enumerate(entries)}, unk_token="[UNK]")
    tokenizer = library.Tokenizer(model)
    # TensorFlow Text folds case by Unicode's NFKC_Casefold.
    normalizers = library.normalizers
    folded = [normalizers.Replace(*pair) for pair in (("ß", "ss"), ("ẞ", "ss"), ("ς", "σ"))]
    steps = [normalizers.NFKC(), *folded, normalizers.BertNormalizer(lowercase=True)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return tokenizer.to_str().encode()
