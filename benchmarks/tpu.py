"""Training steps compiled for a TPU that is not there; writes TPU.json and TPU.md.

    python benchmarks/tpu.py [--images 64] [--remat] [--blocks 12] [--big_vision FOLDER]

compiles the step of a ViT on Keras's JAX backend, or with --big_vision that of the ViT in a checkout of
big_vision, and adds it to the page. Needs jax, libtpu and for big_vision flax and optax.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import time
import types

from report import add_program

HERE = pathlib.Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "TPU.json", HERE / "TPU.md"
CLOCK = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}  # cycles per second
MIB = 2**20
BLOCK = re.compile(r"encoder_?block_(\d+)")


def instructions(text):
    """Instructions of an optimized HLO module that run one after the other, but not those within fusions.

    Returns:
        A list of (operation, times that it runs, estimated cycles of all of them, its name in the program).
    """
    from keras_vit.training.hlo import computations, runs

    listed = []
    for (_, _, operation, rest), times in runs(*computations(text), within=False):
        if operation != "while":  # The instructions of its body are listed.
            cycles = re.search(r'"estimated_cycles":"(\d+)"', rest)
            source = re.search(r'op_name="([^"]*)"', rest)
            cost, source = times * int(cycles[1]) if cycles else 0, source[1] if source else ""
            listed.append((operation, times, cost, source))
    return listed


def measured(lowered, topology, images):
    """Compile a lowered step; what the compiler says of it."""
    begin, cpu = time.perf_counter(), time.process_time()
    compiled = lowered.compile()
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    text = compiled.as_text()
    listed, memory = instructions(text), compiled.memory_analysis()
    if folder := os.environ.get("HLO_FOLDER"):
        pathlib.Path(folder, f"{os.getpid()}.hlo").write_text(text)
    counts, cycles = collections.Counter(), collections.Counter()
    for operation, times, cost, _ in listed:
        counts[operation] += times
        cycles[operation] += cost
    clock = CLOCK[topology.partition(":")[0]]
    blocks = collections.Counter()
    for _, _, cost, source in listed:
        number = BLOCK.search(source)
        blocks[number[1] if number else "outside"] += 1e3 * cost / clock
    longest = sorted(listed, key=lambda row: -row[2])[:12]
    return {
        "milliseconds": 1e3 * sum(cycles.values()) / clock,
        "blocks": blocks,
        "copy_milliseconds": 1e3 * cycles["copy"] / clock,
        "gflop": compiled.cost_analysis()["flops"] / 1e9,
        "gigabytes": compiled.cost_analysis()["bytes accessed"] / 1e9,
        "peak": memory.peak_memory_in_bytes / MIB,
        "temporary": memory.temp_size_in_bytes / MIB,
        "arguments": memory.argument_size_in_bytes / MIB,
        "images": images,
        "copies": counts["copy"],
        "fusions": counts["fusion"],
        "convolutions": {
            dtype: len(re.findall(rf"= {dtype}\[[^ ]* convolution", text)) for dtype in ("bf16", "f32")
        },
        "compile_seconds": seconds,
        "compile_cpu_seconds": cpu_seconds,
        "longest": [[1e3 * cost / clock, operation, source] for operation, _, cost, source in longest],
    }


def shardings(topology):
    """The number of chips, and the shardings of weights and of images."""
    import jax
    import numpy as np
    from jax.experimental import topologies

    one_chip = {"chips_per_host_bounds": (1, 1, 1)} if topology.endswith(":1x1") else {}
    chips = topologies.get_topology_desc(platform="tpu", topology_name=topology, **one_chip).devices
    mesh = jax.sharding.Mesh(np.array(chips), ("batch",))
    specs = (jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("batch"))
    return len(chips), *(jax.sharding.NamedSharding(mesh, spec) for spec in specs)


def batch(images, image_size, sharding):
    import jax

    shapes = (((images, image_size, image_size, 3), "float32"), ((images,), "int32"))
    return [jax.ShapeDtypeStruct(*shape, sharding=sharding) for shape in shapes]


def placed(tree, sharding):
    """The arrays' shapes, on all devices."""
    import jax

    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def keras_vit_step(options):
    """Our step: mixed_bfloat16, the recipe `finetune` (SGD with a bfloat16 momentum, clipped to norm 1)."""
    import jax
    import keras

    from keras_vit import VisionTransformer
    from keras_vit.training import compile_model

    keras.config.set_dtype_policy("mixed_bfloat16")
    chips, everywhere, by_image = shardings(options.topology)
    depth = {} if options.blocks is None else {"num_layers": options.blocks}
    model = VisionTransformer.from_variant(options.variant, num_classes=1000, **depth)
    compile_model(model, "finetune", total_steps=10_000, remat=options.remat)
    model.optimizer.build(model.trainable_variables)
    parts = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = [[variable.value for variable in part] for part in (*parts, model.metrics_variables)]
    images = batch(options.images * chips, 224, by_image)
    return jax.jit(model.train_step, donate_argnums=0).lower(tuple(placed(state, everywhere)), images)


def big_vision_step(options):
    """The step of big_vision's `vit` with the same weights, types and optimizer."""
    sys.path.insert(0, options.big_vision)
    for name in ("big_vision.utils", "big_vision.models.common"):  # for files, of which there are none here
        sys.modules[name] = types.ModuleType(name)
    import big_vision
    import big_vision.models

    big_vision.utils = sys.modules["big_vision.utils"]
    big_vision.models.common = sys.modules["big_vision.models.common"]
    import jax
    import jax.numpy as jnp
    import optax
    from big_vision.models import vit

    chips, everywhere, by_image = shardings(options.topology)
    depth = {} if options.blocks is None else {"depth": options.blocks}
    sizes = {**vit.decode_variant(options.variant), **depth}
    # Its blocks are recomputed where they are scanned.
    model = vit._Model(1000, **sizes, pool_type="tok", dtype_mm="bfloat16", scan=options.remat)
    images, labels = batch(options.images * chips, 224, by_image)
    weights = jax.eval_shape(lambda key, x: model.init(key, x)["params"], jax.random.key(0), images)
    clip, rate = optax.clip_by_global_norm(1.0), optax.scale_by_learning_rate(0.03)
    optimizer = optax.chain(clip, optax.trace(0.9, accumulator_dtype=jnp.bfloat16), rate)

    def step(state, images, labels):
        def loss(weights):
            logits, _ = model.apply({"params": weights}, images, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        weights, slots = state
        value, gradient = jax.value_and_grad(loss)(weights)
        updates, slots = optimizer.update(gradient, slots, weights)
        return value, (optax.apply_updates(weights, updates), slots)

    state = placed((weights, jax.eval_shape(optimizer.init, weights)), everywhere)
    return jax.jit(step, donate_argnums=0).lower(state, images, labels)


def versions(options):
    """Package → version, and big_vision's commit."""
    from machine import versions

    packages = ["keras_vit", "keras", "jax", "libtpu"]
    if not options.big_vision:
        return versions(packages)
    git = ["git", "-C", options.big_vision, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or options.commit
    return versions([*packages[2:], "flax", "optax"]) | {"big_vision": commit}


INTRODUCTION = """\
# Training steps compiled for TPUs

`python benchmarks/tpu.py` compiles ahead of time, without a TPU. **All figures are the compiler's
estimates, which no run has confirmed.** The time is the sum of `estimated_cycles` in the program, at
1.5 GHz for v5e, without custom kernels and as if nothing ran at the same time. Figures are for one chip.
"""
COLUMNS = {
    "estimated ms": lambda row: f"{row['milliseconds']:.1f}",
    "of a block": lambda row: f"{row['blocks']['0']:.2f}" if "0" in row["blocks"] else "–",
    "GFLOP": lambda row: f"{row['gflop']:,.0f}",
    "GB": lambda row: f"{row['gigabytes']:.1f}",
    "peak MiB": lambda row: f"{row['peak']:,.0f}",
    "temporary MiB": lambda row: f"{row['temporary']:,.0f}",
    "copies": lambda row: f"{row['copies']} ({row['copy_milliseconds']:.1f} ms)",
    "float32 convolutions": lambda row: row["convolutions"]["f32"],
    "compile CPU s": lambda row: f"{row['compile_cpu_seconds']:.0f}",
}


def report(results):
    """The page."""
    programs = results["programs"]
    lines = [
        INTRODUCTION,
        f"| program | {' | '.join(COLUMNS)} |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in programs.items():
        cells = " | ".join(str(column(row)) for column in COLUMNS.values())
        lines.append(f"| {name} | {cells} |")
    used = {}
    for row in programs.values():
        for name, version in row["versions"].items():
            used.setdefault(name, []).append(version)
    listed = ", ".join(f"{name} {' and '.join(sorted(set(found)))}" for name, found in used.items())
    lines += ["", f"{listed}.", "", *results["notes"]]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--blocks", type=int, help="by default the variant's")
    parser.add_argument("--images", type=int, default=64, help="of each chip")
    parser.add_argument("--remat", action="store_true", help="recompute blocks in the backward pass")
    parser.add_argument("--big_vision", help="a checkout, whose step is compiled instead")
    parser.add_argument("--commit", default="unknown", help="its commit, if git does not know it")
    options = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    lowered = (big_vision_step if options.big_vision else keras_vit_step)(options)
    row = measured(lowered, options.topology, options.images) | {"versions": versions(options)}
    name = f"{'big_vision' if options.big_vision else 'keras_vit'}, {options.variant}, {options.topology}, "
    name += f"{options.images} images" + f", {options.blocks} blocks" * (options.blocks is not None)
    name += ", remat" * options.remat
    add_program(RESULTS, PAGE, name, row, report)


if __name__ == "__main__":
    main()
