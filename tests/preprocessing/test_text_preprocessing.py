import base64
import copy
import dataclasses
import json
import pickle
import time
import zlib

import pytest
from made import tokenizers
from made.servers import asked_hub
from made.tables import by_table

from keras_vit import TextPreprocessing
from keras_vit.data.sources.digits_words import word_tokenizer
from keras_vit.preprocessing import text_preprocessing
from keras_vit.weights.tokenizer import read_text_preprocessing


@pytest.fixture(scope="module")
def files():
    """By family, the files of a small tokenizer."""
    return {family: make() for family, make in tokenizers.FILES.items()}


@pytest.fixture(scope="module", params=sorted(text_preprocessing.FAMILIES))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, files, tmp_path_factory):
    path = tmp_path_factory.mktemp(family)
    for name, content in files[family].items():
        (path / name).write_bytes(content)
    return path


@pytest.fixture(scope="module")
def prepare(family, folder):
    return TextPreprocessing.from_files(folder, family)


def test_ids_end_with_the_end_token_and_the_padding(family, prepare):
    options = text_preprocessing.FAMILIES[family]
    token = prepare._library.token_id
    pad, start, end = (token(options[name]) if name in options else None for name in ("pad", "start", "end"))
    nothing, short, long = prepare(["", "a red car", "cat " * 100]).tolist()
    around = [[start] if start is not None else [], [end] if end is not None else []]
    assert {len(row) for row in (nothing, short, long)} == {options["length"]}
    assert nothing == [*around[0], *around[1]] + [pad] * (options["length"] - len(around[0] + around[1]))
    assert pad not in short[: short.index(pad)] and short[: len(around[0])] == around[0]
    assert pad == end or pad not in long
    assert long[-1:] == around[1] or not around[1]
    assert prepare("a red car").tolist() == [short] and prepare.vocabulary_size > max(short)


def test_the_configuration_holds_the_tokenizer(prepare):
    config = json.loads(json.dumps(prepare.get_config()))
    again = TextPreprocessing(**config)
    copies = [again, copy.deepcopy(prepare), pickle.loads(pickle.dumps(prepare))]
    texts = tokenizers.difficult(60)
    assert all(each == prepare and each(texts).tolist() == prepare(texts).tolist() for each in copies)
    assert len(repr(prepare)) < 200


def written(prepare, folder):
    for name, content in prepare.files().items():
        (folder / name).write_bytes(content)
    return folder


def test_the_written_files_say_all_arguments(family, prepare, tmp_path):
    assert TextPreprocessing.from_files(written(prepare, tmp_path), family) == prepare
    other = dataclasses.replace(prepare, length=5, lower=not prepare.lower, end=None)
    for each in (prepare, other, word_tokenizer(["a seven", "a nine"])):
        again = TextPreprocessing.from_files(written(each, tmp_path))
        assert again == each and again("It's a cat").tolist() == each("It's a cat").tolist()
        assert read_text_preprocessing(str(tmp_path)) == each
        assert TextPreprocessing.from_files(tmp_path, length=6) == dataclasses.replace(each, length=6)


def test_a_repository_sends_only_the_files_of_its_tokenizer(family, files, prepare, tmp_path, monkeypatch):
    with asked_hub(tmp_path / "hub", monkeypatch) as hub:
        commit, stored = "a" * 40, {**files[family], "model.safetensors": b"weights"}
        hub.repositories["org/vit"] = {"main": (commit, stored), commit: (commit, stored)}
        hub.repositories["org/none"] = {"main": (commit, {}), commit: (commit, {})}
        found = read_text_preprocessing("hf://org/vit", family)
        assert found == prepare
        sent = {path.rpartition("/")[2] for command, path, _ in hub.seen if command == "GET"}
        assert "model.safetensors" not in sent and {*files[family]} <= sent
        hub.seen.clear()
        named = "tokenizer_config.json" in files[family]
        assert read_text_preprocessing("hf://org/vit", None if named else family) == prepare
        assert not [path for command, path, _ in hub.seen if command == "GET" and "none" not in path]
        assert read_text_preprocessing("hf://org/none", family) is None


def test_half_of_a_pair_of_surrogates_is_replaced(prepare):
    assert prepare("a \ud83d cat").tolist() == prepare("a \ufffd cat").tolist()


CONFIG = {"tokenizer": text_preprocessing.pack(b"{}"), "form": "tokenizers", "length": 4}
BOMB = base64.b64encode(zlib.compress(bytes(1 << 20))).decode()


@by_table(
    "options, message",
    [
        ({"length": 0}, "length must be a positive int; got 0"),
        ({"start": "a", "end": "b", "length": 2}, "length must be at least 3; got 2"),
        ({"form": "words"}, "form must be one of 'tokenizers', 'sentencepiece'; got 'words'"),
        ({}, "not a tokenizer.json: "),
        ({"form": "sentencepiece"}, "not a model of sentencepiece: "),
        ({"tokenizer": "?"}, "tokenizer must be a tokenizer's file, compressed by zlib, in base 64: "),
        ({"tokenizer": BOMB}, "tokenizer must be .*, of at most 1000 bytes"),
    ],
    ids=["no length", "short", "form", "json", "sentencepiece", "base 64", "large"],
)
def test_a_wrong_configuration_is_refused(options, message, monkeypatch):
    monkeypatch.setattr(text_preprocessing, "LARGEST", 1000)
    with pytest.raises(ValueError, match=message):
        TextPreprocessing(**CONFIG | options)("a")


@by_table(
    "name, content, family, message",
    [
        ("tokenizer_config.json", "{}", None, "no known tokenizer_class .*; give family, one of 'siglip'"),
        ("tokenizer_config.json", "{", None, "is not readable JSON"),
        ("tokenizer_config.json", "[]", None, "must hold an object; got a list"),
        ("tokenizer_config.json", '{"keras_vit": {}}', None, "keras_vit must hold arguments of .*; got {}"),
        ("other.txt", "", "clip", "holds no tokenizer.json or vocab.json"),
        ("other.txt", "", "bert", "family must be one of"),
        ("vocab.json", "{}", "clip", "merges.txt"),
        ("tokenizer.json", "[]", "siglip2", "is no file of a tokenizer"),
        ("vocab.txt", "a\nb", "lit_bert", "the tokenizer has no token '\\[CLS\\]'|'\\[UNK\\]'"),
    ],
)
def test_wrong_files_are_refused(name, content, family, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        TextPreprocessing.from_files(tmp_path, family)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
WORDS = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "a": 3}


def sequence(kind, step, count):
    return {"type": "Sequence", kind: [step] * count}


def precompiled(table):
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}}


def words(vocabulary):
    return {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}}


DEEP = json.loads('{"normalizers": [' * 200 + "1" + "]}" * 200)
HOSTILE = {  # changes of a tokenizer.json, or another file
    "an expansion": ({"normalizer": sequence("normalizers", REPLACE, 9)}, "10{9} times as long"),
    "an expansion by a regular expression": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 10_000}},
        "10001 times as long",
    ),
    "bytes of bytes": (
        {"pre_tokenizer": sequence("pretokenizers", {"type": "ByteLevel"}, 40)},
        "times as long",
    ),
    "a table that is cut off": (
        precompiled(b"\xff" * 4 + bytes(4) + b"\xff" * 4),
        "has 12 bytes; its trie would have 4294967295",
    ),
    "a long entry of a table": (
        precompiled(bytes(4) + b"a" * 9999 + b"\0"),
        "has 9999 bytes in place of one character; expected at most 256",
    ),
    "a panic": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "chunk size must be non-zero"),
    "depth": ({"normalizer": DEEP}, "not a tokenizer.json"),
    "a missing token": (
        words({"<pad>": 0, "<eos>": 1}),
        r"cannot encode the text: WordLevel error: Missing \[UNK\]",
    ),
    "a large id": (words({**WORDS, "b": 2**31}), "expected token ids below 2147483648; got 2147483648"),
    "an empty file": (b"", "not a model of sentencepiece: the file is empty"),
    "a model that is cut off": (b"\x0a\x0e\x0a", "not a model of sentencepiece: "),
    "a long entry of a model's table": (
        b"\x1a\xa5\x4e\x12\xa2\x4e" + bytes(4) + b"a" * 9997 + b"\0",
        "has 9997 bytes in place of one character",
    ),
}


def tokenizer_json(**changes):
    return json.dumps({"version": "1.0", "added_tokens": [], **words(WORDS), **changes}).encode()


@by_table("kind", HOSTILE)
def test_a_hostile_tokenizer_is_refused(kind, tmp_path):
    content, message = HOSTILE[kind]
    file = tmp_path / ("spiece.model" if isinstance(content, bytes) else "tokenizer.json")
    file.write_bytes(tokenizer_json(**content) if isinstance(content, dict) else content)
    started = time.process_time()
    with pytest.raises(ValueError, match=message) as refused:
        TextPreprocessing.from_files(file, "siglip2", length=8, end=None)
    assert "\n" not in str(refused.value) and time.process_time() - started < 1


def test_a_regular_expression_that_takes_too_long_is_refused_by_the_text(tmp_path):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(pre_tokenizer=split))
    prepare = TextPreprocessing.from_files(tmp_path, "siglip2", length=8)
    with pytest.raises(ValueError, match="the tokenizer cannot encode the text: .*retry-limit"):
        prepare("a" * 40 + "!")


def test_a_missing_library_is_named_at_the_first_call(monkeypatch):
    prepare = TextPreprocessing(**CONFIG)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ImportError, match="requires tokenizers: pip install tokenizers sentencepiece"):
        prepare("a cat")


def test_texts_must_be_text(prepare):
    with pytest.raises(ValueError, match="texts must be a str or a list of them; got a int"):
        prepare([3])
    assert prepare([]).shape == (0, prepare.length)
