"""`keras-vit plan`: whether a training step fits into the memory of TPUs or GPUs, by compiling it."""

import json
import os
import sys
import tempfile

from keras_vit import names
from keras_vit.cli import options
from keras_vit.cli.options import positive_int
from keras_vit.cli.report import report, text_table
from keras_vit.messages import one_line
from keras_vit.variants import parse_variant

# The options that are fields of the recipe.
FIELDS = ("batch_size", "dtype", "accumulation_steps", "remat")
JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
# No TPU is looked for or locked.
LIBTPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
MIB = 2**20
MARK = "keras-vit plan: "  # begins the lines of the other process that are for this one
LONGEST = 10


def add_arguments(add):
    add("--model", help="variant such as B/16; not needed with a recipe with sizes")
    topology = "TPU chips and their grid, or GPUs: v5e:4x4, v6e:8x8, gpu:a100, gpu:h100:8"
    add("--topology", required=True, help=topology)
    add("--batch_size", type=positive_int, help="images per step, on all chips (default: the recipe's)")
    add("--strategy", default="auto", help="auto (data_parallel), fsdp, model_parallel[=AxB] or single")
    add("--recipe", default="pretrain_imagenet", help="whose training step is compiled")
    add("--dtype", help=f"{options.either(names.RUN_DTYPES)}; auto is by the chip (default: the recipe's)")
    add("--remat", action="store_true", help="recompute the blocks' activations in the backward pass")
    add("--accumulation_steps", type=positive_int, help="micro-batches (default: the recipe's)")
    add("--image_size", type=options.image_size, help=f"{options.SIZE} (default: the recipe's)")
    add("--num_classes", type=positive_int, default=1000, help="size of the head")
    options.objective(add)
    options.changes(add, "FIELD", "any field of the recipe")
    add("--extrapolate", action="store_true", help="compile 2 and 4 blocks only, and extrapolate to all")
    largest = "find the largest batch that fits, without and with remat"
    add("--largest_batch", action="store_true", help=largest)
    options.json(add)


def needs_keras(args):
    return False  # Another process compiles, with JAX.


def run(args):
    if args.model:
        parse_variant(args.model)  # before JAX is started
    result = _in_jax(vars(args))
    report(args, result, as_text(result))


def _in_jax(arguments):
    """The plan, which a process of its own makes, with JAX as Keras's backend."""
    import subprocess

    command = [sys.executable, "-m", "keras_vit.cli.plan", json.dumps(arguments)]
    with tempfile.TemporaryFile("w+") as log:  # The compilers warn that there is no accelerator.
        child = subprocess.Popen(
            command, env={**os.environ, **JAX, **LIBTPU}, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with child:
            for line in child.stdout:
                if not line.startswith(MARK):  # a line of a library
                    continue
                subject, value = json.loads(line.removeprefix(MARK))
                if subject == "note":
                    print(value, file=sys.stderr, flush=True)
                elif subject == "error":
                    raise ValueError(value)
                else:
                    return value
        log.seek(0)
        raise RuntimeError(f"the compiler ended with status {child.returncode}: {log.read()[-2000:]}")


def _plan(arguments):
    """The plan of the arguments, and the smallest change that fits if it does not: in the other process."""
    from keras_vit.training.named_recipes import find_recipe
    from keras_vit.training.plan import largest_batch, plan, smaller

    changes = options.changed_fields(arguments, FIELDS)
    recipe = find_recipe(arguments["recipe"]).with_changes(**changes)
    names = ("image_size", "num_classes", "objective", "target", "extrapolate")
    names = {name: arguments[name] for name in names}

    def compiled(recipe, strategy, words=""):
        def note(line):
            _say("note", f"{words}{line}")

        return plan(arguments["model"], recipe, arguments["topology"], strategy, report=note, **names)

    result = compiled(recipe, arguments["strategy"])
    if arguments["largest_batch"]:
        unit = result["settings"]["mesh"]["batch"] * recipe.accumulation_steps

        def largest(remat):
            def total(batch):
                changed = recipe.with_changes(batch_size=batch, remat=remat)
                words = f"batch {batch}{', remat' * remat}: "
                return compiled(changed, arguments["strategy"], words)["memory"]["total"]

            return largest_batch(total, result["memory"]["available"], unit)

        return {
            **result,
            "tried": [],
            "largest_batch": {"remat off": largest(False), "remat on": largest(True)},
        }
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
    memory, versions = found["memory"], ", ".join(f"{name} {x}" for name, x in found["versions"].items())
    blocks = found["settings"]["extrapolated_from_blocks"]
    how = f"extrapolated from {' and '.join(map(str, blocks))} blocks" if blocks else "whole program"
    lines = [
        _settings(found["settings"], found["chips"]),
        f"the compiler's estimate ({how}; {versions}); nothing was run",
        text_table([(name, round(size / MIB)) for name, size in memory.items()], ("memory of a chip", "MiB")),
        found["refusal"] or ("it fits" if found["fits"] else "it does not fit"),
    ]
    flops = f"TFLOPs of a step on a chip: {found['flops'] / 1e12:.3g} in matmuls and convolutions"
    if found["peak_flops"]:
        flops += f", {1000 * found['flops'] / found['peak_flops']:.1f} ms at the chip's peak in 16 bits"
    lines.append(flops)
    lines += _tables_of_operations(found)
    if "largest_batch" in found:
        rows = [(name, batch or "none fits") for name, batch in found["largest_batch"].items()]
        lines.append(text_table(rows, ("largest batch that fits", "images")))
    lines += map(_trial, found["tried"])
    if found["tried"] and not found["tried"][-1]["fits"]:
        lines.append("no change that was compiled fits: use more chips or smaller batches")
    return "\n\n".join(lines)


def _tables_of_operations(found):
    """Tables of the collectives, and of the longest operations or the kernels."""
    if found["collectives"]:
        rows = [
            (kind, row["count"], round(row["bytes"] / MIB, 1)) for kind, row in found["collectives"].items()
        ]
        yield text_table(rows, ("collective of a chip", "count", "MiB"))
    elif not found["refusal"]:
        yield "no collectives"
    if found["operations"]:
        total = sum(row["cycles"] for row in found["operations"].values())
        rows = [
            (name, row["count"], round(100 * row["cycles"] / total, 1))
            for name, row in [*found["operations"].items()][:LONGEST]
        ]
        yield text_table(rows, (f"longest of {total:,} estimated cycles", "count", "%"))
    elif found["kernels"]:
        rows = [(name, row["count"]) for name, row in found["kernels"].items()]
        yield text_table(rows, ("kernels", "count"))


def _settings(s, chips):
    """The settings of a plan in a line."""
    height, width = s["image_size"]
    images = s["batch_size"] // s["mesh"]["batch"]
    mesh = "×".join(map(str, s["mesh"].values()))
    trained = f"{s['num_classes']} classes" if s["objective"] == "classify" else s["objective"]
    parts = [
        f"{s['model'] or 'the model of the recipe'}, {height}×{width} px, {trained}",
        f"batch {s['batch_size']} on {chips} chips ({s['strategy']} {mesh}, {images} images each)",
        f"{s['dtype']}, {s['optimizer']}, remat {'on' if s['remat'] else 'off'}",
        f"{s['accumulation_steps']} micro-batch{'es' if s['accumulation_steps'] > 1 else ''}",
    ]
    return "; ".join(parts)


def _trial(tried):
    verdict = "fits" if tried["fits"] else "does not fit"
    return f"{tried['change']}: {verdict}, {round(tried['memory']['total'] / MIB):,} MiB (compiled)"


if __name__ == "__main__":
    try:
        _say("plan", _plan(json.loads(sys.argv[1])))
    except (ValueError, ImportError) as error:
        _say("error", one_line(error))
