"""The systems whose speed is compared: this package in its forms, and its peers. `speed.py` runs them."""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
import sys
import time
import traceback
from collections.abc import Callable

from machine import use_cores

from _keras_vit_cli import without_keras

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # Processes share the accelerator.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
CLASSES = 1000
DETECTED, OBJECTS = 91, 8  # classes of a detector, and boxes of an image
RECIPES = {"classifier": "finetune", "detector": "detect", "depth": "depth"}
MIN_SECONDS = 0.3  # of a round, which has as many steps as that takes
SAVED_MODEL = "saved_model"
FILES = ("float32.tflite", "dynamic_int8.tflite", "float32.onnx", "float32.xml", "bfloat16.xml")

# The systems on torch must not import Keras, and JAX's not before its backend is chosen.
with without_keras():
    from keras_vit.variants import cost, parse_variant


@dataclasses.dataclass(frozen=True)
class Case:
    """The computation to time; a training step clips the gradient and uses momentum."""

    variant: str = "S/16"
    task: str = "inference"
    batch: int = 1
    precision: str = "float32"
    image_size: int | tuple = 224  # or (height, width)
    model: str = "classifier"  # or "detector" or "depth", of square images

    def __str__(self):
        size = "" if self.image_size == 224 else f", {'×'.join(map(str, self.sides))} px"
        name = self.variant if self.model == "classifier" else f"{self.model} {self.variant}"
        return f"{name} {self.task}, batch {self.batch}, {self.precision}{size}"

    @property
    def sides(self):
        return tuple(self.image_size) if isinstance(self.image_size, tuple | list) else (self.image_size,) * 2

    @property
    def gflops(self):
        """GFLOPs per image; the backward pass takes twice those of the forward pass."""
        forward = cost(self.variant, self.image_size, CLASSES)["flops"] / 1e9
        return forward * (3 if self.task == "training" else 1)

    def data(self):
        """Random images, channels last, and labels: classes, rows of boxes, or maps of depths."""
        import numpy as np

        rng = np.random.default_rng(0)
        images = rng.uniform(-1, 1, (self.batch, *self.sides, 3)).astype("float32")
        if self.model == "depth":
            return images, rng.uniform(0.1, 1, (self.batch, *self.sides, 1)).astype("float32")
        classes = rng.integers(0, CLASSES, self.batch).astype("int32")
        if self.model == "classifier":
            return images, classes
        boxes = np.zeros((self.batch, OBJECTS, 7), "float32")  # the corners, class, crowd and area
        boxes[..., :2] = rng.uniform(0, 0.5, (self.batch, OBJECTS, 2))
        boxes[..., 2:4] = boxes[..., :2] + 0.3
        boxes[..., 4], boxes[..., 6] = rng.integers(0, DETECTED, boxes.shape[:2]), 0.09
        return images, boxes


@dataclasses.dataclass(frozen=True)
class System:
    """`make(case, folder)` returns the function of one step, which ends when its result is on the host."""

    make: Callable
    modules: tuple  # that it imports
    backend: str  # "tensorflow", "jax", "torch", or "runtime" for an exported format
    peer: bool = False
    tasks: tuple = ("inference", "training")
    precisions: tuple = ("float32", "bfloat16")
    models: tuple = ("classifier",)

    def takes(self, case):
        served = case.task in self.tasks and case.precision in self.precisions
        return served and case.model in self.models


# Keras ------------------------------------------------------------------------------------------


def policy(case):
    """bfloat16 weights, as by torch's `.bfloat16()`; float32 in training, as under torch's autocast."""
    mixed = case.precision == "bfloat16" and case.task == "training"
    return "mixed_bfloat16" if mixed else case.precision


def keras_model(case):
    import keras_vit

    def transformer(num_classes=None):
        return keras_vit.VisionTransformer.from_variant(
            case.variant, case.image_size, num_classes=num_classes, dtype=policy(case)
        )

    if case.model == "detector":
        return keras_vit.ObjectDetector(transformer(), DETECTED)
    if case.model == "depth":
        encoder = transformer()
        return keras_vit.DepthEstimator(encoder, decoder_size=_decoder_size(encoder.hidden_size))
    return transformer(CLASSES)


def _decoder_size(hidden_size):
    return hidden_size // 6  # 64 of S, 128 of B, as Depth Anything has them


def _keras_vit(case, folder, jit=None):
    """The default for users (`jit=None`), or a graph with or without XLA."""
    model = keras_model(case)
    if case.task == "training":
        from keras_vit.training import compile_model

        compile_model(model, "finetune")
        return _keras_training(model, case, jit)
    if jit is None:
        images, _ = case.data()
        return lambda: model.predict_on_batch(images)
    return keras_inference(model, case, jit)


def _unrolled(case, folder):
    """The default, but with the attention of exported graphs, without loops over heads."""
    from keras_vit.exporting import exported_graph

    return exported_graph()(_keras_vit(case, folder))


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
        dtype=policy(case),
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=CLASSES)
    if case.task == "inference":
        return keras_inference(model, case, jit)
    model.compile(
        optimizer=keras.optimizers.SGD(1e-3, momentum=0.9, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return _keras_training(model, case, jit)


def keras_inference(model, case, jit):
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


def plain_attention():
    """Compute attention without cuDNN's kernels from now on."""
    from keras_vit.layers import attention, xla_form

    attention.cudnn_computes = xla_form.cudnn_computes = lambda *arrays: False


def _keras_jax(case, folder, plain=False):
    import jax
    import numpy as np

    if plain:
        plain_attention()
    model = keras_model(case)
    images, labels = map(jax.numpy.asarray, case.data())
    if case.task == "training":
        from keras_vit.training import compile_model

        compile_model(model, RECIPES[case.model])
        return lambda: model.train_on_batch(images, labels)
    state = [[v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)]
    call = jax.jit(lambda state, images: model.stateless_call(*state, images, training=False)[0])
    return lambda: np.asarray(call(state, images))


# Exported formats -------------------------------------------------------------------------------


def export_formats(variant, image_size, folder):
    """Write every format of a variant, and print the traceback of one that fails."""
    from keras_vit import export

    writers = {"tflite": export.export_tflite, "onnx": export.export_onnx, "xml": export.export_openvino}
    model = keras_model(Case(variant, image_size=image_size))
    saved = export.export_saved_model(model, folder / SAVED_MODEL, warmup=())
    for file in FILES:
        precision, _, suffix = file.partition(".")
        try:
            writers[suffix](saved, folder / file, precision=precision)
        except Exception:
            traceback.print_exc()


def _saved_model(case, folder):
    import tensorflow as tf

    loaded, images = tf.saved_model.load(folder / SAVED_MODEL), tf.constant((case.data()[0] + 1) / 2)
    return lambda: loaded(images).numpy()


def runtime_step(case, folder, file):
    from keras_vit.export.exported_model import open_exported

    run, images = open_exported(folder / file, len(os.sched_getaffinity(0))).outputs, (case.data()[0] + 1) / 2
    return lambda: run(images)


def _openvino(case, folder):
    return runtime_step(case, folder, f"{case.precision}.xml")


def openvino_step(model, case, folder):
    """The step of a keras_vit model in OpenVINO, which is written into a folder."""
    from keras_vit import export

    path = folder / "export"
    path.mkdir()
    saved = export.export_saved_model(model, path / "saved_model")
    export.export_openvino(saved, path / "model.xml")
    return runtime_step(case, path, "model.xml")


# torch ------------------------------------------------------------------------------------------


def save_timm(model, folder):
    """Write the files that timm publishes of a model; arrays without values become small ones of zeros."""
    import torch
    from safetensors.torch import save_file
    from timm.models._hub import save_config_for_hf

    folder.mkdir(exist_ok=True)
    arrays = {key: array.contiguous() for key, array in model.state_dict().items()}
    for key, array in arrays.items():
        if array.is_meta:
            arrays[key] = torch.zeros([min(side, 48) for side in array.shape])
    save_file(arrays, folder / "model.safetensors")
    save_config_for_hf(model, folder / "config.json")
    return folder


@functools.cache  # The operators disappear with the library object.
def declare_torchvision():
    """Declare the two operators of torchvision's compiled extension, which only fits one build of torch.

    torchvision's Python code refers to them on import; nothing here calls them.
    """
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # It is declared already.
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _transformers_sizes(case):
    """The sizes of a variant in the names of transformers' configurations."""
    sizes = parse_variant(case.variant)
    return {
        "patch_size": sizes["patch_size"],
        "hidden_size": sizes["hidden_size"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "intermediate_size": sizes["mlp_dim"],
    }


def _transformers(case):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        **_transformers_sizes(case),
        image_size=case.image_size,
        num_labels=CLASSES,
        hidden_act="gelu_pytorch_tanh",
        attn_implementation="sdpa",
    )
    return ViTForImageClassification(config)


def yolos(case):
    """transformers' YOLOS: another detector of the same size, with 100 tokens for objects."""
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = _transformers_sizes(case)
    return YolosForObjectDetection(YolosConfig(**sizes, image_size=list(case.sides), num_labels=DETECTED))


def depth_anything(case):
    """transformers' Depth Anything."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    sizes = parse_variant(case.variant)
    hidden, layers = sizes["hidden_size"], sizes["num_layers"]
    backbone = Dinov2Config(
        image_size=case.image_size,
        patch_size=sizes["patch_size"],
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=sizes["num_heads"],
        out_indices=[layers * part // 4 for part in (1, 2, 3, 4)],
        reshape_hidden_states=False,
        apply_layernorm=True,
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=sizes["patch_size"],
        reassemble_hidden_size=hidden,
        neck_hidden_sizes=[hidden // 8, hidden // 4, hidden // 2, hidden],
        fusion_hidden_size=_decoder_size(hidden),
    )
    return DepthAnythingForDepthEstimation(config)


def timm_model(case):
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


def torch_step(case, folder, build, compiled):
    import torch

    declare_torchvision()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # JAX's default
    low = case.precision == "bfloat16"
    model, (images, labels) = build(case).to(device), map(torch.from_numpy, case.data())
    images, labels = images.permute(0, 3, 1, 2).contiguous().to(device), labels.long().to(device)
    if low and case.task == "inference":
        model, images = model.bfloat16(), images.bfloat16()
    call = torch.compile(model) if compiled else model

    def logits():
        found = call(images)
        names = ("logits", "predicted_depth", "pooler_output")
        return next((getattr(found, name) for name in names if hasattr(found, name)), found)

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


# The systems ------------------------------------------------------------------------------------

_OURS = ("keras_vit", "tensorflow")
_HUB = ("keras_hub", "tensorflow")
# Exported formats compute in float32, but for OpenVINO's.
_FORMAT = {"tasks": ("inference",), "precisions": ("float32",)}


def _file(file, *modules):
    return System(functools.partial(runtime_step, file=file), (*_OURS, *modules), "runtime", **_FORMAT)


def _on_torch(build, compiled, module, **options):
    make = functools.partial(torch_step, build=build, compiled=compiled)
    return System(make, ("torch", module), "torch", peer=True, **options)


def _inferring(model):
    return {"tasks": ("inference",), "models": (model,)}


PLAIN = "keras_vit JAX plain attention"
SYSTEMS = {
    "keras_vit": System(_keras_vit, _OURS, "tensorflow"),
    "keras_vit graph": System(functools.partial(_keras_vit, jit=False), _OURS, "tensorflow"),
    "keras_vit unrolled": System(_unrolled, _OURS, "tensorflow"),
    "keras_vit XLA": System(functools.partial(_keras_vit, jit=True), _OURS, "tensorflow"),
    "keras_vit JAX": System(_keras_jax, ("keras_vit", "jax"), "jax", models=tuple(RECIPES)),
    PLAIN: System(
        functools.partial(_keras_jax, plain=True), ("keras_vit", "jax"), "jax", models=tuple(RECIPES)
    ),
    "keras_vit SavedModel": System(_saved_model, _OURS, "runtime", **_FORMAT),
    "keras_vit LiteRT float32": _file("float32.tflite", "ai_edge_litert"),
    "keras_vit LiteRT dynamic int8": _file("dynamic_int8.tflite", "ai_edge_litert"),
    "keras_vit ONNX": _file("float32.onnx", "onnxruntime", "tf2onnx"),
    "keras_vit OpenVINO": System(_openvino, (*_OURS, "openvino"), "runtime", tasks=("inference",)),
    "KerasHub graph": System(functools.partial(_keras_hub, jit=False), _HUB, "tensorflow", peer=True),
    "KerasHub XLA": System(functools.partial(_keras_hub, jit=True), _HUB, "tensorflow", peer=True),
    "transformers": _on_torch(_transformers, False, "transformers"),
    "transformers compiled": _on_torch(_transformers, True, "transformers"),
    "transformers' YOLOS compiled": _on_torch(yolos, True, "transformers", **_inferring("detector")),
    "transformers' Depth Anything compiled": _on_torch(
        depth_anything, True, "transformers", **_inferring("depth")
    ),
    "timm compiled": _on_torch(timm_model, True, "timm"),
}


# In a process of `harness.py` -------------------------------------------------------------------


def measure_formats(variant, image_size, folder):
    """Export a variant to every format; an empty answer."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    export_formats(variant, image_size, pathlib.Path(folder))
    return {}


def measure_system(name, case, folder=None, threads=None):
    """Build a system; the function that times it."""
    use_cores(threads)
    system = SYSTEMS[name]
    if system.backend != "torch":
        os.environ["KERAS_BACKEND"] = "jax" if system.backend == "jax" else "tensorflow"
    return timed(system.make(Case(**case), folder and pathlib.Path(folder)))


def timed(step):
    """A function that times a system's steps as `harness.interleaved` asks."""
    reset_peak()
    device = _device_mebibytes()
    memory = {"built": mebibytes("VmRSS") if device is None else device}
    steps = 1

    def seconds(count=1):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - begin) / count

    def answer(line):
        nonlocal steps
        if line == "warm":
            first, again = seconds(), seconds()
            steps = max(1, math.ceil(MIN_SECONDS / again))
            memory["warming"] = mebibytes("VmHWM")
            reset_peak()
            return {"first": first, "steps": steps}
        if line == "go":
            return {"seconds": seconds(steps)}
        resident = {"running": mebibytes("VmHWM"), "waiting": mebibytes("VmRSS")}
        return {"memory": memory | resident | {"device": _device_mebibytes()}}

    return answer


def mebibytes(key):
    """Resident memory of this process: VmRSS for now, VmHWM for its peak since the last reset."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+)", status)[1]) / 1024


def reset_peak():
    """Reset the peak, where the kernel can; elsewhere the peak of the whole process is reported."""
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
