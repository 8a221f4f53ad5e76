"""`keras-vit pretrain`: train from random weights, with or without labels."""

from keras_vit.cli import options
from keras_vit.cli.finetune import add_run


def add_arguments(add):
    add_run(add, "pretrain_imagenet")
    options.objective(add)


def continues(args):
    return "the same command resumes the run"


def run(args):
    from keras_vit.cli.training_run import has_sizes, train_and_report

    if not (args.model or has_sizes(args)):
        raise ValueError("expected --model, a variant such as B/16, to train from random weights")
    train_and_report(args, objective=args.objective, target=args.target)
