"""Embeddings of a data set by Apache Beam, which divides the parts among the workers of its runner.

    python examples/embed_beam.py MODEL DATASET FOLDER [--partitions N] [OPTIONS OF THE PIPELINE]

With `--direct_num_workers 4 --direct_running_mode multi_processing`, four processes on this machine are the
workers. Those on other machines need keras_vit, and the model, the data and the folder under the same paths.
Parts that exist are left as they are.
"""

import argparse
import functools
import os

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from keras_vit import from_pretrained
from keras_vit.embeddings import embed_part, plan_embeddings


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model", "dataset", "folder"):
        parser.add_argument(name)
    parser.add_argument("--partitions", type=int)
    args, options = parser.parse_known_args()
    folder, data = os.path.abspath(args.folder), {"name": args.dataset}
    try:
        model = from_pretrained(args.model, kind="stored")
        plan = plan_embeddings(folder, args.model, model, data, partitions=args.partitions).plan
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        parts = pipeline | beam.Create(range(plan.partitions)) | beam.Reshuffle()
        parts | beam.Map(functools.partial(embed_part, folder)) | beam.Map(print)


if __name__ == "__main__":
    main()
