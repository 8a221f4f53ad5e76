"""The vectors of an index of images: what they depend on, and how they are computed and added."""

import concurrent.futures
import itertools
import os
import time

import keras
import numpy as np
from tqdm import tqdm

from keras_vit.evaluation.representations import encoder_of
from keras_vit.models.classifying import check_finite

BATCH = 32  # images read and computed at a time
SAVE_SECONDS = 60  # between two saves, from which an interrupted run continues


def add_images(index, model, states, on_bad_image="fail", engine=None):
    """Add the vectors of image files to an index, and save it every minute and at the end.

    Whatever ends the run, what was computed before is saved, so another run continues from there.

    Args:
        index: An `ImageIndex` of the model.
        model: A VisionTransformer or ImageTextModel.
        states: As `ImageIndex.changed` returns it.
        on_bad_image: "fail", or "skip" unreadable images.
        engine: As of `ImageIndex.build`.

    Returns:
        List of the paths of skipped images.

    Raises:
        ValueError: for an unreadable image, unless they are skipped.
    """
    if on_bad_image not in ("fail", "skip"):
        raise ValueError(f"expected --on_bad_image to be fail or skip; got {on_bad_image!r}")
    encode, _ = encoder_of(model)
    size = BATCH if model.preprocessing.has_fixed_shape else 1

    def prepare(path):
        try:
            return model.preprocessing(path)  # a batch of one
        except ValueError:
            if on_bad_image == "fail":
                raise
            return None

    paths, skipped, saved = [*states], [], time.monotonic()
    batches = [paths[start : start + size] for start in range(0, len(paths), size)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        prepared = _ahead(lambda batch: [pool.submit(prepare, path) for path in batch], batches)
        try:
            for batch, futures in tqdm(
                prepared, "indexing", len(batches), unit="batch", delay=2, disable=None
            ):
                images = dict(zip(batch, (future.result() for future in futures)))
                skipped += [path for path, image in images.items() if image is None]
                images = {path: image for path, image in images.items() if image is not None}
                if images:
                    batch = keras.tree.map_structure(lambda *each: np.concatenate(each), *images.values())
                    vectors = check_finite(encode(batch))
                    index.add({path: states[path] for path in images}, vectors)
                if time.monotonic() - saved > SAVE_SECONDS:
                    index.save()
                    saved = time.monotonic()
            index.build(engine)
        except BaseException:
            index.save()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return skipped


def _ahead(start, batches):
    """Yield each batch with what `start` returned for it, after the start of the next one."""
    started = ((batch, start(batch)) for batch in batches)
    for pair in itertools.pairwise(itertools.chain(started, [None])):
        yield pair[0]
