"""Read what XLA's text of a compiled program says about its operations and collectives."""

import collections
import math
import re

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# "  ROOT %name = shape operation(operands), attributes"; a shape may contain spaces, an operation does not.
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(\S+) = (.+?) ([a-z][a-z0-9-]*)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?(\S+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([^\s,}]+)")
_NO_KERNELS = ("bitcast", "call", "constant", "get-tuple-element", "parameter", "tuple", "while")
_SCOPE = re.compile(r"jit\(\w+\)/|closed_call/|while/body/|while/cond/")


def computations(text):
    """The computations of a program.

    Args:
        text: An HLO module, as `jax.stages.Compiled.as_text` returns it.

    Returns:
        (name of the entry, dict from names to lists of (name, shape, operation, rest of the line)).
    """
    entry, by_name, current = None, {}, []
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            current = by_name[match[2]] = []
            entry = match[2] if match[1] else entry
        elif match := _INSTRUCTION.match(line):
            current.append(match.groups())
    return entry, by_name


def shape_bytes(shape):
    """The bytes of an array or of each array of a tuple, without the padding of its layout, in a list.

    >>> shape_bytes("(f32[16,8]{1,0:T(8,128)}, bf16[4]{0}, pred[])")
    [512, 8, 1]
    """
    sizes = []
    for dtype, sides in re.findall(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\]", shape):
        bits = re.search(r"\d+|$", dtype)[0]  # "pred" has none; other digits follow in "f8e4m3fn".
        width = max(int(bits or 8) // 8, 1)
        sizes.append(math.prod(int(side) for side in sides.split(",") if side) * width)
    return sizes


def runs(name, by_name, times=1, within=True):
    """Each instruction of a computation that runs, and the number of times: in a loop's body, of the loop.

    Args:
        name, by_name: The computation, and all of the program, as from `computations`.
        times: The number of times that the computation runs.
        within: Whether to include the instructions of called computations, such as fusions.
    """
    for instruction in by_name.get(name, ()):
        yield instruction, times
        _, _, operation, rest = instruction
        if operation == "while":
            body = re.search(r"body=%?([^\s,}]+)", rest)[1]
            yield from runs(body, by_name, times * _trips(rest, by_name), within)
        elif operation == "call" or (within and operation != "reduce"):
            for called in _CALLED.findall(rest):
                yield from runs(called, by_name, times)


def _trips(rest, by_name):
    """How often a loop runs: XLA's count, or the constant that its condition compares with."""
    if known := re.search(r"known_trip_count\W+n\W+(\d+)", rest):
        return int(known[1])
    condition = by_name[re.search(r"condition=%?([^\s,}]+)", rest)[1]]
    constants = [
        int(m[1])
        for *_, operation, text in condition
        if operation == "constant" and (m := re.match(r"(\d+)\)", text))
    ]
    return max(constants, default=1)


def collectives(text):
    """The operations by which chips exchange data.

    Args:
        text: As for `computations`.

    Returns:
        dict from kinds to dicts of `count` and `bytes`, the size of the results on one chip.

    Example:
        >>> module = '''
        ... ENTRY %main (x: f32[8]) -> f32[16] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %gathered = f32[16]{0} all-gather(%x), dimensions={0}
        ... }'''
        >>> collectives(module)
        {'all-gather': {'count': 1, 'bytes': 64}}
    """
    entry, by_name = computations(text)
    kinds = collections.defaultdict(lambda: {"count": 0, "bytes": 0})
    # XLA for TPUs writes a reduce-scatter as a fusion of an all-reduce and a slice.
    inside = {
        id(instruction): shape
        for instructions in by_name.values()
        for _, shape, operation, rest in instructions
        if operation == "fusion"
        for called in _CALLED.findall(rest)
        if "reduce-scatter" in called
        for instruction in by_name[called]
    }
    for instruction, times in runs(entry, by_name):
        _, shape, operation, _ = instruction
        kind, start, _ = operation.partition("-start")
        if kind not in COLLECTIVES:
            continue
        if id(instruction) in inside:
            kind, shape, start = "reduce-scatter", inside[id(instruction)], ""
        sizes = shape_bytes(shape)
        if start and kind in ("all-gather", "collective-permute"):
            sizes = sizes[1:2]  # The others are the operand and what the runtime keeps.
        kinds[kind]["count"] += times
        kinds[kind]["bytes"] += times * sum(sizes)
    return dict(sorted(kinds.items()))


def operations(text):
    """The compiler's estimate of the cycles of each group of operations, the longest first.

    Operations of the same layer in different blocks are one group.

    Args:
        text: As for `computations`.

    Returns:
        dict from names to dicts of `count` and `cycles`.
    """
    entry, by_name = computations(text)
    groups = collections.defaultdict(lambda: {"count": 0, "cycles": 0})
    for (_, _, operation, rest), times in runs(entry, by_name):
        cycles = re.search(r'"estimated_cycles":"(\d+)"', rest)
        if cycles and int(cycles[1]):
            named = re.search(r'op_name="([^"]*)"', rest)
            group = groups[operation_name(named[1] if named else operation)]
            group["count"] += times
            group["cycles"] += times * int(cycles[1])
    return dict(sorted(groups.items(), key=lambda row: -row[1]["cycles"]))


def kernels(text):
    """The number of each kind of kernel that a program starts, the most frequent first.

    Args:
        text: As for `computations`.

    Returns:
        dict from names to dicts of `count`. A call of a library has the name of its function.

    Example:
        >>> module = '''
        ... ENTRY %main (x: bf16[8]) -> bf16[8] {
        ...   %x = bf16[8]{0} parameter(0)
        ...   %y = bf16[8]{0} fusion(%x), kind=kLoop, calls=%fused
        ...   ROOT %z = bf16[8]{0} custom-call(%y), custom_call_target="__cublas$gemm"
        ... }'''
        >>> kernels(module)
        {'fusion': {'count': 1}, 'cublas$gemm': {'count': 1}}
    """
    counts = collections.Counter()
    for (_, _, operation, rest), times in runs(*computations(text), within=False):
        if operation not in _NO_KERNELS and not operation.endswith("-done"):
            library = re.search(r'custom_call_target="_*([^"]+)"', rest)
            counts[library[1] if library else operation.removesuffix("-start")] += times
    return {name: {"count": count} for name, count in counts.most_common()}


def operation_name(op_name):
    """What an operation belongs to, from JAX's name of it: its phase and layer.

    >>> operation_name("jit(train_step)/transpose(jvp(encoder_block_3))/mlp/dense_0/dot_general")
    'backward encoder_block_*/mlp/dense_0/dot_general'
    >>> operation_name("jit(train_step)/adam_w_1/sub"), operation_name("copy")
    ('update adam_w/sub', 'copy')
    """
    path = re.sub(
        r"(?:transpose|jvp|vmap|checkpoint|rematted_computation)\b[(/]?|[()]", "", _SCOPE.sub("", op_name)
    )
    path = re.sub(r"(?:encoder_block_\d+/)+", "encoder_block_*/", path.strip("/"))
    if "rematted_computation" in op_name:
        return f"again {path}"
    if "jvp(" in op_name:
        return ("backward " if "transpose(" in op_name else "forward ") + path
    # Keras numbers the optimizers of a process.
    return "update " + re.sub(r"^(\w+?)_\d+/", r"\1/", path) if "/" in op_name else path
