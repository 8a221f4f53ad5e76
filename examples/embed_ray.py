"""Embeddings of a data set by Ray Data, which divides the parts among the workers of its cluster.

    python examples/embed_ray.py MODEL DATASET FOLDER [--partitions N] [--workers N] [--gpus N]

A worker is a process with one CPU and N GPUs. Those on other machines need keras_vit, and the model, the data
and the folder under the same paths. Parts that exist are left as they are.
"""

import argparse
import os

import ray

from keras_vit import from_pretrained
from keras_vit.embeddings import embed_part, plan_embeddings


class EmbedPart:
    """A class: Ray keeps its process, and with it the open model, also on a GPU."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, row):
        return {"path": embed_part(self.folder, row["item"])}


def main():
    parser = argparse.ArgumentParser()
    for name in ("model", "dataset", "folder"):
        parser.add_argument(name)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0)
    args = parser.parse_args()
    ray.init()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Of this process; the workers have the GPUs.
    folder, data = os.path.abspath(args.folder), {"name": args.dataset}
    try:
        model = from_pretrained(args.model, kind="stored")
        plan = plan_embeddings(folder, args.model, model, data, partitions=args.partitions).plan
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    workers = ray.data.ActorPoolStrategy(size=args.workers)
    # The tasks of `ray.data.range` would wait for a CPU while the workers have all.
    parts = ray.data.from_items([*range(plan.partitions)], override_num_blocks=plan.partitions)
    done = parts.map(EmbedPart, fn_constructor_args=[folder], compute=workers, num_gpus=args.gpus)
    for row in done.iter_rows():
        print(row["path"])


if __name__ == "__main__":
    main()
