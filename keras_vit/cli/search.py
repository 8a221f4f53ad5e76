"""`keras-vit search index|query`: find pictures by a picture, or by words with an image-text model."""

import os
import sys

from keras_vit.cli import options
from keras_vit.cli.report import check_output, report, text_table
from keras_vit.messages import listed

HELP = "find pictures by a picture, or by words"


def _add_index_arguments(add):
    options.model(add, exported=False)
    add("images", nargs="+", help=options.PATHS)
    folder = "folder of the index; one that exists is brought up to date"
    add("--index", required=True, metavar="DIR", help=folder)
    options.on_bad_image(add)
    options.output(add)


def _add_query_arguments(add):
    add("query", nargs="+", help="an image file; or words, for an image-text model")
    add("--index", required=True, metavar="DIR", help="folder that keras-vit search index has written")
    add("--top", type=options.positive_int, default=10, help="images listed (default: 10)")
    add("--model", help="the index's model, if its path or URL has changed")
    options.trust(add)
    options.output(add)


ACTIONS = {
    "index": (_add_index_arguments, "make or update an index of pictures: new, changed and removed ones"),
    "query": (_add_query_arguments, "list the pictures of an index that are most like a picture or words"),
}


def run(args):
    check_output(args)
    return {"index": _index, "query": _query}[args.action](args)


def _index(args):
    from keras_vit.cli.image_vectors import add_images
    from keras_vit.cli.images import images_of
    from keras_vit.cli.source import open_live
    from keras_vit.embeddings.model_digest import model_digest
    from keras_vit.evaluation.representations import encoder_of
    from keras_vit.search import ImageIndex, locked

    paths = [path for argument in args.images for path in images_of(argument)]
    model = open_live(args.model, trust=args.trust, sha256=args.sha256, kind="stored")
    source = os.path.abspath(args.model) if os.path.exists(args.model) else args.model
    digest, size = model_digest(model), encoder_of(model)[1]
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


def _query(args):
    from keras_vit.cli.source import open_live
    from keras_vit.data.files import IMAGE_SUFFIXES
    from keras_vit.embeddings.model_digest import model_digest
    from keras_vit.evaluation.representations import encoder_of
    from keras_vit.models.backbones import image_model
    from keras_vit.models.classifying import check_finite
    from keras_vit.search import open_index

    words = " ".join(args.query)
    is_image = words.lower().endswith(IMAGE_SUFFIXES) or os.path.isfile(words)
    if is_image and not os.path.isfile(words):
        raise ValueError(f"no such image file: {words}")
    index = open_index(args.index)
    source = args.model or index.model
    model = open_live(source, trust=args.trust, sha256=args.sha256, kind="stored")
    if model_digest(model) != index.digest:
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
