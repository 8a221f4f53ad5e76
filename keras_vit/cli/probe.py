"""`keras-vit probe`: accuracy of a linear classifier on the mean token of each block."""

import keras_vit
from keras_vit.cli import options
from keras_vit.cli.report import check_output, check_png, report, text_table
from keras_vit.writing import atomic_write

HELP = "accuracy of a linear classifier on the features of each block"


def add_arguments(add):
    options.model(add, exported=False)
    options.dataset(add)
    add("--shots", type=options.positive_int, help="training images per class (default: all)")
    add("--seeds", type=options.ints, default=(0,), help="seeds that select the images (default: 0)")
    add("--figure", metavar="FILE.png", help="draw the accuracy of each block")
    options.batch_size(add)
    options.output(add)


def run(args):
    import numpy as np

    from keras_vit.cli.source import open_for_features
    from keras_vit.inspection.figures import block_accuracy_figure
    from keras_vit.reports.page import png_of

    check_output(args)
    check_png("--figure", args.figure)
    model, dataset = open_for_features(args)
    result = keras_vit.evaluation.probe_blocks(model, dataset, args.shots, args.seeds, args.batch_size)
    value = {
        "model": args.model,
        "dataset": args.dataset,
        "shots": args.shots,
        "seeds": list(args.seeds),
        "accuracy": result,
        "mean_accuracy": np.mean(result, axis=1).tolist(),
        **({"figure": args.figure} if args.figure else {}),
    }
    columns = ("block", "mean", *(f"seed {seed}" for seed in args.seeds))
    rows = [[block, *(f"{number:.4f}" for number in (np.mean(of), *of))] for block, of in enumerate(result)]
    try:
        report(args, value, text_table(rows, columns))
    finally:
        if args.figure:
            shots = "all training images" if args.shots is None else f"{args.shots} images per class"
            title = f"Linear probes of {args.model}, {args.dataset}, {shots}"
            atomic_write(args.figure, png_of(block_accuracy_figure(result, title)))
