"""A trained DINOv2 ViT-S/14 and photographs, in parts; writes REAL.md.

    python benchmarks/real.py [--parts precision search]

A part is a module of PARTS with TITLE, TEXT (what is measured, in Markdown), COLUMNS, and `rows()`, which
measures and returns a row of texts and numbers for each line of its table. REAL.json keeps the rows of the
parts that are not measured again. Packages of requirements-peers.txt have the weights and the photographs.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from harness import HERE

sys.path.append(str(HERE.parent / "tests"))  # of made.trained

import real_dense
import real_distillation
import real_duplicates
import real_int8
import real_keypoints
import real_precision
import real_recipes
import real_search
from machine import circumstances
from report import machine_text, table, update

PARTS = {
    "precision": real_precision,
    "int8": real_int8,
    "distillation": real_distillation,
    "search": real_search,
    "duplicates": real_duplicates,
    "recipes": real_recipes,
    "dense": real_dense,
    "keypoints": real_keypoints,
}
RESULTS = HERE / "REAL.json"
INTRODUCTION = """\
`python benchmarks/real.py` measures and writes this page; `--parts` measures some of it again. The weights
are those of DINOv2 ViT-S/14, trained without labels, and the images photographs that scikit-image and
scikit-learn install. [`tests/made/trained.py`](../tests/made/trained.py) reads both. Crops for training are
of the left half of a photograph, and those for tests of its right half. With 16 photographs as 16 classes,
chance is 6.25 %.

An interval, after ±, is the half of the 95 % interval of the mean over the seeds, by Student's t."""


def report(results):
    """The text of REAL.md."""
    sections = ["# A trained model on photographs", INTRODUCTION]
    for name, part in PARTS.items():
        if found := results.get(name):
            about = f"{found['date']}: {machine_text(found)}"
            sections += [f"## {part.TITLE}", part.TEXT, table(part.COLUMNS, found["rows"]), about]
    return "\n\n".join(sections) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    for name in parser.parse_args().parts:
        about = circumstances()
        update(RESULTS, name, about | {"rows": PARTS[name].rows()})
        (HERE / "REAL.md").write_text(report(json.loads(RESULTS.read_text())))
        print(table(PARTS[name].COLUMNS, json.loads(RESULTS.read_text())[name]["rows"]), flush=True)


if __name__ == "__main__":
    main()
