"""How labels are stored in Parquet and tar files and TensorFlow Datasets, a file for each form."""

from keras_vit.data.stored import boxes, class_maps, depth_maps, numbers
from keras_vit.data.stored.captions import CAPTIONS
from keras_vit.data.stored.label_storage import LabelStorage

# The `LabelStorage` of each task.
STORAGES = {
    storage.kind.name: storage
    for module in (numbers, class_maps, boxes, depth_maps)
    for storage in module.STORAGES
}


def storage_of(task, texts=False, labels=True):
    """The `LabelStorage` of a task, or of captions, or of images without labels.

    >>> storage_of("segmentation").suffixes
    ('seg.png', 'mask.png')
    """
    if texts:
        return CAPTIONS
    return STORAGES[task] if labels else LabelStorage()
