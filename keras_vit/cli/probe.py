"""`keras-vit probe`: accuracy of a linear classifier on the mean token of each block, or on embeddings."""

import keras_vit
from keras_vit.cli import options
from keras_vit.cli.report import check_png, report, text_table
from keras_vit.messages import redact_urls
from keras_vit.writing import atomic_write


def add_arguments(add):
    options.features(add)
    add("--shots", type=options.positive_int, help="training images per class (default: all)")
    add("--seeds", type=options.ints, default="0", help="seeds that select the images")
    options.neighbors(add)
    add("--figure", metavar="FILE.png", help="draw the accuracy of each block")
    options.batch_size(add)
    options.json(add)


def run(args):
    import numpy as np

    from keras_vit.cli.source import features_source, open_embeddings, open_for_features
    from keras_vit.inspection.figures import block_accuracy_figure
    from keras_vit.reports.page import png_of

    check_png("--figure", args.figure)
    value = features_source(args)
    if args.embeddings:
        if args.figure:
            raise ValueError("--figure draws the blocks of a model; got --embeddings")
        accuracies = keras_vit.evaluation.probe_vectors(
            *open_embeddings(args), args.shots, args.seeds, args.neighbors
        )
        result = {"embedding": accuracies}
    else:
        choices = args.shots, args.seeds, args.batch_size, args.neighbors
        result = dict(enumerate(keras_vit.evaluation.probe_blocks(*open_for_features(args), *choices)))
    value |= {
        **({} if args.neighbors is None else {"neighbors": args.neighbors}),
        "shots": args.shots,
        "seeds": list(args.seeds),
        "accuracy": [*result.values()],
        "mean_accuracy": [float(np.mean(of)) for of in result.values()],
        **({"figure": args.figure} if args.figure else {}),
    }
    columns = ("block", "mean", *(f"seed {seed}" for seed in args.seeds))
    rows = [[block, *(f"{number:.4f}" for number in (np.mean(of), *of))] for block, of in result.items()]
    try:
        report(args, value, text_table(rows, columns))
    finally:
        if args.figure:
            shots = "all training images" if args.shots is None else f"{args.shots} images per class"
            title = redact_urls(f"Linear probes of {args.model}, {args.dataset}, {shots}")
            atomic_write(args.figure, png_of(block_accuracy_figure([*result.values()], title)))
