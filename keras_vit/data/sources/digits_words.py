"""scikit-learn's scanned digits, and the words for them."""

import json

from keras_vit.data.sources.digits import load_digits
from keras_vit.data.texts import Texts
from keras_vit.lazy import optional_package
from keras_vit.preprocessing.text_preprocessing import PACKAGES, TextPreprocessing, pack

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAMES = ("{word}", "{number}", "the digit {word}", "the number {word}", "digit {number}", "number {number}")
# No two splits share a wording, and the wordings of "test" also have words that "train" lacks.
TEMPLATES = {
    "train": (
        *("{}", "a {}", "a photo of {}", "a scan of {}", "a picture of {}", "an image of {}"),
        *("this is {}", "it says {}", "a handwritten {}", "{} in handwriting", "{} on paper"),
        *("a small scan of a {}", "someone wrote {}", "{} written by hand", "the image shows {}"),
        *("a blurred photo of a {}", "a grey picture of {}", "you can read {} here"),
    ),
    "validation": ("a photo of {} on paper", "this image shows {}", "a grey scan of a handwritten {}"),
    "test": (
        "a scan of {} written on paper",
        "a blurred image of {}",
        "here you see {}",
        "{} by an unknown hand",
    ),
}
LENGTH = 12  # tokens, of which the longest wording has fewer
_PAD, _UNKNOWN = "[PAD]", "[UNK]"


def load_digits_words(argument=None, *, seed, **options):
    """Load the class names, splits and texts of the digits; of the arguments only `seed` is used.

    Returns:
        dict of `class_names`, `splits` and `texts`, as of `Dataset`.

    Raises:
        ImportError: if tokenizers is missing, with the command that installs it.

    Example:
        >>> texts = load_digits_words(seed=0)["texts"]
        >>> texts.wordings["train"][7][:3]
        ('seven', '7', 'the digit seven')
    """
    wordings = {split: tuple(_wordings(split, number) for number in range(10)) for split in TEMPLATES}
    return {**load_digits(seed=seed), "texts": Texts(wordings, word_tokenizer(sum(wordings["train"], ())))}


def _wordings(split, number):
    names = [name.format(word=WORDS[number], number=number) for name in NAMES]
    return tuple(template.format(name) for template in TEMPLATES[split] for name in names)


def word_tokenizer(texts):
    """A `TextPreprocessing` of the words of texts, in lower case; other words are one unknown token.

    >>> prepare = word_tokenizer(["a seven", "a nine"])
    >>> prepare("A green nine").tolist()
    [[2, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    """
    library = optional_package("tokenizers", "digits_words", PACKAGES)
    entries = sorted({word for text in texts for word in text.lower().split()})
    vocabulary = {word: number for number, word in enumerate((_PAD, _UNKNOWN, *entries))}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    content = json.dumps(json.loads(tokenizer.to_str()), sort_keys=True).encode()
    return TextPreprocessing(pack(content), "tokenizers", LENGTH, lower=True, pad=_PAD)
