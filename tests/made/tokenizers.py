"""Small tokenizers that the libraries train, with the pieces and normalizers of the published ones."""

import io
import json

import numpy as np

TEXT = (
    "a photo of the red car cat dog house tree bird small large blue green yellow black white on in with and "
    "it's don't they're seven eight nine zero one two three street mountain running jumped quickly école "
    "naïve über straße 猫 犬 東京 日本 собака кошка привет σπίτι δρόμος 😀 🐈 1 2 3 4 5 6 7 8 9 0 ! ? . , - _"
)
WORDS = TEXT.split()


def corpus(seed=0, lines=400):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 12))) for _ in range(lines)]


def difficult(count=200):
    """Texts of cases, accents, scripts, emoji, white space and lengths, without special tokens."""
    texts = [
        *("", " ", "\t\n", "a", "A", "cat", "CAT", " cat ", "red  car", "a photo of a cat.", "It's a DOG!"),
        *("don't", "they're", "İstanbul", "STRASSE straße", "ΟΔΟΣ οδος", "École"),
        *("e\u0301cole", "naïve", "ÜBER"),
        *("猫", "東京 の 猫", "日本東京", "собака", "ПРИВЕТ, кошка", "😀"),
        *("🐈 cat 😀😀", "👩‍👩‍👧", "🏳️‍🌈 flag"),
        *("ﬁne ﬀ", "１２３ ＡＢＣ", "½ ² ™", "a\u00a0b", "a\u200bb", "a\u3000b"),
        *("שלום", "مرحبا", "हिन्दी", "ไทย"),
        *("a_b_c", "a-b-c", "(a) [b] {c}", "$5.00 & 10%", "http://a.b/c?d=e#f", "C:\\x\\y", '"quoted"', "'s"),
        *("x" * 300, "cat " * 100, "猫" * 100, "! " * 50, "12345678901234567890", "1 2 3", "a\nb\rc\td"),
        *("\u0000a", "\ufffd", "\ufeffa", "a\u0301\u0302\u0303", "Ǆ ǅ ǆ", "ﷺ", "▁a▁b", "## a", "<a> </b>"),
    ]
    rng = np.random.default_rng(1)
    letters = [*"abcXYZ éÉßñ猫犬 дЖ σΣ 😀🐈 .,!?'-_ 019\t"]
    while len(texts) < count:
        words = [str(rng.choice(WORDS)), "".join(rng.choice(letters, rng.integers(1, 30)))]
        text = " ".join(words + corpus(len(texts), 1))
        texts.append(text.upper() if len(texts) % 3 == 0 else text.title() if len(texts) % 3 == 1 else text)
    return texts


def sentencepiece_model(size=300):
    """A model as of C4: padding 0, `</s>` 1, `<unk>` 2, normalized by NFKC."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        **{"sentence_iterator": iter(corpus()), "model_writer": written, "vocab_size": size},
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "normalization_rule_name": "nmt_nfkc"},
        **{"hard_vocab_limit": False, "minloglevel": 2},
    )
    return written.getvalue()


def gemma_json(size=500):
    """A `tokenizer.json` as Gemma's: byte-pair encoding that falls back to bytes, spaces as ▁, case kept."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*special, *bytes_], limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    found = json.loads(tokenizer.to_str())
    found["added_tokens"] = [token for token in found["added_tokens"] if token["content"] in special]
    return json.dumps(found).encode()


def clip_files(size=700):
    """`vocab.json` and `merges.txt` as CLIP's."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    words = Regex(r"'s|'t|'re|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for letter in sorted(alphabet):  # Every byte also ends a word.
        vocabulary.setdefault(f"{letter}</w>", len(vocabulary))
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[token] = len(vocabulary)
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""])
    return {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": merges.encode()}


def bert_vocabulary(size=500):
    """`vocab.txt` as BERT's of lower case."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return ("\n".join(word for word, _ in words) + "\n").encode()


FILES = {  # by family: the files of a checkpoint's folder
    "siglip": lambda: {
        "spiece.model": sentencepiece_model(),
        "tokenizer_config.json": b'{"tokenizer_class": "SiglipTokenizer", "model_max_length": 64}',
    },
    "siglip2": lambda: {
        "tokenizer.json": gemma_json(),
        "tokenizer_config.json": b'{"tokenizer_class": "GemmaTokenizer", "model_max_length": 1000000000000}',
    },
    "clip": lambda: {
        **clip_files(),
        "tokenizer_config.json": b'{"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}',
    },
    "lit": lambda: {"sentencepiece.model": sentencepiece_model()},
    "lit_bert": lambda: {"vocab.txt": bert_vocabulary()},
}
