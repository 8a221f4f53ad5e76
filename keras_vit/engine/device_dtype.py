"""The dtype in which the devices of this process train: the "auto" of recipes."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import keras

AUTO = "auto"
# What each device supports, from the least; several devices compute in the first of theirs.
SUPPORTED = ("float32", "mixed_float16", "mixed_bfloat16")
TPU: Final = "TPU"
BFLOAT16 = (8, 0)  # the first compute capability whose tensor cores multiply bfloat16
# A TPU, or the compute capability of a GPU; None if it is unknown.
Accelerator: TypeAlias = Literal["TPU"] | tuple[int, ...] | None


def device_dtype() -> str:
    """The dtype policy in which the devices of this process train fastest: what recipes call "auto".

    Returns:
        "mixed_bfloat16" on TPUs and on GPUs of compute capability 8.0 and above, "mixed_float16" on NVIDIA's
        other GPUs, whose tensor cores have no bfloat16, and "float32" on CPUs and all other devices. Of
        several devices, what all of them support.

    Example:
        >>> model = keras_vit.VisionTransformer(32, 16, 24, 2, 48, 3, dtype=device_dtype())
        >>> model.dtype_policy.name  # on a CPU
        'float32'

    Source: Micikevicius et al. 2018, "Mixed precision training"; NVIDIA, "CUDA C++ Programming Guide",
    section "Compute Capabilities".
    """
    return min(map(dtype_of, accelerators()), key=SUPPORTED.index, default=SUPPORTED[0])


def dtype_of(device: Accelerator) -> str:
    """What a device of `accelerators` supports.

    >>> [dtype_of(device) for device in (TPU, (8, 9), (7, 5), None)]
    ['mixed_bfloat16', 'mixed_bfloat16', 'mixed_float16', 'float32']
    """
    if device is None:
        return "float32"
    return "mixed_bfloat16" if device == TPU or device >= BFLOAT16 else "mixed_float16"


def accelerators() -> list[Accelerator]:
    """The devices that Keras's backend sees and that are no CPUs, on JAX of all processes.

    Returns:
        A list of `TPU`, or the compute capability of a GPU such as (7, 5); None if it is unknown.
    """
    return {"tensorflow": _of_tensorflow, "jax": _of_jax, "torch": _of_torch}[keras.backend.backend()]()


def _of_tensorflow() -> list[Accelerator]:
    import tensorflow as tf

    if isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        return [TPU]
    details = tf.config.experimental.get_device_details
    return [details(gpu).get("compute_capability") for gpu in tf.config.get_visible_devices("GPU")]


def _of_jax() -> list[Accelerator]:
    import jax

    return [_of_jax_device(device) for device in jax.devices() if device.platform != "cpu"]


def _of_jax_device(device: Any) -> Accelerator:
    if device.platform == "tpu":
        return TPU
    major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _of_torch() -> list[Accelerator]:
    import torch

    return [torch.cuda.get_device_capability(number) for number in range(torch.cuda.device_count())]
