"""The image files of a command in batches, and a row of results for each."""

import sys

from keras_vit.cli.images import shown_names
from keras_vit.preprocessing.file_batches import file_batches
from keras_vit.preprocessing.image_files import read_image
from keras_vit.preprocessing.web_images import is_url
from keras_vit.progress import Progress

BATCH = 32  # images computed at a time
WHOLE = 8  # images computed at a time whose pixels are kept at their own size
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


def images_and_inputs(model, paths, first=0):
    """As `model_inputs`, with the images themselves, of files that are read once for both.

    Yields:
        `FileBatch`, whose `inputs` are a list of images, uint8 (height, width, 3), and the model input.
    """

    def prepare(batch):
        images = [*map(read_image, batch)]
        return images, model.preprocessing(images)

    return file_batches(paths, prepare, WHOLE if model.preprocessing.has_fixed_shape else 1, first)


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
        **maps: Further arguments of the `rows` of the task. The `write` of a task for whole images is
            called here, with the path of an image, the image, uint8 (height, width, 3), and its row.

    Yields:
        For each file a dict of `image`, its name of `shown_names`, and the entries of `LabelTask.rows`. It
        follows as soon as its batch is computed.

    Raises:
        ValueError: unless `skip`, for a file that cannot be read, after the rows of the batches before it.
    """
    if task.reads_images:
        size = 1 if maps.get("windows") or model.preprocessing.image_size is None else WHOLE
        batches = file_batches(paths, lambda batch: [*map(read_image, batch)], size, first)
        write = None
    else:
        write = maps.pop("write", None)
        batches = (images_and_inputs if write else model_inputs)(model, paths, first)
    names = shown_names(paths)
    counts = {"total": len(paths), "initial": first, "unit": "image", "disable": not progress}
    with Progress(None, "predicting", **counts) as bar:
        for batch in batches:
            if batch.errors and not skip:
                raise ValueError(batch.errors[min(batch.errors)])
            batch_paths = [paths[number] for number in batch.numbers]
            images, inputs = batch.inputs if write and batch_paths else ([], batch.inputs)
            rows = task.rows(model, batch_paths, inputs, top, **maps) if batch_paths else []
            rows = written(rows, batch_paths, images, write) if write else iter(rows)
            for number in sorted([*batch.numbers, *batch.errors]):
                bar.update(1)
                is_bad = number in batch.errors
                row = {"error": batch.errors[number]} if is_bad else next(rows)
                yield {"image": names[number], **row}


def written(rows, paths, images, write):
    """Pass on rows after `write` has been called with the path, the image and the row of each."""
    for path, image, row in zip(paths, images, rows, strict=True):
        write(path, image, row)
        yield row
