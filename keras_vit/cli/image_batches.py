"""The image files of a command in batches, and a row of results for each."""

import sys

from keras_vit.messages import redact_url
from keras_vit.preprocessing.file_batches import file_batches
from keras_vit.preprocessing.image_files import read_image
from keras_vit.preprocessing.web_images import is_url
from keras_vit.progress import Progress

BATCH = 32  # images computed at a time
FEW = 32  # images that are read in less time than TensorFlow needs to begin


def model_inputs(model, paths, first=0):
    """The model input of image files, as `file_batches`.

    Where TensorFlow is imported, it reads many files in parallel and ahead of the model. Images of any size
    come one at a time.

    Args:
        model: A live or an exported one.
        paths: Of the files, or their URLs.
        first: The number of the first file.

    Yields:
        `FileBatch`.
    """
    size = BATCH if model.preprocessing.has_fixed_shape else 1
    if "tensorflow" not in sys.modules or len(paths) <= FEW or any(map(is_url, paths)):
        return file_batches(paths, model.preprocessing, size, first)
    from keras_vit.data.readable import readable_files

    return readable_files(paths, model.preprocessing, size, first)


def predicted(task, model, paths, top, first=0, progress=True, skip=False, **maps):
    """Predict image files.

    Args:
        task: The model's `LabelTask`.
        model: A model of this task, or an `ExportedModel`.
        paths: Of the files, or their URLs.
        top: The number of classes or objects of each image.
        first: The number of the first file.
        progress: Whether to show the progress.
        skip: Whether a file that cannot be read is a row with its `error`; otherwise it ends the rows.
        **maps: Further arguments of the `rows` of the task.

    Yields:
        For each file a dict of `image`, its path, and the entries of `LabelTask.rows`. It follows as soon as
        its batch is computed.

    Raises:
        ValueError: unless `skip`, for a file that cannot be read, after the rows of the batches before it.
    """
    if task.reads_images:
        size = 1 if maps.get("windows") or model.preprocessing.image_size is None else 8
        batches = file_batches(paths, lambda batch: [*map(read_image, batch)], size, first)
    else:
        batches = model_inputs(model, paths, first)
    counts = {"total": len(paths), "initial": first, "unit": "image", "disable": not progress}
    with Progress(None, "predicting", **counts) as bar:
        for batch in batches:
            if batch.errors and not skip:
                raise ValueError(batch.errors[min(batch.errors)])
            batch_paths = [paths[number] for number in batch.numbers]
            rows = iter(task.rows(model, batch_paths, batch.inputs, top, **maps)) if batch_paths else None
            for number in sorted([*batch.numbers, *batch.errors]):
                bar.update(1)
                is_bad = number in batch.errors
                row = {"error": batch.errors[number]} if is_bad else next(rows)
                yield {"image": redact_url(paths[number]), **row}
