"""Samples in uncompressed tar files, accessed by index."""

import dataclasses
import functools
import os
import tarfile

import numpy as np
import tensorflow as tf

from keras_vit.data.masks import decode_mask, read_mask
from keras_vit.data.samples import READ_BATCH, IndexedSamples, label_tensor, not_converted


@dataclasses.dataclass(frozen=True)
class TarSamples(IndexedSamples):
    """Encoded images in uncompressed tar files.

    Args:
        tars: The paths of the files.
        images: Where the image of each sample is: int64 (samples, 3), the number of its file, the first byte
            and the number of bytes.
        labels: The label of each sample, as of `Samples`.
    """

    tars: tuple[str, ...]
    images: np.ndarray
    labels: tuple[int | tuple[float, ...], ...]
    exif = True
    members = ("images",)

    def __len__(self):
        return len(self.images)

    def take(self, indices):
        """The samples at some indices."""
        indices = np.fromiter(indices, int)
        changes = {name: getattr(self, name)[indices] for name in self.members}
        if self.labels is not None:
            changes["labels"] = tuple(self.labels[index] for index in indices)
        return dataclasses.replace(self, **changes)

    def place(self, index):
        number, first, _ = self.images[index]
        members = _names(self.tars[number])
        return f"{self.tars[number]}/{members.get(first, first)}"

    def content(self, place):
        """The bytes at a place, a row of `images`.

        Raises:
            OSError: if the file is missing or has become shorter.
        """
        number, first, size = map(int, place)
        content = read_at(self.tars[number], first, size)
        if len(content) < size:
            raise OSError(f"{self.tars[number]!r} ends within the member at byte {first}: it has changed")
        return content

    def _image(self, index):
        return self.content(self.images[index])

    def _read(self, indexed):
        places = [getattr(self, name) for name in self.members]
        labels = None if self.labels is None else label_tensor(self.labels)

        def contents(indices):
            return [np.array([self.content(of[index]) for index in indices], object) for of in places]

        @not_converted
        def read_batch(positions, indices):
            found = tf.numpy_function(contents, [indices], [tf.string] * len(places), stateful=False)
            image, *mask = (tf.ensure_shape(part, positions.shape) for part in found)
            return positions, image, *(mask or [tf.gather(labels, indices)])

        records = indexed.batch(READ_BATCH).map(read_batch, tf.data.AUTOTUNE).unbatch()
        return records.apply(tf.data.experimental.assert_cardinality(indexed.cardinality()))


@dataclasses.dataclass(frozen=True)
class TarMaskSamples(TarSamples):
    """Encoded images in uncompressed tar files, and their masks.

    Args:
        tars, images: As of `TarSamples`.
        masks: Where the masks are, as `images`.
        values, colors: As of `MaskSamples`.
    """

    labels: None = None
    masks: np.ndarray = ()
    values: tuple[int, ...] | None = None
    colors: tuple[int, ...] | None = None
    members = ("images", "masks")

    @property
    def label_values(self):
        """How masks become labels, as a JSON value."""
        return [self.values, self.colors]

    def stored(self):
        yield from super().stored()
        images = TarSamples(self.tars, self.masks, None)
        read = functools.partial(read_mask, colors=self.colors)
        yield from ((place, content, read) for place, content, _ in images.stored())

    def _label(self, index):
        return decode_mask(self.content(self.masks[index]), self.values, colors=self.colors).numpy()

    def _read(self, indexed):
        @not_converted
        def decoded(position, image, mask):
            return position, image, decode_mask(mask, self.values, colors=self.colors)

        return super()._read(indexed).map(decoded, tf.data.AUTOTUNE)


@functools.lru_cache(maxsize=8)
def _names(path):
    """The names of the files in a tar file, by their first bytes."""
    return {first: name for name, first, _ in tar_index(path)}


def tar_index(path):
    """The files in a tar file: a list of (name, first byte, number of bytes).

    Raises:
        ValueError: if it is not an uncompressed tar file, or is cut off.

    Example:
        >>> with tarfile.open(tmp / "a.tar", "w") as tar:
        ...     tar.addfile(tarfile.TarInfo("0.cls"))
        >>> tar_index(tmp / "a.tar")
        [('0.cls', 512, 0)]
    """
    members, end = [], os.path.getsize(path)
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members = []  # It would keep all of them.
                if member.offset_data + member.size > end:
                    raise ValueError(f"{os.fspath(path)!r} is cut off in {member.name!r}")
                if member.issparse():
                    raise ValueError(f"{os.fspath(path)!r} has a sparse file, {member.name!r}")
                if member.isfile() and not os.path.basename(member.name).startswith("."):
                    members.append((member.name, member.offset_data, member.size))
            if read_at(path, tar.offset, 512) != bytes(512):  # Two such blocks are the end.
                raise ValueError(f"{os.fspath(path)!r} is cut off after {len(members)} files")
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"{os.fspath(path)!r} is no uncompressed tar file, or is damaged ({error}); unpack .tar.gz first"
        ) from None
    return members


def read_at(path, first, size):
    """Bytes of a file, fewer at its end."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.pread(file, size, first)
    finally:
        os.close(file)
