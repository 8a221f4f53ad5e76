"""Batches of image files, which are read while the model computes the batch before."""

from __future__ import annotations

import concurrent.futures
import itertools
from typing import Any, NamedTuple

from keras_vit.messages import one_line


class FileBatch(NamedTuple):
    """A batch of image files.

    Attributes:
        numbers: The numbers of the files that can be read, ascending.
        inputs: What was prepared of them; None for no files.
        errors: dict from the number of each file that cannot be read, before the end of the batch, to the
            reason, in which it is named.
    """

    numbers: list[int]
    inputs: Any
    errors: dict[int, str]


def file_batches(paths, prepare, batch_size, first=0):
    """Read image files in batches, one batch ahead.

    Args:
        paths: Of the files, or their URLs.
        prepare: A function from a list of paths to what the model takes, such as a `Preprocessing`. It raises
            ValueError for files that cannot be read.
        batch_size: Files per batch.
        first: The number of the first file.

    Yields:
        `FileBatch`, in the order of the files.

    Example:
        >>> from keras_vit.preprocessing.file_batches import file_batches
        >>> keras.utils.save_img(tmp / "a.png", np.zeros((8, 8, 3)))
        >>> (batch,) = file_batches([tmp / "none.png", tmp / "a.png"], Preprocessing(16), 32)
        >>> batch.numbers, batch.inputs.shape, [*batch.errors]
        ([1], (1, 16, 16, 3), [0])
    """

    def read(numbers):
        try:
            return FileBatch([*numbers], prepare([paths[number] for number in numbers]), {})
        except ValueError as error:
            if len(numbers) == 1:
                return FileBatch([], None, {numbers[0]: one_line(error)})
        single = [read([number]) for number in numbers]
        readable = [number for batch in single for number in batch.numbers]
        errors = {number: text for batch in single for number, text in batch.errors.items()}
        return FileBatch(readable, prepare([paths[n] for n in readable]) if readable else None, errors)

    starts = range(first, len(paths), batch_size)
    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        waiting = (reader.submit(read, range(n, min(n + batch_size, len(paths)))) for n in starts)
        for batch, _ in itertools.pairwise(itertools.chain(waiting, [None])):
            yield batch.result()
