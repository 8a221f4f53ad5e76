"""`keras-vit search`: find pictures by a picture, or by words with an image-text model."""

import os
import sys

from keras_vit.cli import options
from keras_vit.cli.report import report, text_table
from keras_vit.messages import listed, redact_url
from keras_vit.names import SEARCH_ENGINES
from keras_vit.rules import one_of, optional


def _add_index_arguments(add):
    options.model(add, exported=False, required=False)
    add("images", nargs="*", help=f"image files, {options.FILES}")
    text = "folder of keras-vit embed, in place of --model and images; can be repeated"
    add("--embeddings", action="append", default=[], metavar="DIR", help=text)
    folder = "folder of the index; one that exists is brought up to date"
    add("--index", required=True, metavar="DIR", help=folder)
    engines = options.either(SEARCH_ENGINES)
    text = f"{engines} (default: the index's, or for more than 100,000 images hnsw)"
    add("--engine", help=text)
    options.on_bad_image(add, options.ON_BAD_FILE)
    options.device(add)
    options.json(add)


def _add_query_arguments(add):
    add("query", nargs="+", help="an image file; or words, for an image-text model")
    add("--index", required=True, metavar="DIR", help="folder that keras-vit search index has written")
    add("--top", type=options.positive_int, default=10, help="images listed")
    _add_conditions(add)
    add("--model", help="the index's model, if its path or URL has changed")
    options.trust(add)
    options.device(add)
    options.json(add)


def _add_duplicates_arguments(add):
    add("--index", required=True, metavar="DIR", help="folder that keras-vit search index has written")
    text = "cosine from which on two images are nearly equal"
    add("--threshold", type=float, default=0.95, help=text)
    _add_conditions(add)
    options.json(add)


def _add_conditions(add):
    text = "only images of which this holds, such as label=3, width>=640 or path~2024; can be repeated"
    add("--where", action="append", default=[], metavar="CONDITION", help=text)


ACTIONS = {
    "index": (_add_index_arguments, "make or update an index of pictures: new, changed and removed ones"),
    "query": (_add_query_arguments, "list the pictures of an index that are most like a picture or words"),
    "duplicates": (_add_duplicates_arguments, "list groups of pictures of an index that are nearly equal"),
}


def continues(args):
    return args.action == "index" and "the same command adds the images that are missing"


def run(args):
    if args.action == "index":
        optional(one_of(SEARCH_ENGINES)).check("--engine", args.engine)
        if args.embeddings:
            return _index_embeddings(args)
    return {"index": _index, "query": _query, "duplicates": _duplicates}[args.action](args)


def _index_embeddings(args):
    if args.images or args.model:
        raise ValueError("--embeddings has its images and model; got --model or images, too")
    options.refuse_unused(args, options.OF_MODEL, "--model")
    from keras_vit.embeddings.indexing import open_for_embeddings, update_index
    from keras_vit.search import locked

    with locked(args.index):
        index = open_for_embeddings(args.index, args.embeddings)
        counts = update_index(index, args.embeddings)
        index.build(args.engine)
    _report_index(args, index, counts)


def _report_index(args, index, counts, skipped=()):
    recall = {} if index.recall is None else {"recall_at_10": index.recall}
    value = {"index": args.index, "model": index.model, "images": len(index), "engine": index.engine}
    value |= {**recall, **counts}
    rows = [*value.items(), *(("unreadable image", path) for path in skipped)]
    report(args, {**value, "bad_images": skipped} if "unreadable" not in value else value, text_table(rows))


def _index(args):
    if not args.model or not args.images:
        raise ValueError("expected --model and images, or --embeddings")
    from keras_vit.cli.image_vectors import add_images
    from keras_vit.cli.images import images_of
    from keras_vit.cli.source import open_live
    from keras_vit.evaluation.representations import encoder_of
    from keras_vit.search import ImageIndex, locked
    from keras_vit.weights.model_digest import model_digest

    paths = [path for argument in args.images for path in images_of(argument)]
    model = open_live(args.model, trust=args.trust, sha256=args.sha256, kind="stored")
    source = os.path.abspath(args.model) if os.path.exists(args.model) else redact_url(args.model)
    digest, size = model_digest(model), encoder_of(model)[1]
    with locked(args.index):
        index = ImageIndex(args.index, source, digest, size)
        new = index.changed(paths)
        gone = [path for path in index.files if index.is_stale(path) and not os.path.exists(path)]
        index.remove(gone)
        # Without their new vectors, changed files are not found.
        index.remove(path for path in new if path in index.files)
        skipped = add_images(index, model, new, args.on_bad_image, args.engine)
    _report_index(args, index, {"added": len(new) - len(skipped), "removed": len(gone)}, skipped)


def _query(args):
    from keras_vit.cli.source import open_live
    from keras_vit.data.files import IMAGE_SUFFIXES
    from keras_vit.evaluation.representations import encoder_of
    from keras_vit.models.backbones import image_model
    from keras_vit.models.classifying import check_finite
    from keras_vit.search import open_index
    from keras_vit.weights.model_digest import model_digest

    query = " ".join(args.query)
    is_image = query.lower().endswith(IMAGE_SUFFIXES) or os.path.isfile(query)
    if is_image and not os.path.isfile(query):
        raise ValueError(f"no such image file: {query}")
    index = open_index(args.index)
    source = args.model or index.model
    model = open_live(source, trust=args.trust, sha256=args.sha256, kind="stored")
    if model_digest(model) != index.digest:
        raise ValueError(f"{args.index!r} holds vectors of {index.model}; got another model, {source}")
    if is_image:
        (vector,) = check_finite(encoder_of(model)[0](model.preprocessing(query)))
    elif image_model(model) is model:
        raise ValueError(f"{source} has no text tower, so it searches by an image file only; got {query!r}")
    else:
        (vector,) = model.encode_text([query])
    nearest, changed = index.query(vector, args.top, args.where), []
    while stale := [path for path, _ in nearest if index.is_stale(path)]:
        index.remove(stale)  # It is not saved.
        changed += stale
        nearest = index.query(vector, args.top + len(changed), args.where)
    _note_changed(changed)
    images = [{"image": path, "similarity": score} for path, score in nearest[: args.top]]
    value = {"index": args.index, "query": query, "images": images}
    rows = [(row["image"], f"{row['similarity']:.4f}") for row in value["images"]]
    report(args, value, text_table(rows, ("image", "similarity")) if rows else "no images")


def _note_changed(paths):
    if paths:
        print(f"left out, since they have changed: {listed(paths)}; index them again", file=sys.stderr)


def _duplicates(args):
    from keras_vit.search import near_duplicates, open_index

    index = open_index(args.index)
    groups = near_duplicates(index, args.threshold, args.where)
    _note_changed(index.rows["path"].take(index.stale_rows(args.where)).to_pylist())
    value = {
        **{"index": args.index, "threshold": args.threshold},
        "groups": [[{"image": path, "similarity": score} for path, score in group] for group in groups],
    }
    rows = [
        ("" if place else number, path, f"{score:.4f}")
        for number, group in enumerate(groups, 1)
        for place, (path, score) in enumerate(group)
    ]
    columns = ("group", "image", "similarity")
    report(args, value, text_table(rows, columns) if rows else "no images that are nearly equal")
