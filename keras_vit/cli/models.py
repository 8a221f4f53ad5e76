"""`keras-vit models`: the published sizes and what they cost, and the published checkpoints."""

import contextlib
import dataclasses

from keras_vit.cli.report import check_output, report, table
from keras_vit.variants import PUBLISHED, cost, parse_variant
from keras_vit.weights.catalogue import CATALOGUE, list_models, matches

# Shown of a checkpoint; --json has every field.
COLUMNS = ("name", "variant", "size", "classes", "top-1", "licence", "cached")


def run(args):
    check_output(args)
    words = (*args.words, *args.filter)
    variants = [] if args.cached else _variants(args, words)
    checkpoints = _checkpoints(args, words)
    parts = []
    if variants:
        shape = f"{args.image_size} px, {args.num_classes} classes"
        parts += [f"{shape}; a multiplication and an addition are two FLOPs", _costs(variants)]
    parts.append(
        f"{len(checkpoints)} of {len(CATALOGUE)} checkpoints; top-1 on ImageNet-1k in per cent, as reported"
    )
    if checkpoints:
        parts.append(table([_shown(row) for row in checkpoints], COLUMNS))
    report(args, {"variants": variants, "catalogue": checkpoints}, "\n\n".join(parts))


def _variants(args, words):
    """What the published sizes, or the one that is asked for, cost."""
    if args.variant:
        parse_variant(args.variant)
    rows = []
    for name in (args.variant,) if args.variant else PUBLISHED:
        if all(matches(word, name) for word in words):
            with contextlib.suppress(ValueError):  # the patch does not divide an image of this size
                rows.append({"variant": name, **cost(name, args.image_size, args.num_classes or None)})
    return rows


def _checkpoints(args, words):
    """The catalogue's rows that match, each with whether its file is here already."""
    from keras_vit.weights.fetch import is_cached

    found = (CATALOGUE[name] for name in list_models(words, variant=args.variant))
    rows = [{**dataclasses.asdict(row), "cached": is_cached(row.url)} for row in found]
    return [row for row in rows if row["cached"] or not args.cached]


def _costs(rows):
    shown = [
        (row["variant"], row["tokens"], round(row["parameters"] / 1e6, 1), round(row["flops"] / 1e9, 2))
        for row in rows
    ]
    return table(shown, ("variant", "tokens", "million parameters", "GFLOPs"))


def _shown(row):
    height, width = row["image_size"]
    return (
        row["name"],
        row["variant"] or "",
        height if height == width else f"{height}x{width}",
        row["num_classes"] or "",
        "" if row["top1"] is None else f"{row['top1']:.1f}",
        row["licence"] or "",
        "yes" if row["cached"] else "",
    )
