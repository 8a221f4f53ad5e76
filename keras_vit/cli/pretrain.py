"""`keras-vit pretrain`: train from random weights, with or without labels."""

from keras_vit.cli.finetune import has_sizes, train_and_report


def run(args):
    if not (args.model or has_sizes(args)):
        raise ValueError("expected --model, a variant such as B/16, to train from random weights")
    train_and_report(args, objective=args.objective, target=args.target)
