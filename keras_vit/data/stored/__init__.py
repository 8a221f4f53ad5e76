"""How labels are stored in Parquet and tar files and TensorFlow Datasets, a file for each form."""

import itertools

from keras_vit import names
from keras_vit.data.stored.captions import CAPTIONS
from keras_vit.data.stored.label_storage import LabelStorage
from keras_vit.lazy import discovered

# The `LabelStorage` of each task.
STORAGES = {
    storage.kind.name: storage
    for storage in sorted(
        itertools.chain.from_iterable(discovered(__name__, "STORAGES")),
        key=lambda storage: names.TASKS.index(storage.kind.name),
    )
}


def storage_of(task, texts=False, labels=True):
    """The `LabelStorage` of a task, or of captions, or of images without labels.

    >>> storage_of("segmentation").suffixes
    ('seg.png', 'mask.png')
    """
    if texts:
        return CAPTIONS
    return STORAGES[task] if labels else LabelStorage()
