"""Images in uncompressed tar files, accessed by index or read in order."""

import functools
import os

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding.model_input import decodable
from keras_vit.data.samples import READ_BATCH, IndexedSamples, ShardSamples, label_reader, not_converted
from keras_vit.data.shard_cache import opened
from keras_vit.data.tar_headers import tar_entries


class TarSamples(ShardSamples, IndexedSamples):
    """Encoded images in uncompressed tar files, and perhaps maps, such as their masks.

    The place of a sample in `rows` is the first byte and the number of bytes of its image, and perhaps of its
    map.
    """

    def place(self, index):
        number, *place = self.rows[index].tolist()
        return member_name(self.shards[number], place)

    def stored(self):
        yield from super().stored()
        for index in range(len(self) * (len(self.columns) - 1)):  # the maps
            number, _, _, *place = self.rows[index].tolist()
            name = functools.partial(member_name, self.shards[number], place)
            yield name, functools.partial(self._contents, index), lambda of: self.reader.check(*of)

    def _contents(self, index):
        """The bytes of the image, and perhaps of the map, of a sample."""
        number, *places = self.rows[index].tolist()
        with opened(self.shards[number]) as file:
            return _members(file, places, self.shards[number])

    def content(self, index):
        return self._contents(index)[0]

    def _label(self, index):
        if self.labels is not None:
            return super()._label(index)
        return self.reader.label(self._contents(index)[1])

    def _read(self, indexed):
        def contents(indices):
            images, *maps = zip(*map(self._contents, indices))
            return [np.array(of, object) for of in ([*map(decodable, images)], *maps)]

        @not_converted
        def read_batch(positions, indices):
            types = [tf.string] * len(self.columns)
            encoded = tf.numpy_function(contents, [indices], types, stateful=False)
            image, *maps = (tf.ensure_shape(part, positions.shape) for part in encoded)
            return positions, image, *(maps or [indices])

        # A label is read from the encoded map, or from the index.
        read_label = self.reader.decode if self.labels is None else label_reader(self.labels)
        records = indexed.batch(READ_BATCH).map(read_batch, tf.data.AUTOTUNE).unbatch()
        labeled = not_converted(lambda position, image, label: (position, image, read_label(label)))
        return records.map(labeled, tf.data.AUTOTUNE)


def read_members(shard, columns, places):
    """The contents of members of a tar file, as `ChunkedSamples` reads them.

    Args:
        shard: A `Shard`, or the path of the file.
        columns: The names of kinds of members.
        places: The first byte and the number of bytes of one member of each kind: int64 (samples, 2 * kinds).

    Yields:
        The positions in `places` of some samples, and by column a list of their bytes.

    Raises:
        OSError: if the file is missing or has become shorter.

    Example:
        >>> _ = (tmp / "a.tar").write_bytes(b"0123456789")
        >>> [images for _, images in read_members(tmp / "a.tar", ["image"], np.array([[1, 2], [5, 3]]))]
        [{'image': (b'12', b'567')}]
    """
    with opened(shard) as file:
        for first in range(0, len(places), READ_BATCH):
            some = places[first : first + READ_BATCH].tolist()
            contents = zip(*(_members(file, own, shard) for own in some))
            yield np.arange(first, first + len(some)), dict(zip(columns, contents))


def member_name(shard, place):
    """The name of a tar file and of its member at a place (first byte, …), for messages."""
    first = int(place[0])
    return f"{shard}/{_names(shard).get(first, first)}"


@functools.lru_cache(maxsize=8)
def _names(shard):
    """The names of the files in a tar file, by their first bytes."""
    return {first: name for name, first, _ in tar_index(shard)}


def _members(file, places, shard):
    """The bytes at the places (first, size, first, size, …) of an open file."""
    return [member(file, *place, shard) for place in zip(places[::2], places[1::2])]


def member(file, first, size, shard):
    """The bytes of a member of an open tar file.

    Raises:
        OSError: if the file has become shorter.
    """
    content = os.pread(file.fileno(), size, first)
    if len(content) < size:
        raise OSError(f"{str(shard)!r} ends within the member at byte {first}: it has changed")
    return content


def tar_index(shard):
    """The files in a tar file: a list of (name, first byte, number of bytes).

    Args:
        shard: A `Shard`, or the path of the file.

    Raises:
        ValueError: if it is not an uncompressed tar file, or is damaged or cut off.

    Example:
        >>> import tarfile
        >>> with tarfile.open(tmp / "a.tar", "w") as tar:
        ...     tar.addfile(tarfile.TarInfo("0.cls"))
        >>> tar_index(tmp / "a.tar")
        [('0.cls', 512, 0)]
    """
    with opened(shard) as file:
        try:
            return [
                (entry.name, entry.first, entry.size)
                for entry in tar_entries(file)
                if entry.is_file and not os.path.basename(entry.name).startswith(".")
            ]
        except ValueError as error:
            raise ValueError(
                f"{str(shard)!r} {error}; expected a whole tar file that is not compressed: unpack .tar.gz"
            ) from None
