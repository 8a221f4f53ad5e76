"""`keras-vit search index|query`: find pictures by a picture, or by words with an image-text model."""

import concurrent.futures
import hashlib
import itertools
import json
import os
import sys
import time

import keras
import numpy as np
from tqdm import tqdm

from keras_vit.cli.predict import images_of
from keras_vit.cli.report import check_output, report, text_table
from keras_vit.cli.source import open_live
from keras_vit.data.files import IMAGE_SUFFIXES
from keras_vit.evaluation.representations import encoder_of
from keras_vit.export.description import NOT_ARCHITECTURE
from keras_vit.layers.dense import STATE
from keras_vit.messages import listed
from keras_vit.models.classifying import check_finite
from keras_vit.models.configured import image_model
from keras_vit.models.vit.schema import DEFAULTS, FRONT_ENDS
from keras_vit.search import MANIFEST, ImageIndex, locked, open_index

# Entries of models' configurations on which no vector depends.
BATCH = 32  # images read and computed at a time
NO_OPTIONS = {
    *("name", "trainable", "dtype", "build_config", "compile_config", *STATE, *NOT_ARCHITECTURE[1:]),
    *("num_classes", "dropout_rate", "stochastic_depth_rate", "attention_dropout_rate"),
    "text_preprocessing",
}
SAVE_SECONDS = 60  # between two saves, from which an interrupted run continues


def run(args):
    check_output(args)
    return {"index": _index, "query": _query}[args.action](args)


def _index(args):
    paths = [path for argument in args.images for path in images_of(argument)]
    model = open_live(args.model, trust=args.trust, sha256=args.sha256, kind="stored")
    source = os.path.abspath(args.model) if os.path.exists(args.model) else args.model
    digest, size = digest_of(model), encoder_of(model)[1]
    with locked(args.index):
        index = ImageIndex(args.index, source, digest, size)
        new = index.changed(paths)
        gone = [path for path in index.files if not os.path.exists(path)]
        index.remove(gone)
        # Without their new vectors, changed files are not found.
        index.remove(path for path in new if path in index.files)
        skipped = add_images(index, model, new, args.on_bad_image, save=bool(gone or new))
    value = {
        **{"index": args.index, "model": args.model, "images": len(index)},
        **{"added": len(new) - len(skipped), "removed": len(gone), "bad_images": skipped},
    }
    rows = [(name, number) for name, number in value.items() if name != "bad_images"]
    report(args, value, text_table(rows + [("unreadable image", path) for path in skipped]))


def add_images(index, model, states, on_bad_image="fail", save=False):
    """Add the vectors of image files to an index, and save it every minute and at the end.

    Whatever ends the run, what was computed before is saved, so another run continues from there.

    Args:
        index: An `ImageIndex` of the model.
        model: A VisionTransformer or ImageTextModel.
        states: As `ImageIndex.changed` returns it.
        on_bad_image: "fail", or "skip" unreadable images.
        save: Whether to save if nothing is added.

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
                    save = True
                if time.monotonic() - saved > SAVE_SECONDS:
                    index.save()
                    saved, save = time.monotonic(), False
        finally:
            pool.shutdown(cancel_futures=True)
            if save:
                index.save()
    if not (index.folder / MANIFEST).exists():
        index.save()
    return skipped


def _ahead(start, batches):
    """Yield each batch with what `start` returned for it, after the start of the next one."""
    started = ((batch, start(batch)) for batch in batches)
    for pair in itertools.pairwise(itertools.chain(started, [None])):
        yield pair[0]


def _query(args):
    words = " ".join(args.query)
    is_image = words.lower().endswith(IMAGE_SUFFIXES) or os.path.isfile(words)
    if is_image and not os.path.isfile(words):
        raise ValueError(f"no such image file: {words}")
    index = open_index(args.index)
    source = args.model or index.model
    model = open_live(source, trust=args.trust, sha256=args.sha256, kind="stored")
    if digest_of(model) != index.digest:
        raise ValueError(f"{args.index!r} holds vectors of {index.model}; got another model, {source}")
    if is_image:
        (vector,) = check_finite(encoder_of(model)[0](model.preprocessing(words)))
    elif image_model(model) is model:
        raise ValueError(f"{source} has no text tower, so it searches by an image file only; got {words!r}")
    else:
        (vector,) = model.encode_text([words])
    nearest = index.query(vector, args.top)
    if changed := [path for path, _ in nearest if not os.path.exists(path) or index.changed([path])]:
        nearest = [pair for pair in nearest if pair[0] not in changed]
        print(f"left out, since they have changed: {listed(changed)}; index them again", file=sys.stderr)
    value = {
        **{"index": args.index, "query": words},
        "images": [{"image": path, "similarity": round(score, 6)} for path, score in nearest],
    }
    rows = [(row["image"], f"{row['similarity']:.4f}") for row in value["images"]]
    report(args, value, text_table(rows, ("image", "similarity")) if rows else "no images")


def digest_of(model):
    """A digest of what determines a model's vectors, in hexadecimal: weights, options and tokenizer."""
    config = model.get_config()
    encoder = config[model.backbone_argument] if model.backbone_argument else config
    for name in FRONT_ENDS:  # Indexes of earlier versions have digests of the options of all classes.
        encoder.setdefault(name, DEFAULTS[name])
    digest = hashlib.sha256(json.dumps(_options(config), sort_keys=True, default=str).encode())
    if tokenizer := model.text_preprocessing:
        digest.update(tokenizer.digest.encode())
    for weight in model.weights:
        if "float" in weight.dtype:
            digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
    return digest.hexdigest()


def _options(config):
    """A configuration without the entries on which no vector depends, at any depth."""
    if isinstance(config, dict):
        return {name: _options(value) for name, value in config.items() if name not in NO_OPTIONS}
    return [*map(_options, config)] if isinstance(config, (list, tuple)) else config
