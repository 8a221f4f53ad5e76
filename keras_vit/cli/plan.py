"""`keras-vit plan`: whether a training step fits into the memory of TPUs, by compiling it for them."""

import json
import os
import subprocess
import sys
import tempfile

from _keras_vit_cli import settings
from keras_vit.cli.report import check_output, report, text_table
from keras_vit.messages import one_line
from keras_vit.training.named_recipes import find_recipe
from keras_vit.variants import parse_variant

# The options that are fields of the recipe.
FIELDS = ("batch_size", "dtype", "accumulation_steps")
JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
# No TPU is looked for or locked.
LIBTPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
MIB = 2**20
MARK = "keras-vit plan: "  # begins the lines of the other process that are for this one
LONGEST = 10


def run(args):
    check_output(args)
    if args.model:
        parse_variant(args.model)  # before JAX is started
    find_recipe(args.recipe)
    result = _in_jax(vars(args))
    report(args, result, as_text(result))


def _in_jax(options):
    """The plan, which a process of its own makes, with JAX as Keras's backend."""
    command = [sys.executable, "-m", "keras_vit.cli.plan", json.dumps(options)]
    with tempfile.TemporaryFile("w+") as log:  # libtpu warns that there is no TPU.
        child = subprocess.Popen(
            command, env={**os.environ, **JAX, **LIBTPU}, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with child:
            for line in child.stdout:
                if not line.startswith(MARK):  # a line of a library
                    continue
                kind, value = json.loads(line.removeprefix(MARK))
                if kind == "note":
                    print(value, file=sys.stderr, flush=True)
                elif kind == "error":
                    raise ValueError(value)
                else:
                    return value
        log.seek(0)
        raise RuntimeError(f"the compiler ended with status {child.returncode}: {log.read()[-2000:]}")


def _plan(options):
    """The plan of the options, and the smallest change that fits if it does not: in the other process."""
    from keras_vit.training.plan import plan, smaller

    changes = settings(options["set"]) | {name: options[name] for name in FIELDS if options[name]}
    if options["remat"]:
        changes["remat"] = True
    recipe = find_recipe(options["recipe"]).with_changes(**changes)
    arguments = {
        name: options[name] for name in ("image_size", "num_classes", "objective", "target", "extrapolate")
    }

    def compiled(recipe, strategy, words=""):
        def note(line):
            _say("note", f"{words}{line}")

        return plan(options["model"], recipe, options["topology"], strategy, report=note, **arguments)

    result = compiled(recipe, options["strategy"])
    tried = []
    for words, changes, strategy in smaller(result):
        if result["fits"] or (tried and tried[-1]["fits"]):
            break
        changed = compiled(recipe.with_changes(**changes), strategy, f"{words}: ")
        tried.append({"change": words, "fits": changed["fits"], "memory": changed["memory"]})
    return {**result, "tried": tried}


def _say(kind, value):
    print(f"{MARK}{json.dumps([kind, value])}", flush=True)


def as_text(found):
    """A plan as text.

    Args:
        found: What `keras_vit.training.plan.plan` returns, with `tried`.
    """
    s, memory = found["settings"], found["memory"]
    height, width = s["image_size"]
    images = s["batch_size"] // s["mesh"]["batch"]
    mesh = "×".join(str(size) for size in s["mesh"].values())
    trained = f"{s['num_classes']} classes" if s["objective"] == "classify" else s["objective"]
    what = [
        f"{s['model'] or 'the model of the recipe'}, {height}×{width} px, {trained}",
        f"batch {s['batch_size']} on {found['chips']} chips ({s['strategy']} {mesh}, {images} images each)",
        f"{s['dtype']}, {s['optimizer']}, remat {'on' if s['remat'] else 'off'}",
        f"{s['accumulation_steps']} micro-batch{'es' if s['accumulation_steps'] > 1 else ''}",
    ]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    blocks = s["extrapolated_from_blocks"]
    how = f"extrapolated from {' and '.join(map(str, blocks))} blocks" if blocks else "whole program"
    lines = [
        "; ".join(what),
        f"the compiler's estimate ({how}; {versions}); nothing was run",
        text_table([(name, round(size / MIB)) for name, size in memory.items()], ("memory of a chip", "MiB")),
        found["refusal"] or ("it fits" if found["fits"] else "it does not fit"),
    ]
    flops = f"TFLOPs of a step on a chip: {found['flops'] / 1e12:.3g} in matmuls and convolutions"
    if found["peak_flops"]:
        flops += f", {1000 * found['flops'] / found['peak_flops']:.1f} ms at the chip's peak in bfloat16"
    lines.append(flops)
    if found["collectives"]:
        rows = [
            (kind, row["count"], round(row["bytes"] / MIB, 1)) for kind, row in found["collectives"].items()
        ]
        lines.append(text_table(rows, ("collective of a chip", "count", "MiB")))
    elif not found["refusal"]:
        lines.append("no collectives")
    if found["operations"]:
        total = sum(row["cycles"] for row in found["operations"].values())
        rows = [
            (name, row["count"], round(100 * row["cycles"] / total, 1))
            for name, row in [*found["operations"].items()][:LONGEST]
        ]
        lines.append(text_table(rows, (f"longest of {total:,} estimated cycles", "count", "%")))
    lines += [_trial(each) for each in found["tried"]]
    if found["tried"] and not found["tried"][-1]["fits"]:
        lines.append("no change that was compiled fits: use more chips or smaller batches")
    return "\n\n".join(lines)


def _trial(tried):
    verdict = "fits" if tried["fits"] else "does not fit"
    return f"{tried['change']}: {verdict}, {round(tried['memory']['total'] / MIB):,} MiB (compiled)"


if __name__ == "__main__":
    try:
        _say("plan", _plan(json.loads(sys.argv[1])))
    except (ValueError, ImportError) as error:
        _say("error", one_line(error))
