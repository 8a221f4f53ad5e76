"""Captions: texts, or lists of them."""

import pyarrow

from keras_vit.data.column_types import ColumnForm, either, is_list_of, is_text, one, several
from keras_vit.data.label_storage import LabelStorage
from keras_vit.data.stored_labels import parse_text

SUFFIX = "txt"


class Captions(LabelStorage):
    """Captions, in a column or in a member of their own."""

    purpose = "captions"
    column = ColumnForm(*(either(is_text, is_list_of(is_text)),) * 2, ("caption", "captions", "text"))
    types = {"caption": (pyarrow.list_(pyarrow.string()), lambda names: several(one("string")))}

    def column_values(self, read, count, columns, place):
        [values] = read(columns.label)
        lists = [value if isinstance(value, list) and value else [value] for value in values]
        return [
            tuple(parse_text(text, f"{place} {row}", "a caption") for text in texts)
            for row, texts in enumerate(lists)
        ]

    def sample_value(self, sample, key):
        return (parse_text(sample.value(SUFFIX, key), sample, "a caption"),)

    def columns_of(self, label, name, content):
        return {"caption": list(label)}

    def members_of(self, columns):
        if len(columns["caption"]) > 1:
            raise ValueError(f"an image has {len(columns['caption'])} captions: write parquet")
        return {SUFFIX: columns["caption"][0].encode()}


CAPTIONS = Captions()
