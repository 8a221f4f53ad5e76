"""`keras-vit models`: the published variants and what they cost, and the published checkpoints."""

import contextlib
import dataclasses

from keras_vit.cli import options
from keras_vit.cli.options import non_negative_int, positive_int
from keras_vit.cli.report import report, text_table
from keras_vit.variants import PUBLISHED, cost, parse_variant

# Columns of checkpoints; the JSON has every field.
COLUMNS = ("name", "variant", "size", "classes", "top-1", "license", "cached")


def add_arguments(add):
    add("--image_size", type=positive_int, default=224, help="side of the image that the GFLOPs are for")
    add("--num_classes", type=non_negative_int, default=1000, help="size of the head; 0 for none")
    add("words", nargs="*", metavar="TEXT", help="part of name, source or variant, or a pattern with * or ?")
    add("--filter", action="append", default=[], metavar="TEXT", help="the same; all must match")
    add("--variant", help="list this size only, such as B/16")
    add("--cached", action="store_true", help="list only the checkpoints that are in the cache")
    options.json(add)


def needs_keras(args):
    return False


def run(args):
    from keras_vit.weights.catalogue import CATALOGUE

    patterns = (*args.words, *args.filter)
    variants = [] if args.cached else _variants(args, patterns)
    checkpoints = _checkpoints(args, patterns)
    parts = []
    if variants:
        shape = f"{args.image_size} px, {args.num_classes} classes"
        columns = ("variant", "tokens", "million parameters", "GFLOPs")
        rows = [
            (row["variant"], row["tokens"], round(row["parameters"] / 1e6, 1), round(row["flops"] / 1e9, 2))
            for row in variants
        ]
        parts += [f"{shape}; a multiplication and an addition are two FLOPs", text_table(rows, columns)]
    parts.append(f"{len(checkpoints)} of {len(CATALOGUE)} checkpoints; reported top-1 on ImageNet-1k in %")
    if checkpoints:
        parts.append(text_table([_cells(row) for row in checkpoints], COLUMNS))
    report(args, {"variants": variants, "catalogue": checkpoints}, "\n\n".join(parts))


def _variants(args, words):
    """Return the cost of the published variants, or of the requested one."""
    from keras_vit.weights.catalogue import matches

    if args.variant:
        parse_variant(args.variant)
    rows = []
    for name in (args.variant,) if args.variant else PUBLISHED:
        if all(matches(word, name) for word in words):
            with contextlib.suppress(ValueError):  # an image of this size is smaller than a patch
                rows.append({"variant": name, **cost(name, args.image_size, args.num_classes or None)})
    return rows


def _checkpoints(args, words):
    """Return the catalogue's rows that match, each with whether it is cached."""
    from keras_vit.weights.catalogue import CATALOGUE, list_models
    from keras_vit.weights.fetch import is_cached

    entries = (CATALOGUE[name] for name in list_models(words, variant=args.variant))
    rows = [{**dataclasses.asdict(row), "cached": is_cached(row.url)} for row in entries]
    return [row for row in rows if row["cached"] or not args.cached]


def _cells(row):
    height, width = row["image_size"]
    size = height if height == width else f"{height}x{width}"
    top1 = "" if row["top1"] is None else f"{row['top1']:.1f}"
    optional = (row["num_classes"] or "", top1, row["license"] or "", "yes" if row["cached"] else "")
    return row["name"], row["variant"] or "", size, *optional
