"""Two towers in a file: what the layouts that have a text tower share."""

import re

from keras_vit.weights.layouts.layout import ModelForm, other_values
from keras_vit.weights.layouts.table import MappedArrays

NOT_BERT = {"norm_after_residual": False, "pad_id": None}


class TwoTowersForm(ModelForm):
    """How a layout stores an `ImageTextModel`; as it is, without a text tower.

    Attributes:
        text_keys: Pattern of the keys of a text tower.
        tokenizer_family: The family of the tokenizer of a file that does not say it, or None.
    """

    text_keys = re.compile("(?!)")
    tokenizer_family = None

    def has_text_tower(self, keys):
        """Whether a file holds a text tower, by its keys that do not belong to the image tower."""
        return any(map(self.text_keys.fullmatch, keys))

    def read(self, checkpoint, others, folder):
        """Read the text tower, and what is between the towers.

        Args:
            checkpoint: `StoredModel` of the image tower.
            others: dict of the arrays by the file's keys that do not belong to it.
            folder: pathlib.Path of the file's folder, or None if its configuration is not read.

        Returns:
            (`MappedArrays`, dict of `TextTransformer` arguments that no array shows).

        Raises:
            ValueError: if the file holds a text tower that `TextTransformer` cannot express.
        """
        return MappedArrays({}, {}, [], []), {}

    def unsupported(self, model, config):
        return unsupported_text(model.text, NOT_BERT)


def unsupported_text(text, expected):
    """List the options of a `TextTransformer` that are not as expected."""
    return other_values(vars(text), expected, "the text tower's {}")
