"""Checks of tokenizers that would make a short text too long for the memory, before they are loaded."""

import base64
import math
import struct

MAX_GROWTH = 10_000  # of a text's length by all normalizers together
MAX_ADDED = 256  # bytes in place of one character
# The largest factors of steps that can be repeated, of a text's length in bytes.
_FACTORS = {
    **{"NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "BertNormalizer": 4},
    **{"ByteLevel": 2, "Metaspace": 4},
}


def check_growth(config):
    """Raise ValueError for a `tokenizer.json` that may make a text `MAX_GROWTH` times as long.

    Args:
        config: The file's content.

    >>> step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
    >>> check_growth({"normalizer": {"type": "Sequence", "normalizers": [step] * 5}})
    Traceback (most recent call last):
    ValueError: its normalizers may make a text 100000 times as long; expected at most 10000
    """
    growth = _growth(config.get("normalizer")) * _growth(config.get("pre_tokenizer"))
    if growth > MAX_GROWTH:
        raise ValueError(
            f"its normalizers may make a text {growth:.0f} times as long; expected at most {MAX_GROWTH}"
        )


def _growth(step):
    if not isinstance(step, dict):
        return 1
    name = step.get("type")
    if name == "Sequence":
        return math.prod(map(_growth, step.get("normalizers") or step.get("pretokenizers") or ()))
    if name == "Replace":
        (form, pattern), content = next(iter(step["pattern"].items())), step["content"].encode()
        replaced = len(pattern.encode()) if form == "String" else 0
        return max(1, len(content) / replaced) if replaced else 1 + len(content)
    if name == "Prepend":
        return 1 + len(step["prepend"].encode())
    if name == "Precompiled":
        check_charsmap(base64.b64decode(step["precompiled_charsmap"]))
        return MAX_ADDED
    return _FACTORS.get(name, 1)


def check_charsmap(content):
    """Raise ValueError unless this is a table of characters and short texts in their places.

    It is the size of a trie in bytes, the trie, and texts that each end with a zero.
    """
    if len(content) < 4:
        raise ValueError("its precompiled_charsmap is cut off")
    (size,) = struct.unpack_from("<I", content)
    if size % 4 or size > len(content) - 4:
        raise ValueError(f"its precompiled_charsmap has {len(content)} bytes; its trie would have {size}")
    longest = max(map(len, content[4 + size :].split(b"\0")))
    if longest > MAX_ADDED:
        raise ValueError(
            f"its precompiled_charsmap has {longest} bytes in place of one character; expected at most "
            f"{MAX_ADDED}"
        )


def check_sentencepiece(content):
    """Raise ValueError for a `spiece.model` that may make a text much longer.

    Source: `sentencepiece_model.proto`, whose field 3 is the normalizer, with the table in its field 2.
    """
    for normalizer in _fields(content, 3):
        for charsmap in _fields(normalizer, 2):
            if charsmap:
                check_charsmap(charsmap)


def _fields(content, number):
    """The values of a field of bytes in a protocol buffer."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        if key & 7 == 0:
            _, position = _varint(content, position)
        elif key & 7 == 2:
            size, position = _varint(content, position)
            if key >> 3 == number:
                yield content[position : position + size]
            position += size
        elif key & 7 in (1, 5):
            position += 8 if key & 7 == 1 else 4
        else:
            raise ValueError(f"it has a field of the wire type {key & 7}")


def _varint(content, position):
    value, shift = 0, 0
    while True:
        if position >= len(content):
            raise ValueError("it is cut off")
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
