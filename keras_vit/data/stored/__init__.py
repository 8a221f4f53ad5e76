"""How labels are stored in Parquet and tar files and TensorFlow Datasets."""

from keras_vit.data.stored.label_storage import LabelStorage
from keras_vit.tasks import caption_storage, label_storages


def storage_of(task, texts=False, labels=True):
    """The `LabelStorage` of a task, or of captions, or of images without labels.

    >>> storage_of("segmentation").suffixes
    ('seg.png', 'mask.png')
    """
    if texts:
        return caption_storage()
    return label_storages()[task] if labels else LabelStorage()
