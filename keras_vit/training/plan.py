"""Compile a run's training step for TPUs or GPUs that this machine does not have, and measure the program.

Needs JAX as Keras's backend, and the compiler of libtpu or of JAX's CUDA plugin, which run on any machine.
No weight is allocated: variables have shapes only, in a `keras.StatelessScope`. Keras would initialize them
at the end of the next other scope, so a process that has called `plan` should do nothing else.
"""

import contextlib
import dataclasses
import math
import time
import types

import keras

import keras_vit
from keras_vit.engine.sharding import BATCH, Sharded, check_heads, parse_strategy
from keras_vit.layers.xla_form import traced_for
from keras_vit.models.backbones import backbone
from keras_vit.training.building import build_model
from keras_vit.training.chips import chip_dtype, find_chips, message_bytes
from keras_vit.training.compiling import compile_by
from keras_vit.training.hlo import collectives, kernels, operations
from keras_vit.training.run_config import RunConfig

SHORT = (2, 4)  # the depths from which plans of deeper models are extrapolated


def plan(
    model,
    recipe,
    topology,
    strategy="auto",
    *,
    image_size=None,
    num_classes=1000,
    objective="classify",
    target="mean_color",
    extrapolate=False,
    report=None,
):
    """Compile the training step of a run for TPUs or GPUs, and return what the compiler says about it.

    Args:
        model: A variant such as "B/16"; None for the sizes in the recipe.
        recipe: `Recipe`.
        topology: A kind of TPU and the sides of its grid of chips, such as "v5e:4x4" or "v5p:4x4x4"; or a GPU
            and their number in a machine, such as "gpu:a100" or "gpu:a100:8".
        strategy: As for `keras_vit.engine.sharding.parse_strategy`.
        image_size: (height, width); None: the recipe's, or 224.
        num_classes: Size of the head.
        objective, target: As for `RunConfig`.
        report: A function of a line, called before each compilation, which takes minutes.
        extrapolate: Whether to compile models of 2 and 4 blocks instead, and to add the difference for each
            further block: minutes instead of hours for large models. Weights and optimizer state are those
            of the whole model.

    Returns:
        dict of `versions`, `settings`, `chips`, `memory` (bytes on a chip of `weights`, `optimizer`, `batch`,
        `activations` with gradients and the program itself, their `total`, and what is `available`), `fits`,
        `flops` (on a chip, of matmuls and convolutions), `peak_flops`, `collectives`, `operations` with their
        cycles on a TPU, `kernels`, `seconds` of compilation, and `refusal`, the compiler's reason if the
        program does not fit, or None.

    Raises:
        ValueError: on another backend than JAX; for a recipe of images and texts, an unknown variant or
            topology, a batch that the chips do not divide, or a strategy that the model or the chips do not
            allow.
        ImportError: if the compiler is not installed.

    Example:
        >>> plan("B/16", find_recipe("augreg"), "v5e:4x4")["fits"]  # doctest: +SKIP
        True
    """
    if keras.backend.backend() != "jax":
        raise ValueError(f"a plan needs KERAS_BACKEND=jax; got {keras.backend.backend()!r}")
    config = RunConfig("", recipe, model, image_size=image_size, objective=objective, target=target)
    config = config.with_dtype(chip_dtype(topology))
    if config.task.reads_texts:
        raise ValueError(
            "expected a recipe without image_text; got one, and without a tokenizer the size of its text "
            "tower is unknown"
        )
    if recipe.patch_sizes is not None:
        raise ValueError(
            f"expected a recipe without patch_sizes, since a plan is of one program; got {recipe.patch_sizes}"
        )
    chips = find_chips(topology)
    step = _Step(config, num_classes, chips, strategy, report or (lambda line: None))
    built = step.build()
    memory = {"weights": _held(built.state[0] + built.state[1]), "optimizer": _held(built.state[2])}
    memory["batch"] = _held(keras.tree.flatten(built.batch))
    if not extrapolate:
        measured = step.compile(built)
    else:
        depth = backbone(built.model).num_layers or 0
        if depth <= max(SHORT):
            raise ValueError(f"expected more than {max(SHORT)} blocks to extrapolate; got {depth}")
        measured = _line(*(step.compile(step.build(num_layers=blocks)) for blocks in SHORT), depth)
    total = measured.pop("total")
    memory |= {"activations": total - sum(memory.values()), "total": total}
    memory["available"] = chips.available
    return {
        "versions": versions(chips.packages),
        "settings": step.settings(built, extrapolate),
        "chips": step.count,
        "memory": memory,
        "fits": not measured["refusal"] and total <= chips.available,
        "flops": step.matmul_flops(built) / step.count,
        "peak_flops": chips.peak_flops,
        **measured,
    }


def versions(packages):
    """The versions of the packages that determine a plan, the compiler's `packages` among them."""
    from importlib import metadata

    installed = {name: metadata.version(name) for name in ("keras", "jax", *packages)}
    return {"keras_vit": keras_vit.__version__, **installed}


class _OnChips(Sharded):
    """The distribution of a run on absent chips, which `keras.distribution` cannot name."""

    def __init__(self, strategy, mesh, sharding):
        super().__init__(strategy, mesh, [f"chip:{number}" for number in range(math.prod(mesh.values()))])
        self.sharding = sharding

    def get_tensor_layout(self, path):
        layout = super().get_tensor_layout(path)
        return layout and self.sharding(*layout.axes)


class _Step:
    """The training step of a run for some chips."""

    def __init__(self, config, num_classes, chips, strategy, report):
        import jax
        from jax.experimental import mesh_utils

        self.config, self.num_classes, self.chips, self.report = config, num_classes, chips, report
        self.strategy, self.sizes = parse_strategy(strategy, len(chips.devices))
        self.count, parts = math.prod(self.sizes.values()), self.sizes[BATCH]
        size, parts = config.recipe.batch_size, parts * config.recipe.accumulation_steps
        if size % parts:
            raise ValueError(
                f"batch_size must be a multiple of {parts}, the parts of a batch on these chips times the "
                f"micro-batches; got {size}"
            )
        grid = mesh_utils.create_device_mesh(
            tuple(self.sizes.values()), chips.devices[: self.count], allow_split_physical_axes=True
        )
        mesh = jax.sharding.Mesh(grid, tuple(self.sizes))
        self.sharding = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        self.distribution = _OnChips(self.strategy, self.sizes, self.sharding)

    def build(self, **changes):
        """The compiled model without values, and the shapes of the step's state and batch."""
        original = self.config
        recipe = dataclasses.replace(original.recipe, model={**original.recipe.model, **changes})
        config = dataclasses.replace(original, recipe=recipe)
        names = types.SimpleNamespace(class_names=[str(number) for number in range(self.num_classes)])
        with keras.StatelessScope(initialize_variables=False):
            model = build_model(config, names)
        compile_by(model, recipe, config.task)
        check_heads(model, self.sizes)
        # As in a run on JAX, the optimizer's slots take the layouts of their variables.
        for layer in model._flatten_layers():
            for variable in layer._trainable_variables:
                variable._layout = self.sharding(*self.distribution.axes(variable, layer))
        batch = self._batch(model)
        with keras.StatelessScope(initialize_variables=False):
            model.optimizer.build(model.trainable_variables)
            model._symbolic_build(data_batch=batch)  # Creates the metrics' variables, as `fit` does.
        variables = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple([self._shaped(v.shape, v.dtype, v._layout) for v in group] for group in variables)
        return types.SimpleNamespace(model=model, state=state, batch=batch)

    def _batch(self, model):
        """The shapes of a training batch, as `fit` is given."""
        import tensorflow as tf

        recipe, parts = self.config.recipe, self.sharding(BATCH)
        encoder = backbone(model)
        size = recipe.batch_size
        images = self._shaped((size, *encoder.image_size, encoder.in_channels), "float32", parts)
        task = self.config.task
        if task.needs_labels:
            shape, dtype = task.label_shape(model, recipe)
            return images, self._shaped((size, *shape), dtype, parts)
        if task.augment is None:
            example = tf.zeros((1, *images.shape[1:]))
        else:
            views = keras.tree.map_structure(lambda x: tf.zeros((1, *x.shape[1:])), model.input)
            example = views, tf.zeros((1,), tf.int32)
        example = tf.data.Dataset.from_tensors(example)
        (batch,) = task.batches(example, model, None, seed=0, first_step=0, worker=0, workers=1)
        return keras.tree.map_structure(
            lambda part: self._shaped((size, *part.shape[1:]), part.dtype.name, parts), batch
        )

    def _shaped(self, shape, dtype, sharding):
        import jax

        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding or self.sharding())

    def compile(self, built):
        """What the compiler says about the step; a `refusal` if it does not fit into the memory."""
        import jax

        shardings = jax.tree.map(lambda each: each.sharding, built.state)
        began = time.perf_counter()
        with self.scope(self.chips.devices[0]):
            step = jax.jit(built.model.train_step, donate_argnums=0, out_shardings=(None, shardings))
            lowered = step.lower(built.state, built.batch)
        blocks = backbone(built.model).num_layers
        self.report(f"compiling {blocks} blocks for {self.count} chips; this takes minutes")
        try:
            program = lowered.compile(compiler_options=self.chips.options)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            refusal = str(error).partition("Oom: ")[2].splitlines()[0]
            nothing = {"collectives": {}, "operations": {}, "kernels": {}}
            nothing["total"] = message_bytes(refusal, "temporaries")
            return {**nothing, "seconds": time.perf_counter() - began, "refusal": refusal}
        memory, text = program.memory_analysis(), program.as_text()
        parts = ("argument", "output", "temp", "generated_code")
        total = sum(getattr(memory, f"{part}_size_in_bytes") for part in parts)
        return {
            "total": total - memory.alias_size_in_bytes,
            "collectives": collectives(text),
            "operations": operations(text),
            "kernels": kernels(text),
            "seconds": time.perf_counter() - began,
            "refusal": None,
        }

    def matmul_flops(self, built):
        """The multiplications and additions of a step's matmuls and convolutions, on all chips together.

        The step is traced without cuDNN's attention, whose matmuls JAX does not show.
        """
        import jax

        with self.scope():
            return jaxpr_flops(jax.make_jaxpr(built.model.train_step)(built.state, built.batch).jaxpr)

    @contextlib.contextmanager
    def scope(self, device=None):
        """Where the step is traced: variables keep no values, and layers divide their outputs.

        Args:
            device: That for which layers choose their kernels; None for this machine's.
        """
        token = traced_for.set(device)
        with self.distribution.scope(), keras.StatelessScope(initialize_variables=False):
            yield
        traced_for.reset(token)

    def settings(self, built, extrapolate):
        recipe = self.config.recipe
        return {
            "model": self.config.model,
            "objective": self.config.objective,
            "image_size": list(backbone(built.model).image_size),
            "num_classes": self.num_classes,
            "batch_size": recipe.batch_size,
            "strategy": self.strategy,
            "mesh": self.sizes,
            **{name: getattr(recipe, name) for name in ("dtype", "remat", "accumulation_steps", "optimizer")},
            "extrapolated_from_blocks": list(SHORT) if extrapolate else None,
        }


def _held(shapes):
    """The bytes of arrays on one chip."""
    return sum(math.prod(s.sharding.shard_shape(s.shape)) * s.dtype.itemsize for s in shapes)


def _line(shallow, deep, depth):
    """The measurements of another depth, on the line through the measurements of two."""
    few, more = SHORT
    refusal = deep["refusal"] or shallow["refusal"]

    def at(a, b):
        return round(a + (b - a) * (depth - few) / (more - few))

    def rows(name):
        values = {}
        for key, row in ({} if refusal else shallow[name] | deep[name]).items():
            zero = dict.fromkeys(row, 0)
            first, second = shallow[name].get(key, zero), deep[name].get(key, zero)
            values[key] = {column: at(first[column], second[column]) for column in row}
        return {key: row for key, row in values.items() if row["count"] > 0}

    longest = sorted(rows("operations").items(), key=lambda row: -row[1]["cycles"])
    return {
        "total": at(shallow["total"], deep["total"]),
        "collectives": rows("collectives"),
        "operations": dict(longest),
        "kernels": rows("kernels"),
        "seconds": shallow["seconds"] + deep["seconds"],
        "refusal": refusal,
    }


def jaxpr_flops(jaxpr):
    """The multiplications and additions of the matmuls and convolutions in a traced program of JAX."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            numbers, kernel = params["dimension_numbers"], equation.invars[1].aval
            window = kernel.size // kernel.shape[numbers.rhs_spec[0]]
            # A gradient of a strided convolution has zeros between the elements of its input.
            total += 2 * equation.outvars[0].aval.size * window / math.prod(params["lhs_dilation"])
        else:
            inner = [getattr(part, "jaxpr", part) for part in keras.tree.flatten([*params.values()])]
            inner = [jaxpr_flops(part) for part in inner if hasattr(part, "eqns")]
            total += params.get("length", 1) * (max(inner) if name == "cond" else sum(inner)) if inner else 0
    return total


def largest_batch(total, available, unit):
    """The largest batch whose training step fits into the memory of a chip.

    The memory is almost a line in the batch, so that the line through the last two batches leads to the next.
    After every second batch that is too large, the next one bisects, in case it is not.

    Args:
        total: A function from a batch to the bytes of its step on a chip, which compiles it.
        available: The bytes that programs can use.
        unit: What a batch must be a multiple of.

    Returns:
        A multiple of `unit`, 0 if the smallest does not fit.

    Example:
        >>> largest_batch(lambda batch: 1000 + 30 * batch, 4000, 8)
        96
    """
    batch, fits, too_large, steps, known = unit, 0, math.inf, 0, {0: 0}
    while True:
        known[batch] = total(batch)
        if known[batch] <= available:
            fits = batch
        else:
            too_large, steps = batch, steps + 1
        if too_large - fits <= unit:
            return fits
        *_, first, second = known
        slope = max((known[second] - known[first]) / (second - first), 1)
        batch = fits + (available - known[fits]) / slope
        if steps and steps % 2 == 0:
            batch = (fits + too_large) / 2
        batch = min(max(int(batch // unit) * unit, fits + unit), too_large - unit)


def smaller(planned):
    """Changes that may let a program fit, the smallest first, chosen by the measured parts of its memory.

    Rematerialization comes first, then the division of weights and optimizer state where they are more than a
    quarter of the memory, then as many micro-batches as the activations need.

    Args:
        planned: What `plan` returned.

    Yields:
        (words, changed fields of the recipe, strategy).

    Example:
        >>> memory = {"weights": 10, "optimizer": 20, "batch": 1, "activations": 200, "available": 100}
        >>> settings = {"strategy": "data_parallel", "mesh": {"batch": 4}, "remat": False}
        >>> planned = {"settings": settings | {"accumulation_steps": 1, "batch_size": 64}, "memory": memory}
        >>> [words for words, _, _ in smaller(planned)]
        ['remat', 'remat, fsdp', 'remat, fsdp, 4 micro-batches', 'remat, fsdp, 16 micro-batches']
    """
    s, memory = planned["settings"], planned["memory"]
    strategy = s["strategy"] + ("={batch}x{model}".format(**s["mesh"]) if "model" in s["mesh"] else "")
    state = memory["weights"] + memory["optimizer"]
    names, changes = [], {}

    def changed():
        return ", ".join(names), dict(changes), strategy

    divide = strategy == "data_parallel" and 4 * state > memory["available"]
    if not s["remat"]:
        names.append("remat")
        changes["remat"] = True
        if not divide or state < memory["available"]:
            yield changed()
    if divide:
        names.append("fsdp")
        strategy = "fsdp"
        yield changed()
    images = s["batch_size"] // s["mesh"]["batch"]
    for factor in (4, 16):
        steps = factor * s["accumulation_steps"]
        if steps <= images:
            count = f"{steps} micro-batches"
            yield ", ".join([*names, count]), {**changes, "accumulation_steps": steps}, strategy
