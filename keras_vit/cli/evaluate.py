"""`keras-vit evaluate`: accuracy on a split."""

from keras_vit.cli.report import report, table
from keras_vit.cli.source import open_model, seed_of
from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation import evaluate


def run(args):
    seed = seed_of(args.model) if args.seed is None else args.seed
    dataset = load_dataset(args.dataset, seed, args.on_bad_image)
    samples = dataset.split(args.split)
    model = open_model(args.model)
    if model.class_names and model.class_names != dataset.class_names:
        raise ValueError(
            f"the model's classes are {list(model.class_names)[:5]}, the data set's "
            f"{list(dataset.class_names)[:5]}; labels can only be compared in one order"
        )
    found = evaluate(model, samples, args.batch_size)
    value = {"model": args.model, "dataset": args.dataset, "split": args.split, **found}
    value["bad_images"] = list(dataset.bad_images)
    shown = [(name, _shown(number)) for name, number in value.items() if name != "bad_images"]
    shown += [("unreadable image", path) for path in dataset.bad_images]
    report(args, value, table(shown, ("", "")).strip())


def _shown(number):
    return f"{number:.4f}" if isinstance(number, float) else str(number)
