"""`keras-vit finetune`: train a model on a data set."""

from keras_vit import names
from keras_vit.cli import options


def add_arguments(add):
    add_run(
        add,
        None,
        " (default: by what the weights learned from, with sizes that fit the number of images)",
        "--weights or ",
    )
    add("--weights", help=f"run of keras-vit, .keras file, or {options.CHECKPOINT}")
    add("--sha256", metavar="DIGEST", help="expected SHA-256 of the weights")


def add_run(add, recipe, recipe_help="", weights=""):
    """Add the options of a run.

    Args:
        add: A parser's `add_argument`.
        recipe: The default recipe.
        recipe_help: What the recipe is without a default, in words.
        weights: What else makes --model unnecessary.
    """
    add("--model", help=f"variant such as B/16; not needed with {weights}a recipe with sizes")
    options.dataset(add)
    known = "hyperparameters, such as digits or augreg; an unknown name lists all"
    add("--recipe", default=recipe, help=f"{known}{recipe_help}")
    add("--workdir", required=True, help="folder of the run; an unfinished one is continued")
    teacher = "run, .keras file, checkpoint or embeddings:DIR whose outputs the model learns; or several"
    add("--teacher", action="append", default=[], metavar="SOURCE", help=teacher)
    add("--image_size", type=options.image_size, help=options.SIZE)
    add("--total_steps", type=options.positive_int, help="steps of the run")
    add("--batch_size", type=options.positive_int, help="images per step, over all devices")
    add("--seed", type=options.non_negative_int, help="of all random numbers (default: the recipe's)")
    add("--dtype", help=f"{options.either(names.RUN_DTYPES)}; auto is by the device (default: the recipe's)")
    options.device(add)
    strategies = map(options.either, (names.STRATEGIES, names.JAX_STRATEGIES))
    add("--strategy", default="auto", help="; on JAX ".join(strategies))
    fields = "any field of the recipe, as base_lr=0.01; pydoc keras_vit.training.Recipe lists them"
    options.changes(add, "FIELD", fields)
    options.on_bad_image(add)
    text = (
        "Keras callback for a log of experiments, as "
        "keras.callbacks.CSVLogger:filename=log.csv,append=True; or several"
    )
    add("--log", action="append", default=[], metavar="NAME[:ARGUMENT=VALUE,…]", help=text)
    add("--tokenizer", metavar="PATH[:FAMILY]", help="tokenizer of captions (default: that of the weights)")
    add("--deterministic", action="store_true", help="bit-identical results on GPUs, too; slower")


def continues(args):
    return "the same command resumes the run"


def run(args):
    from keras_vit.cli.source import check_weights
    from keras_vit.cli.training_run import absolute_weights, has_sizes, train_and_report

    if not (args.model or args.weights or has_sizes(args)):
        raise ValueError(
            "expected --model, a variant such as B/16, to train from random weights, or --weights, a "
            "checkpoint to start from"
        )
    if args.weights:
        check_weights(args.weights)
    train_and_report(args, weights=args.weights and absolute_weights(args.weights), sha256=args.sha256)
