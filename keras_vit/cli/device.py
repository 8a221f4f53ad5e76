"""The option --device, by environment variables that TensorFlow and JAX read when they start."""

import os
import sys


def choose(args):
    """Set the environment variables by which TensorFlow and JAX see the devices of --device.

    Raises:
        ValueError: for the number of a GPU that CUDA_VISIBLE_DEVICES does not allow.
    """
    device = getattr(args, "device", "auto")
    if device == "cpu":
        os.environ.update(CUDA_VISIBLE_DEVICES="-1", JAX_PLATFORMS="cpu")
    elif ":" in device:
        number = device.partition(":")[2]
        if allowed := os.environ.get("CUDA_VISIBLE_DEVICES"):
            names = {str(position): name for position, name in enumerate(allowed.split(","))}
            if number not in names:
                raise ValueError(f"--device {device} is not among CUDA_VISIBLE_DEVICES, {allowed}")
            number = names[number]
        os.environ["CUDA_VISIBLE_DEVICES"] = number


def check(args):
    """Refuse a GPU that is not there, or that an exported file cannot use.

    Raises:
        ValueError: in both cases.
    """
    if not _is_gpu(args):
        return
    from keras_vit.export.formats import format_of, suffix_of

    model = getattr(args, "model", None) or ""
    if (suffix_of(model) or os.path.isdir(model)) and not format_of(model).needs_keras:
        raise ValueError(f"{model!r} computes on the CPU; got --device {args.device}")
    import keras

    backend = keras.backend.backend()
    if not (_jax_gpus if backend == "jax" else _tensorflow_gpus)():
        raise ValueError(f"--device {args.device} is not there: {backend} sees no GPU")


def note_formats(args, names):
    """Print which formats compute on the CPU in spite of --device."""
    from keras_vit.export.formats import FORMATS

    options = tuple({format.option for format in FORMATS if not format.needs_keras})
    if _is_gpu(args) and (on_cpu := [name for name in names if name.startswith(options)]):
        print(f"on the CPU, in spite of --device {args.device}: {', '.join(on_cpu)}", file=sys.stderr)


def _is_gpu(args):
    return getattr(args, "device", "auto").startswith("gpu")


def _tensorflow_gpus():
    import tensorflow as tf

    return tf.config.list_physical_devices("GPU")


def _jax_gpus():
    import jax

    try:
        return [device for device in jax.devices() if device.platform == "gpu"]
    except RuntimeError:  # JAX_PLATFORMS names what is not there.
        return []
