"""TPUs and GPUs that this machine does not have, for which JAX compiles."""

import dataclasses
import functools
import os
import pathlib
import re
from importlib import metadata

from keras_vit.engine.device_dtype import TPU, dtype_of
from keras_vit.lazy import optional_package

# Operations on bfloat16 per second at most, by Google's documentation of each TPU.
TPUS = {"v5e": 197e12, "v5p": 459e12, "v6e": 918e12}
# Without a GPU no kernel can be tried, and XLA finds no tiles for some products in Triton.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
# A `GpuTargetConfigProto` of XLA as text. What is not in our table is the same for all these GPUs.
GPU_DESCRIPTION = """
gpu_device_info {{
  name: "{name}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {major} minor: {minor} {features}}}
  core_count: {multiprocessors}
  fpus_per_core: {cores}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  threads_per_core_limit: {threads}
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared_of_block}
  shared_memory_per_block: 49152
  threads_per_warp: 32
  threads_per_block_limit: 1024
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  runtime_version: "{cuda}" driver_version: "{cuda}" compile_time_toolkit_version: "{cuda}"
  dnn_version: "{cudnn[0]}.{cudnn[1]}.{cudnn[2]}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
device_description_str: "{name}"
"""


@dataclasses.dataclass(frozen=True)
class Chips:
    """The devices of a topology, which need not exist, and what a plan must know of each.

    Attributes:
        devices: JAX's devices.
        peak_flops: Operations on 16-bit numbers per second at most.
        available: The bytes of a chip's memory that programs can use.
        packages: Names of the packages whose versions determine a program.
        options: The compiler's options.
    """

    devices: list
    peak_flops: float
    available: int
    packages: tuple
    options: dict = dataclasses.field(default_factory=dict)


@functools.cache
def gpus():
    """The table of GPUs, in which each has the limits of its compute capability.

    Example:
        >>> gpus()["a100"]["memory_gb"], gpus()["t4"]["capability"]
        (80, '7.5')
    """
    import yaml

    table = yaml.safe_load((pathlib.Path(__file__).parent / "gpus.yaml").read_text())
    limits = table["capabilities"]
    return {name: {**limits[row["capability"]], **row} for name, row in table["chips"].items()}


def chip_dtype(topology):
    """The dtype of a run on the chips of a topology by the "auto" of recipes.

    >>> [chip_dtype(topology) for topology in ("v5e:4x4", "gpu:a100:8", "gpu:t4")]
    ['mixed_bfloat16', 'mixed_bfloat16', 'mixed_float16']
    """
    family, _, rest = topology.partition(":")
    gpu = gpus().get(rest.partition(":")[0]) if family == "gpu" else None
    return dtype_of(tuple(map(int, gpu["capability"].split("."))) if gpu else TPU)


def find_chips(topology):
    """The `Chips` of a topology such as "v5e:4x4" of TPUs, "gpu:a100", or "gpu:a100:8" for eight GPUs.

    Raises:
        ImportError: if the compiler is not installed; ValueError for an unknown topology.
    """
    family, _, rest = topology.partition(":")
    chip, _, count = rest.partition(":")
    expected = (
        f"expected a topology such as v5e:4x4, v5p:4x4x4, gpu:a100 or gpu:a100:8, of {', '.join(TPUS)}, "
        f"gpu:{', gpu:'.join(gpus())}; got {topology!r}"
    )
    if family == "gpu" and chip in gpus() and re.fullmatch(r"[1-9]\d*", count or "1"):
        return _gpus(chip, int(count or 1))
    if family in TPUS and re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", rest):
        return _tpus(topology, TPUS[family], expected)
    raise ValueError(expected)


def _tpus(topology, peak_flops, expected):
    optional_package("libtpu", "keras-vit plan", ('".[tpu]"',))
    import jax
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(topology_name=topology, platform="tpu").devices
    except (jax.errors.JaxRuntimeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{expected}: {str(error).partition(': ')[2] or error}") from error
    return Chips(devices, peak_flops, _tpu_memory(devices[0]), ("libtpu",))


def _tpu_memory(chip):
    """The bytes of a chip's memory that programs can use: what the compiler says to one that needs more."""
    import jax

    vast = jax.ShapeDtypeStruct((2**40,), "uint8", sharding=jax.sharding.SingleDeviceSharding(chip))
    try:
        jax.jit(lambda x: x + 1).lower(vast).compile()
    except jax.errors.JaxRuntimeError as error:
        return message_bytes(str(error), "available HBM")
    raise ValueError("the compiler accepts a program of 1 TiB, so it does not know the chip's memory")


def message_bytes(message, what):
    """The bytes that a message of the compiler gives in parentheses after some words."""
    number, unit = re.search(rf"{what} \(([\d.]+)([KMGT]?)\)", message).groups()
    return round(float(number) * 1024 ** " KMGT".index(unit or " "))


def _gpus(chip, count):
    packages = ("jax-cuda12-plugin", "nvidia-cudnn-cu12", "nvidia-cuda-nvcc-cu12")
    optional_package("jax_cuda12_plugin", "keras-vit plan", ('".[gpu]"',))
    from jax.experimental import topologies

    cudnn, cuda = (metadata.version(name).split(".") for name in packages[1:])
    description = gpu_description(gpus()[chip], cudnn, cuda)
    devices = topologies.get_topology_desc(
        platform="cuda", topology=f"1x1x{count}", target_config=description
    ).devices
    # JAX allocates this part of the memory when it starts.
    fraction = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75))
    available = round(fraction * gpus()[chip]["memory_gb"] * 1e9)
    return Chips(devices, gpus()[chip]["tflops"] * 1e12, available, packages, GPU_OPTIONS)


def gpu_description(chip, cudnn, cuda):
    """A GPU of the table, described as XLA's compiler reads it.

    Args:
        chip: A row of `gpus()`.
        cudnn, cuda: The versions of cuDNN and CUDA, lists of at least three numbers.
    """
    major, minor = chip["capability"].split(".")
    return GPU_DESCRIPTION.format(
        **chip,
        major=major,
        minor=minor,
        # Hopper's matmuls have instructions of their own, which later GPUs lack.
        features="feature_extension: ACCELERATED_FEATURES " * (major == "9"),
        clock_ghz=chip["clock_mhz"] / 1000,
        memory=round(chip["memory_gb"] * 1e9),
        bandwidth=round(chip["bandwidth_gb"] * 1e9),
        l2=chip["l2_mib"] * 2**20,
        shared=chip["shared_kib"] * 2**10,
        shared_of_block=chip["shared_of_block_kib"] * 2**10,
        cudnn=cudnn,
        cuda=f"{cuda[0]}.{cuda[1]}.0",
    )
