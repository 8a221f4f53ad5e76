"""The vectors of an index of images: how they are computed and added."""

import time

import numpy as np

from keras_vit.cli import image_batches, options
from keras_vit.evaluation.representations import encoder_of
from keras_vit.models.classifying import check_finite
from keras_vit.progress import Progress
from keras_vit.rules import one_of

SAVE_SECONDS = 60  # between two saves, from which an interrupted run continues


def add_images(index, model, states, on_bad_image="fail", engine=None):
    """Add the vectors of image files to an index, and save it every minute and at the end.

    Whatever ends the run, what was computed before is saved, so another run continues from there.

    Args:
        index: An `ImageIndex` of the model.
        model: A VisionTransformer or ImageTextModel.
        states: As `ImageIndex.changed` returns it.
        on_bad_image: "fail", or "skip" unreadable images.
        engine: As for `ImageIndex.build`.

    Returns:
        List of the paths of skipped images.

    Raises:
        ValueError: for an unreadable image, unless they are skipped.
    """
    one_of(options.ON_BAD_FILE).check("--on_bad_image", on_bad_image)
    encode, _ = encoder_of(model)
    paths, skipped, saved = [*states], [], time.monotonic()
    try:
        with Progress(None, "indexing", total=len(paths), unit="image") as bar:
            for batch in image_batches.model_inputs(model, paths):
                if batch.numbers:
                    vectors = check_finite(np.asarray(encode(batch.inputs)))
                    index.add({paths[number]: states[paths[number]] for number in batch.numbers}, vectors)
                for number, reason in batch.errors.items():
                    if on_bad_image == "fail":
                        raise ValueError(reason)
                    skipped.append(paths[number])
                bar.update(len(batch.numbers) + len(batch.errors))
                if time.monotonic() - saved > SAVE_SECONDS:
                    index.save()
                    saved = time.monotonic()
        index.build(engine)
    except BaseException:
        index.save()
        raise
    return skipped
