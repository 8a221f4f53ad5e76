"""`keras-vit checks`: what the report of a bug needs: versions, devices, caches, missing packages."""

import importlib.metadata
import os
import pathlib
import platform
import re
import shlex

from keras_vit.cli import options
from keras_vit.cli.parser import version
from keras_vit.cli.report import report, text_table
from keras_vit.messages import one_line
from keras_vit.startup_logs import quiet_startup_logs
from keras_vit.writing import cache_folder

DISTRIBUTION = "keras-vision-transformer"
FIRST = ("keras", "tensorflow", "jax", "numpy")  # of the versions
MIB = 2**20


def add_arguments(add):
    options.json(add)


def needs_keras(args):
    return False  # An error of an import is a result.


def run(args):
    required, extras = _requirements()
    names = dict.fromkeys([*FIRST, *required, *(name for extra in extras.values() for name in extra)])
    versions = {name: _version(name) for name in names}
    wanted = {"required": required, **extras}
    missing = {
        extra: [text for name, text in texts.items() if versions[name] is None]
        for extra, texts in wanted.items()
    }
    value = {
        "keras_vit": version(),
        "folder": str(pathlib.Path(__file__).parents[1]),
        "python": platform.python_version(),
        "system": platform.platform(),
        **_backend(),
        "caches": {str(folder): _size(folder) for folder in (cache_folder(), _hub_cache())},
        "packages": {name: number for name, number in versions.items() if number},
        "missing": {
            extra: shlex.join(["pip", "install", *texts]) for extra, texts in missing.items() if texts
        },
    }
    report(args, value, _text(value))


def _text(value):
    rows = [(name, value[name]) for name in ("keras_vit", "folder", "python", "system", "backend")]
    rows += [("device", device) for device in value["devices"]]
    rows += [("cache", f"{folder}, {size / MIB:,.1f} MiB") for folder, size in value["caches"].items()]
    rows += value["packages"].items()
    rows += [(f"{extra}: missing", command) for extra, command in value["missing"].items()]
    return text_table(rows)


def _requirements():
    """Return the requirements of the installed package by their names: the required ones, and by extra."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:  # The package is used from its source.
        requirements = ()
    required, extras = {}, {}
    for requirement in requirements:
        text, _, condition = requirement.partition(";")
        extra = re.search(r"extra == ['\"](.+?)['\"]", condition)
        group = extras.setdefault(extra[1], {}) if extra else required
        group[re.match(r"[\w.-]+", text)[0]] = text.strip()
    return required, extras


def _version(name):
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _backend():
    """Return Keras's backend, or the error of its import, and the devices that it sees."""
    try:
        with quiet_startup_logs():
            import keras

            backend = keras.backend.backend()
            devices = {"tensorflow": _tensorflow_devices, "jax": _jax_devices}.get(backend, list)()
    except Exception as error:  # Broken installations raise errors of all types.
        return {"backend": one_line(f"{type(error).__name__}: {error}"), "devices": []}
    return {"backend": backend, "devices": devices}


def _tensorflow_devices():
    import tensorflow as tf

    names = []
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device) if device.device_type == "GPU" else {}
        names.append(
            f"{device.name.removeprefix('/physical_device:')} {details.get('device_name', '')}".strip()
        )
    return names


def _jax_devices():
    import jax

    return [f"{device.platform.upper()}:{device.id} {device.device_kind}" for device in jax.devices()]


def _hub_cache():
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE


def _size(folder):
    """Return the size in bytes of the files in a folder, without links; 0 without a folder."""
    files = (pathlib.Path(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if not file.is_symlink())
