"""`keras-vit models`: the published sizes and what they cost."""

from keras_vit.cli.report import report, table
from keras_vit.variants import PUBLISHED, cost


def run(args):
    rows = [
        {"variant": name, **cost(name, args.image_size, args.num_classes or None)}
        for name in PUBLISHED
        if args.image_size % int(name.rpartition("/")[2]) == 0
    ]
    if not rows:
        raise ValueError(f"no variant's patch divides an image of {args.image_size} pixels")
    shown = [
        (row["variant"], row["tokens"], round(row["parameters"] / 1e6, 1), round(row["flops"] / 1e9, 2))
        for row in rows
    ]
    shape = f"{args.image_size} px, {args.num_classes} classes"
    text = table(shown, ("variant", "tokens", "million parameters", "GFLOPs"))
    report(args, rows, f"{shape}; a multiplication and an addition are two FLOPs\n\n{text}")
