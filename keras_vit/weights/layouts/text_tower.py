"""Two towers in a file: what the layouts that have a text tower share."""

import re

from keras_vit.weights.architecture import shape_of
from keras_vit.weights.layouts.heads import split_heads, usual_heads
from keras_vit.weights.layouts.layout import HeadOptions, ModelForm, other_values
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


class WordDetectorForm(ModelForm):
    """How a layout stores an `ObjectDetector` with a text tower.

    `config["words"]` has what the arrays show of the head.

    Attributes:
        head: dict of the arguments of the head that no array shows.
    """

    kind = "detector"
    head = {}

    def has_head(self, arrays):
        return "class_projection/kernel" in arrays

    def text_options(self, folder):
        """The `TextTransformer` arguments that no array shows."""
        raise NotImplementedError

    def head_options(self, checkpoint, layout, folder):
        return {
            **self.head,
            "query_size": shape_of(checkpoint.arrays, "class_projection/kernel", 2)[1],
            "objectness": "objectness_head/dense_0/kernel" in checkpoint.arrays,
            "text": text_arguments(checkpoint, layout, self.text_options(folder)),
        }

    def adapted(self, model, arrays, config):
        return arrays, {**config, "words": HeadOptions(objectness=model.objectness)}


def text_arguments(mapped, layout, options):
    """The arguments of a text tower, whose arrays get an axis of heads.

    Args:
        mapped: `MappedArrays` or a `StoredModel` with the arrays of the tower.
        layout: `Layout` of the file.
        options: dict of the arguments that no array shows.
    """
    text = {**_sizes(mapped.arrays), **options}
    if not layout.split_heads or text.get("norm_after_residual"):  # a BERT
        text.setdefault("num_heads", usual_heads(text))
        split_heads(mapped, text, "text/")
    else:
        text["num_heads"] = shape_of(mapped.arrays, "text/encoder_block_0/attention/query/kernel", 3)[1]
    return text


def _sizes(arrays):
    """The options of the text tower that the arrays show."""
    vocabulary_size, hidden_size = shape_of(arrays, "text/token_embedding/table", 2)
    mlp_dim = shape_of(arrays, "text/encoder_block_0/mlp/dense_0/kernel", 2)[1]
    matches = (re.match(r"text/encoder_block_(\d+)/", name) for name in arrays)
    return {
        "vocabulary_size": vocabulary_size,
        "length": shape_of(arrays, "text/position_embedding/table", 3)[1],
        "hidden_size": hidden_size,
        "num_layers": 1 + max(int(match[1]) for match in matches if match),
        "mlp_dim": mlp_dim,
    }


def unsupported_text(text, expected):
    """List the options of a `TextTransformer` that are not as expected."""
    return other_values(vars(text), expected, "the text tower's {}")
