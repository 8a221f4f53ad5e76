"""Samples whose images are read a chunk at a time."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.chunked_records import MAX_LANES, ChunkedRecords
from keras_vit.data.decoding.model_input import check_image, decodable
from keras_vit.data.samples import OPEN_FILES, ShardSamples, interleaved, label_reader, not_converted
from keras_vit.data.shard_cache import is_remote, opened


@dataclasses.dataclass(frozen=True)
class ChunkedSamples(ShardSamples):
    """Encoded images in chunks, read in the order of `ChunkedRecords`.

    `shards` has the shard of each chunk, which is fetched before it is read if it is remote, and `rows` the
    chunks and the places of the samples in order.

    Args:
        read: A function from a shard, `columns` and places in it, int64 (n, …), in order. It yields the
            positions of some places, and by column the bytes there.
        name: A function from a shard and a place in it to a text for messages.
    """

    read: Callable[[Any, tuple[str, ...], np.ndarray], Any] = dataclasses.field(kw_only=True)
    name: Callable[[Any, np.ndarray], str] = dataclasses.field(kw_only=True)
    order = "lanes"

    def take(self, indices):
        """The samples at some indices, in ascending order."""
        return super().take(np.sort(np.fromiter(indices, int)))

    def training_records(self, *args, **options):
        """See `IndexedSamples`."""
        return self._waiting(self._chunked().training_records(*args, **options), 2 * MAX_LANES)

    def evaluation_records(self):
        """See `ChunkedRecords`."""
        return self._waiting(self._chunked().evaluation_records(), OPEN_FILES)

    def numbered_records(self, start, stop):
        """See `IndexedSamples`."""
        labels = self.labels and self.labels[start:stop]
        part = dataclasses.replace(self, rows=self.rows[start:stop], labels=labels)
        parse = part._parser()
        numbered = not_converted(lambda record: (start + record["index"], *parse(record)))
        chunked = part._chunked(numbered)
        return self._waiting(interleaved(chunked.read, chunked.counts, chunked.parse), OPEN_FILES)

    def place(self, index):
        """See `IndexedSamples`."""
        chunk, *place = self.rows[index].tolist()
        return self.name(self.shards[chunk], place)

    def content(self, index):
        """See `IndexedSamples`."""
        columns = self.columns[:1]
        [(_, found)] = self.read(self.shards[self.rows[index, 0]], columns, self.rows[index : index + 1, 1:])
        return bytes(found[columns[0]][0])

    def stored(self):
        """See `IndexedSamples`."""
        used, starts = np.unique(self.rows[:, 0], return_index=True)
        for chunk, places in zip(used, np.split(self.rows[:, 1:], starts[1:])):
            for positions, contents in self.read(self.shards[chunk], self.columns, places):
                for place, *of_row in zip(places[positions], *contents.values()):
                    name = functools.partial(self.name, self.shards[chunk], place)
                    image, *maps = (functools.partial(bytes, content) for content in of_row)
                    yield name, image, check_image
                    for content in maps:
                        yield name, content, functools.partial(self.reader.check, image())

    @property
    def _is_remote(self):
        return any(map(is_remote, self.shards))

    def _waiting(self, records, most):
        """Records with threads for functions that wait for downloads. Others have a thread for each core."""
        if not self._is_remote:
            return records
        options = tf.data.Options()
        options.threading.private_threadpool_size = most + os.cpu_count()
        return records.with_options(options)

    def _chunked(self, parse=None):
        used, starts, counts = np.unique(self.rows[:, 0], return_index=True, return_counts=True)
        spec = dict.fromkeys(self.columns, tf.TensorSpec((None,), tf.string))
        spec = {"images": spec, "index": tf.TensorSpec((None,), tf.int64)}

        def contents(chunk, first, count):
            start = starts[chunk] + first
            places = self.rows[start : start + count, 1:]
            for positions, images in self.read(self.shards[used[chunk]], self.columns, places):
                image = self.columns[0]
                images = {**images, image: [*map(decodable, images[image])]}
                images = {name: np.array(of_column, object) for name, of_column in images.items()}
                yield {"images": images, "index": start + positions}

        @not_converted
        def read(chunk, first, count):
            args = (chunk, first, count)
            return tf.data.Dataset.from_generator(contents, output_signature=spec, args=args).unbatch()

        def fetch(chunk):
            opened(self.shards[used[chunk]]).close()

        fetch = fetch if self._is_remote else None
        return ChunkedRecords(tuple(counts.tolist()), read, parse or self._parser(), fetch=fetch)

    def _parser(self):
        """A function from a record to (encoded image, label)."""
        image, *maps = self.columns
        read_label = self.reader.decode if maps else label_reader(self.labels)

        def parse(record):
            source = record["images"][maps[0]] if maps else record["index"]
            return record["images"][image], read_label(source)

        return not_converted(parse)
