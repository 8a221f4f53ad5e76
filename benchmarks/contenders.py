"""One contender of the benchmark of speed, in a process of its own.

    printf 'warm\\ngo\\nend\\n' | python benchmarks/contenders.py "keras_vit XLA" --variant S/16 --batch 16

It builds the model and says so; then it answers each line with a line of JSON: `warm` with the seconds of
the first step, `go` with the seconds a step, `end` with MiB of memory. Between lines it only waits, so that
speed.py can ask several in turn.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import runpy
import sys
import time
import traceback
from collections.abc import Callable

from machine import use_cores

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others share the accelerator
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
ROOT = pathlib.Path(__file__).resolve().parents[1]
CLASSES = 1000
AT_LEAST = 0.3  # seconds that a round takes, of as many steps as that needs
FORMATS = ("saved_model", "float32.tflite", "dynamic_int8.tflite", "model.onnx")

# By its path, since torch's contenders must not import Keras.
_VARIANTS = runpy.run_path(str(ROOT / "keras_vit/variants.py"))
parse_variant, cost = _VARIANTS["parse_variant"], _VARIANTS["cost"]


@dataclasses.dataclass(frozen=True)
class Case:
    """What is to be computed; training is a step with clipping and momentum."""

    variant: str = "S/16"
    task: str = "inference"
    batch: int = 1
    precision: str = "float32"
    image_size: int = 224

    def __str__(self):
        size = "" if self.image_size == 224 else f", {self.image_size} px"
        return f"{self.variant} {self.task}, batch {self.batch}, {self.precision}{size}"

    @property
    def gflops(self):
        """Of one image; the gradients take twice what the forward pass does."""
        forward = cost(self.variant, self.image_size, CLASSES)["flops"] / 1e9
        return forward * (3 if self.task == "training" else 1)

    @property
    def options(self):
        return [f"--{name}={value}" for name, value in dataclasses.asdict(self).items()]

    def data(self):
        """Random images, channels last, and labels."""
        import numpy as np

        rng = np.random.default_rng(0)
        images = rng.uniform(-1, 1, (self.batch, self.image_size, self.image_size, 3)).astype("float32")
        return images, rng.integers(0, CLASSES, self.batch).astype("int32")


@dataclasses.dataclass(frozen=True)
class Contender:
    """`make(case, folder)` gives the function of one step, which returns when its result is on the host."""

    make: Callable
    modules: tuple  # that it needs
    backend: str  # what computes: "tensorflow", "jax", "torch" or an exported format's "runtime"
    peer: bool = False
    tasks: tuple = ("inference", "training")
    precisions: tuple = ("float32", "bfloat16")

    def takes(self, case):
        return case.task in self.tasks and case.precision in self.precisions


# Keras ------------------------------------------------------------------------------------------


def _policy(case):
    """bfloat16 weights, as torch's `.bfloat16()`; in training float32 ones, as under torch's autocast."""
    mixed = case.precision == "bfloat16" and case.task == "training"
    return "mixed_bfloat16" if mixed else case.precision


def _ours(case):
    import keras_vit

    return keras_vit.VisionTransformer.from_variant(
        case.variant, case.image_size, num_classes=CLASSES, dtype=_policy(case)
    )


def _keras_vit(case, folder, jit=None):
    """What a user gets who says nothing of graphs or XLA, or with `jit` a graph with or without it."""
    model = _ours(case)
    if case.task == "training":
        from keras_vit.training import compile_model

        compile_model(model, "finetune")
        return _keras_training(model, case, jit)
    if jit is None:
        images, _ = case.data()
        return lambda: model.predict_on_batch(images)
    return _keras_inference(model, case, jit)


def _keras_hub(case, folder, jit):
    import keras
    import keras_hub

    sizes = parse_variant(case.variant)
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(case.image_size, case.image_size, 3),
        patch_size=(sizes["patch_size"],) * 2,
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        hidden_dim=sizes["hidden_size"],
        mlp_dim=sizes["mlp_dim"],
        layer_norm_epsilon=1e-6,
        dropout_rate=0.0,
        attention_dropout=0.0,
        dtype=_policy(case),
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=CLASSES)
    if case.task == "inference":
        return _keras_inference(model, case, jit)
    model.compile(
        optimizer=keras.optimizers.SGD(1e-3, momentum=0.9, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return _keras_training(model, case, jit)


def _keras_inference(model, case, jit):
    import tensorflow as tf

    images = tf.constant(case.data()[0])
    call = tf.function(lambda images: model(images, training=False), jit_compile=jit)
    return lambda: call(images).numpy()


def _keras_training(model, case, jit):
    """The function that `fit` calls for each step."""
    import tensorflow as tf

    if jit is not None:
        model.jit_compile = jit
    model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors(case.data()).repeat())
    return lambda: {name: float(value) for name, value in model.train_function(batches).items()}


def _keras_jax(case, folder):
    import jax
    import keras
    import numpy as np

    model = _ours(case)
    images, labels = map(jax.numpy.asarray, case.data())
    if case.task == "training":
        model.compile(
            optimizer=keras.optimizers.SGD(1e-3, momentum=0.9, global_clipnorm=1.0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return lambda: model.train_on_batch(images, labels)
    state = [[v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)]
    call = jax.jit(lambda state, images: model.stateless_call(*state, images, training=False)[0])
    return lambda: np.asarray(call(state, images))


# Exported formats -------------------------------------------------------------------------------


def export(variant, image_size, folder):
    """Write every format of a variant; the traceback of one that fails is printed."""
    from keras_vit.export.onnx import export_onnx
    from keras_vit.export.saved_model import export_saved_model
    from keras_vit.export.tflite import export_tflite

    saved = export_saved_model(_ours(Case(variant, image_size=image_size)), folder / FORMATS[0], warmup=())
    for file in FORMATS[1:]:
        try:
            if file.endswith(".tflite"):
                export_tflite(saved, folder / file, precision=file.removesuffix(".tflite"))
            else:
                export_onnx(saved, folder / file)
        except Exception:
            traceback.print_exc()


def _saved_model(case, folder):
    import tensorflow as tf

    loaded, images = tf.saved_model.load(folder / FORMATS[0]), tf.constant((case.data()[0] + 1) / 2)
    return lambda: loaded(images).numpy()


def _exported(case, folder, file):
    from keras_vit.export.exported_model import open_exported

    run, images = open_exported(folder / file, len(os.sched_getaffinity(0))).outputs, (case.data()[0] + 1) / 2
    return lambda: run(images)


# torch ------------------------------------------------------------------------------------------


@functools.cache  # what is declared goes when the library goes
def declare_torchvision():
    """Declare two operators, never called here, that torchvision's compiled half would.

    Its Python half registers on import what to do with them, and the other is made for one build of torch.
    """
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # declared already
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _transformers(case):
    from transformers import ViTConfig, ViTForImageClassification

    sizes = parse_variant(case.variant)
    config = ViTConfig(
        image_size=case.image_size,
        patch_size=sizes["patch_size"],
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["mlp_dim"],
        num_labels=CLASSES,
        hidden_act="gelu_pytorch_tanh",
        attn_implementation="sdpa",
    )
    return ViTForImageClassification(config)


def _timm(case):
    from timm.models.vision_transformer import VisionTransformer

    sizes = parse_variant(case.variant)
    return VisionTransformer(
        img_size=case.image_size,
        patch_size=sizes["patch_size"],
        embed_dim=sizes["hidden_size"],
        depth=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["hidden_size"],
        num_classes=CLASSES,
        act_layer="gelu_tanh",
    )


def _torch(case, folder, build, compiled):
    import torch

    declare_torchvision()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # what JAX does without being asked
    low = case.precision == "bfloat16"
    model, (images, labels) = build(case).to(device), map(torch.from_numpy, case.data())
    images, labels = images.permute(0, 3, 1, 2).contiguous().to(device), labels.long().to(device)
    if low and case.task == "inference":
        model, images = model.bfloat16(), images.bfloat16()
    call = torch.compile(model) if compiled else model

    def logits():
        found = call(images)
        return getattr(found, "logits", found)

    def infer():
        with torch.inference_mode():
            return logits().float().cpu().numpy()

    def train():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=low):
            loss = torch.nn.functional.cross_entropy(logits(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    if case.task == "inference":
        model.eval()
        return infer
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return train


# Flax -------------------------------------------------------------------------------------------


def _flax(case, folder):
    """The official model, which is on no package index: a checkout of its repository on PYTHONPATH."""
    import jax
    import numpy as np
    import optax
    from vit_jax.models_vit import VisionTransformer

    sizes, (images, labels) = parse_variant(case.variant), map(jax.numpy.asarray, case.data())
    model = VisionTransformer(
        num_classes=CLASSES,
        patches=type("Patches", (), {"size": (sizes["patch_size"],) * 2}),
        hidden_size=sizes["hidden_size"],
        transformer={key: sizes[key] for key in ("mlp_dim", "num_heads", "num_layers")}
        | {"dropout_rate": 0.0, "attention_dropout_rate": 0.0},
    )
    variables = jax.jit(lambda x: model.init(jax.random.key(0), x, train=False))(images)
    if case.task == "inference":
        call = jax.jit(lambda variables, images: model.apply(variables, images, train=False))
        return lambda: np.asarray(call(variables, images))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-3, momentum=0.9))

    def loss(variables):
        logits = model.apply(variables, images, train=True, rngs={"dropout": jax.random.key(0)})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(variables, momentum):
        value, gradients = jax.value_and_grad(loss)(variables)
        updates, momentum = optimizer.update(gradients, momentum)
        return optax.apply_updates(variables, updates), momentum, value

    state = [variables, optimizer.init(variables)]

    def train():
        *state[:], value = step(*state)
        return float(value)

    return train


# Who takes part ---------------------------------------------------------------------------------

_OURS = ("keras_vit", "tensorflow")
_HUB = ("keras_hub", "tensorflow")
_FORMAT = {"tasks": ("inference",), "precisions": ("float32",)}  # they compute in float32, as exported


def _file(file, *modules):
    return Contender(functools.partial(_exported, file=file), (*_OURS, *modules), "runtime", **_FORMAT)


def _on_torch(build, compiled, module):
    make = functools.partial(_torch, build=build, compiled=compiled)
    return Contender(make, ("torch", module), "torch", peer=True)


CONTENDERS = {
    "keras_vit": Contender(_keras_vit, _OURS, "tensorflow"),
    "keras_vit graph": Contender(functools.partial(_keras_vit, jit=False), _OURS, "tensorflow"),
    "keras_vit XLA": Contender(functools.partial(_keras_vit, jit=True), _OURS, "tensorflow"),
    "keras_vit JAX": Contender(_keras_jax, ("keras_vit", "jax"), "jax"),
    "keras_vit SavedModel": Contender(_saved_model, _OURS, "runtime", **_FORMAT),
    "keras_vit LiteRT float32": _file(FORMATS[1], "ai_edge_litert"),
    "keras_vit LiteRT dynamic int8": _file(FORMATS[2], "ai_edge_litert"),
    "keras_vit ONNX": _file(FORMATS[3], "onnxruntime", "tf2onnx"),
    "KerasHub graph": Contender(functools.partial(_keras_hub, jit=False), _HUB, "tensorflow", peer=True),
    "KerasHub XLA": Contender(functools.partial(_keras_hub, jit=True), _HUB, "tensorflow", peer=True),
    "transformers": _on_torch(_transformers, False, "transformers"),
    "transformers compiled": _on_torch(_transformers, True, "transformers"),
    "timm compiled": _on_torch(_timm, True, "timm"),
    "Flax": Contender(_flax, ("vit_jax", "flax"), "jax", peer=True, precisions=("float32",)),
}


# The process ------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=[*CONTENDERS, "export"])
    for field in dataclasses.fields(Case):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    parser.add_argument("--threads", type=int, help="cores to run on; all without it")
    parser.add_argument("--folder", type=pathlib.Path, help="where the exported formats are")
    args = parser.parse_args()
    use_cores(args.threads)
    if args.name == "export":
        os.environ["KERAS_BACKEND"] = "tensorflow"
        export(args.variant, args.image_size, args.folder)
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    case = Case(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Case)})
    contender = CONTENDERS[args.name]
    if contender.backend != "torch":
        os.environ["KERAS_BACKEND"] = "jax" if contender.backend == "jax" else "tensorflow"
    step = contender.make(case, args.folder)
    for answer in _answers(step):
        print(json.dumps(answer), file=answers, flush=True)


def _answers(step):
    """What is said when the model is built, and then for each line that comes."""
    _forget_peak()
    device = _device_mebibytes()
    memory = {"built": _mebibytes("VmRSS") if device is None else device}
    yield {"ready": True}
    steps = 1
    for line in sys.stdin:
        if line == "warm\n":
            first, again = _seconds(step), _seconds(step)
            steps = max(1, math.ceil(AT_LEAST / again))
            memory["warming"] = _mebibytes("VmHWM")
            _forget_peak()
            yield {"first": first, "steps": steps}
        elif line == "go\n":
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            yield {"seconds": (time.perf_counter() - begin) / steps}
        else:
            memory |= {"running": _mebibytes("VmHWM"), "waiting": _mebibytes("VmRSS")}
            yield {"memory": memory | {"device": _device_mebibytes()}}
            return


def _seconds(step):
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _mebibytes(key):
    """Resident memory of this process: VmRSS for now, VmHWM for its peak since it was last forgotten."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+)", status)[1]) / 1024


def _forget_peak():
    """Let the peak begin anew, where the kernel can; elsewhere it stays that of the whole process."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def _device_mebibytes():
    """Peak of an accelerator's memory; None without one."""
    torch, tf, jax = (sys.modules.get(name) for name in ("torch", "tensorflow", "jax"))
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    if tf and tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    stats = jax and jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 2**20 if stats else None


if __name__ == "__main__":
    main()
