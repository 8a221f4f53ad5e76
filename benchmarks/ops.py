"""The time of a step by operation, from TensorFlow's profiler; Markdown on standard output.

    python benchmarks/ops.py --variant S/16 --task training --precision float32 --batch 16 [--jit]

Concurrent operations are each counted, and the fractions are of their sum; time without an operation is the
framework's. With --jit the operations are XLA's, whose fusions combine several.
"""

import argparse
import collections
import dataclasses
import glob
import os
import re
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from machine import circumstances
from report import machine_text, table
from systems import SYSTEMS, Case

STEPS = 3
# The kind of an operation is the first whose pattern matches "layer's path|operation".
KINDS = {
    "attention matmuls": r"attention(_\d+)?/MatMul[^|]*\|\w*MatMul",
    "other matmuls": r"\|\w*(MatMul|Conv2D|Einsum)|\|(dot|convolution|conv)\b",
    "softmax": r"[Ss]oftmax(?!_cross_entropy)",
    "LayerNorm": r"norm(_\d+)?/",
    "GELU": r"mlp(_\d+)?/(?!dense)|[Gg]elu|\|(Tanh|Erf)",
    "optimizer": r"optimizer|sgd|clip|global_norm|L2Loss|Apply|Assign|[Ff]inetune",
    "transposes": r"\|.*[Tt]ranspose",
    "copies and casts": r"\|(Cast|Concat|\w*Slice|Pack|Pad|Tile|Split|[Cc]opy|[Bb]roadcast|convert|bitcast)",
    "sums": r"\|(Sum|Mean|BiasAddGrad|Max|reduce)",
    "elementwise": r"\|_?\w*(Add|Mul|Sub|RealDiv|Neg|Pow|Square|Rsqrt|Select|Exp|Tanh)",
    "fusions": r"fusion",
    "input": r"Iterator|Dataset",
}
OTHER = "others"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for field in dataclasses.fields(Case):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    parser.add_argument("--system", choices=("keras_vit", "KerasHub"), default="keras_vit")
    parser.add_argument("--most", type=int, default=15, help="number of operations to list")
    args = parser.parse_args()
    case = Case(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Case)})
    name = f"{args.system} {'XLA' if args.jit else 'graph'}"
    about = circumstances()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    wall, events = profile(SYSTEMS[name].make(case, None))
    print(f"## {name}: {case}\n\n{machine_text(about)}\n\n{report(wall, events, case, args.most)}")


def profile(step):
    """Seconds per step, and (operation, begin, end) in seconds of all operations of STEPS steps."""
    import tensorflow as tf

    for _ in range(2):
        step()
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        wall = (time.perf_counter() - begin) / STEPS
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")
        return wall, operations(path)


def operations(path):
    """(operation, begin, end) of each operation in a profile.

    An operation of a graph is "layer/path|Type"; one of XLA is "|name" without its number.
    """
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    with open(path, "rb") as file:
        space.ParseFromString(file.read())
    found = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                where, _, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
                stats = {plane.stat_metadata[stat.metadata_id].name: stat for stat in event.stats}
                if where and (re.match("_(Mkl|Fused)", kind) or hasattr(tf.raw_ops, kind)):
                    name = f"{where}|{kind}"
                elif "hlo_op" in stats:
                    name = "|" + re.sub(r"[.\d]+$", "", kind)
                else:
                    continue
                begin = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                found.append((name, begin, begin + event.duration_ps / 1e12))
    return found


def kind_of(operation):
    """The kind of an operation, a row of the table.

    >>> kind_of("vit/encoder_block_0/attention/MatMul|BatchMatMulV2")
    'attention matmuls'
    """
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, operation)), OTHER)


def busy(events):
    """Seconds during which at least one event ran."""
    total, until = 0.0, 0.0
    for _, begin, end in sorted(events, key=lambda event: event[1]):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def report(wall, events, case, most):
    """The tables of a profile: time by kind, and the operations with the most time."""
    kinds, single, counts = collections.Counter(), collections.Counter(), collections.Counter()
    for name, begin, end in events:
        kinds[kind_of(name)] += end - begin
        operation = f"{name.rpartition('|')[2]} ({kind_of(name)})"
        single[operation] += end - begin
        counts[operation] += 1
    total, working = sum(kinds.values()), busy(events) / STEPS
    lines = [
        (kind, f"{seconds / total * working * 1e3:.2f}", f"{seconds / total * working / wall:.1%}")
        for kind, seconds in kinds.most_common()
    ]
    idle = max(0.0, wall - working)
    lines.append(("framework (no operation running)", f"{idle * 1e3:.2f}", f"{idle / wall:.1%}"))
    gflops = case.gflops * case.batch / wall
    return "\n\n".join(
        [
            f"{wall * 1e3:.1f} ms per step, {gflops:.0f} GFLOP/s.",
            table(("kind", "ms per step", "fraction"), lines),
            table(
                ("operation", "ms per step, summed", "calls per step"),
                [
                    (operation, f"{seconds / STEPS * 1e3:.2f}", f"{counts[operation] / STEPS:.0f}")
                    for operation, seconds in single.most_common(most)
                ],
            ),
        ]
    )


if __name__ == "__main__":
    main()
