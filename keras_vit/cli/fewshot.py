"""`keras-vit fewshot`: accuracy of a simple classifier of a model's features of a few images per class."""

import keras_vit
from keras_vit.cli import options
from keras_vit.cli.report import report, text_table


def add_arguments(add):
    options.features(add)
    add("--shots", type=options.ints, default="1,5,10,25", help="images per class")
    add("--seeds", type=options.ints, default="0,1,2", help="seeds that select the images")
    add("--l2", type=float, help="weight of the L2 penalty of the linear classifier (default: 1024)")
    options.neighbors(add)
    options.batch_size(add)
    options.json(add)


def run(args):
    import numpy as np

    from keras_vit.cli.source import features_source, open_embeddings, open_for_features
    from keras_vit.evaluation.few_shot import L2

    value = features_source(args)
    if args.embeddings:
        choices = args.shots, args.seeds, args.l2, args.neighbors
        result = keras_vit.evaluation.few_shot_of_vectors(*open_embeddings(args), *choices)
    else:
        choices = args.shots, args.seeds, args.l2, args.batch_size, args.neighbors
        result = keras_vit.evaluation.few_shot(*open_for_features(args), *choices)
    l2 = L2 if args.l2 is None else args.l2
    value |= {
        **({"l2": l2} if args.neighbors is None else {"neighbors": args.neighbors}),
        "seeds": list(args.seeds),
        "accuracy": {str(shots): accuracies for shots, accuracies in result.items()},
        "mean_accuracy": {str(shots): float(np.mean(of)) for shots, of in result.items()},
    }
    columns = ("shots", "mean", *(f"seed {seed}" for seed in args.seeds))
    rows = [[shots, *(f"{number:.4f}" for number in (np.mean(of), *of))] for shots, of in result.items()]
    report(args, value, text_table(rows, columns))
