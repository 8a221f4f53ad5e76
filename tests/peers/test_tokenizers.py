"""Token ids equal those of transformers' classes, and of TensorFlow Text for LiT, on 200 difficult texts."""

import unicodedata

import numpy as np
import pytest
from made import tokenizers
from peers.packages import transformers

from keras_vit import TextPreprocessing
from keras_vit.preprocessing.text_preprocessing import FAMILIES

pytestmark = pytest.mark.slow

TEXTS = tokenizers.difficult()
CLASSES = {"siglip": "SiglipTokenizer", "siglip2": "Siglip2Tokenizer", "clip": "CLIPTokenizer"}


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def folder(family, tmp_path):
    for name, content in tokenizers.FILES[family]().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def ids_of_transformers(folder, family, texts):
    """The ids by transformers' class, padded on the right as in the models' training."""
    tokenizer = getattr(transformers, CLASSES[family]).from_pretrained(folder, padding_side="right")
    if family == "siglip2":  # In a published file its post-processor adds the end token.
        most = FAMILIES[family]["length"] - 1
        rows = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=most)["input_ids"]
        return [row + [tokenizer.eos_token_id] + [tokenizer.pad_token_id] * (most - len(row)) for row in rows]
    length = FAMILIES[family]["length"]
    return tokenizer(texts, padding="max_length", truncation=True, max_length=length)["input_ids"]


def assert_same_ids(found, expected, texts=TEXTS):
    different = [text for text, ours, theirs in zip(texts, found, expected) if list(ours) != list(theirs)]
    assert not different, f"{len(different)} of {len(texts)}: {different[:5]}"
    assert len(np.unique(found, axis=0)) > len(texts) / 2


@pytest.mark.parametrize("family", sorted(CLASSES), indirect=True)
def test_ids_equal_transformers(family, folder):
    assert len(TEXTS) == len({*TEXTS}) == 200
    found = TextPreprocessing.from_files(folder)(TEXTS)
    assert_same_ids(found, ids_of_transformers(folder, family, TEXTS))


@pytest.mark.parametrize("family", sorted(CLASSES), indirect=True)
def test_transformers_reads_the_files_that_we_write(family, folder, tmp_path_factory):
    prepare, written = TextPreprocessing.from_files(folder), tmp_path_factory.mktemp("written")
    for name, content in prepare.files().items():
        (written / name).write_bytes(content)
    assert_same_ids(prepare(TEXTS), ids_of_transformers(written, family, TEXTS))
    assert type(transformers.AutoTokenizer.from_pretrained(written)).__name__ == CLASSES[family]


@pytest.mark.parametrize("family", ["clip"], indirect=True)
def test_a_tokenizer_json_that_transformers_wrote_gives_the_same_ids(family, folder, tmp_path_factory):
    written = tmp_path_factory.mktemp("written")
    transformers.CLIPTokenizer.from_pretrained(folder).save_pretrained(written)
    assert not (written / "vocab.json").exists()
    found = TextPreprocessing.from_files(written)(TEXTS)
    assert_same_ids(found, TextPreprocessing.from_files(folder)(TEXTS))


@pytest.mark.parametrize("family", ["lit", "lit_bert"], indirect=True)
def test_ids_of_lit_equal_tensorflow_text(family, folder):
    """As the authors' `preprocess.py` calls it."""
    text = pytest.importorskip("tensorflow_text")
    length = FAMILIES[family]["length"]
    # TensorFlow ends a text at a NUL, and reads the replacement character, which tokenizers removes.
    texts = [each for each in TEXTS if not {*each} & {*"\0\ufffd"}]
    if family == "lit":
        content = (folder / "sentencepiece.model").read_bytes()
        rows = text.SentencepieceTokenizer(model=content, add_eos=True).tokenize(texts).to_list()
        expected = [row[: length - 1] + [1] * (length - len(row[: length - 1])) for row in rows]
    else:
        path = str(folder / "vocab.txt")
        tokenizer = text.BertTokenizer(path, token_out_type="int32", lower_case=True)
        rows = tokenizer.tokenize(texts).merge_dims(-2, -1).to_list()
        rows = [[2, *row][:length] for row in rows]
        expected = [row + [0] * (length - len(row)) for row in rows]
    assert_same_ids(TextPreprocessing.from_files(folder, family)(texts), expected, texts)


@pytest.mark.parametrize("family", ["lit_bert"], indirect=True)
def test_ids_of_lit_bert_equal_transformers_but_for_compatibility_characters(family, folder):
    """transformers' BertTokenizer does not normalize by NFKC, as TensorFlow Text does."""
    texts = [each for each in TEXTS if unicodedata.normalize("NFKC", each).casefold() == each.lower()]
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    rows = theirs(texts, add_special_tokens=False)["input_ids"]
    length = FAMILIES[family]["length"]
    rows = [[theirs.cls_token_id, *row][:length] for row in rows]
    expected = [row + [0] * (length - len(row)) for row in rows]
    assert len(texts) > 100
    assert_same_ids(TextPreprocessing.from_files(folder, family)(texts), expected, texts)


@pytest.mark.parametrize("family", ["siglip"], indirect=True)
def test_ids_of_siglip_equal_big_visions(family, folder):
    """As `tokenize(max_len=64, eos="sticky", pad_value=1)` of `ops_text.py`, which converts only ASCII."""
    text = pytest.importorskip("tensorflow_text")
    texts = [each for each in TEXTS if each.lower().encode() == each.encode().lower() and "\0" not in each]
    content = (folder / "spiece.model").read_bytes()
    lower = [each.lower() for each in texts]
    rows = text.SentencepieceTokenizer(model=content, add_eos=True).tokenize(lower).to_list()
    expected = [row + [1] * (64 - len(row)) if len(row) <= 64 else [*row[:63], 1] for row in rows]
    prepare = TextPreprocessing.from_files(folder, remove_punctuation=False)
    assert_same_ids(prepare(texts), expected, texts)
