"""`keras-vit models`: the published sizes and what they cost."""

import contextlib

from keras_vit.cli.report import report, table
from keras_vit.variants import PUBLISHED, cost


def run(args):
    rows = []
    for name in PUBLISHED:
        with contextlib.suppress(ValueError):  # the patch does not divide an image of this size
            rows.append({"variant": name, **cost(name, args.image_size, args.num_classes or None)})
    shown = [
        (row["variant"], row["tokens"], round(row["parameters"] / 1e6, 1), round(row["flops"] / 1e9, 2))
        for row in rows
    ]
    shape = f"{args.image_size} px, {args.num_classes} classes"
    text = table(shown, ("variant", "tokens", "million parameters", "GFLOPs"))
    report(args, rows, f"{shape}; a multiplication and an addition are two FLOPs\n\n{text}")
