"""`keras-vit embed`: vectors of all images of a data set, in Parquet files."""

import argparse

from keras_vit.cli import options
from keras_vit.cli.device import note_formats
from keras_vit.cli.report import introduce, report, text_table
from keras_vit.names import EMBEDDING_DTYPES, EMBEDDING_FORMATS, EMBEDDING_OUTPUTS


def add_arguments(add):
    options.device(add)
    options.model(add, exported=False)
    options.dataset(add, "--data")
    options.task(add)
    options.on_bad_image(add, default=None)
    add("--output", required=True, metavar="DIR", help="new folder, or that of a command that was stopped")
    add("--partitions", type=options.positive_int, help="Parquet files (default: 1 per 10,000 images)")
    add("--shard", type=shard, default="0/1", metavar="I/N", help="only each N-th file, from file I, from 0")
    claim = "leave out files that other processes on this file system are writing"
    add("--claim", action="store_true", help=claim)
    outputs = f"several of {options.either(EMBEDDING_OUTPUTS)}, separated by commas"
    add("--outputs", type=options.words, default=EMBEDDING_OUTPUTS[0], help=outputs)
    dtype = f"of stored numbers: {options.either(EMBEDDING_DTYPES)}"
    add("--dtype", default=EMBEDDING_DTYPES[0], help=dtype)
    names = f"{options.either(EMBEDDING_FORMATS)} (default: the model itself)"
    add("--format", help=f"compute with an exported file: {names}; a runtime alone: its fastest of these")
    options.batch_size(add)
    options.json(add)


def shard(text):
    """Parse `3/8` to (3, 8).

    >>> shard("0/4")
    (0, 4)
    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, such as 0/4; got {text!r}")
    return int(number), int(count)


def continues(args):
    return "the same command computes the parts that are missing"


def run(args):
    from keras_vit.cli.source import open_live, seed_of, trained_file
    from keras_vit.embeddings.computing import embed, plan_embeddings

    note_formats(args, filter(None, [args.format]))
    model = open_live(args.model, trust=args.trust, sha256=args.sha256, kind="stored")
    labels = {"task": args.task, "fields": args.field, "classes": args.classes}
    further = {"data_dir": args.data_dir, "on_bad_image": args.on_bad_image}
    asked = {name: value for name, value in {**labels, **further}.items() if value}
    embedder = plan_embeddings(
        args.output,
        trained_file(args.model),
        model,
        {"name": args.dataset, **({"labels": True} if {*labels} & {*asked} else {}), **asked},
        partitions=args.partitions,
        outputs=args.outputs,
        dtype=args.dtype,
        batch_size=args.batch_size,
        format=args.format,
        split_seed=seed_of(args.model, model),
    )
    introduce(args, embedder.dataset)
    counts = {"output": args.output, **embed(embedder, args.shard, args.claim)}
    report(args, counts, text_table([*counts.items()]))
