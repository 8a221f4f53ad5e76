"""The metadata next to a checkpoint file: our `NAME.json`, or the configuration files of another project."""

import hashlib
import json
import warnings

from keras_vit.models.vit.geometry import DYNAMIC_SIZE, is_dynamic
from keras_vit.models.vit.schema import OPTIONS, check_options
from keras_vit.weights.array_files import digest_in
from keras_vit.weights.fetch import SIDECARS, WEIGHTS
from keras_vit.weights.json_files import read_json

FORMAT = "keras_vit checkpoint 1"


def read_metadata(path, layout, verified=False):
    """Read the options of `VisionTransformer` that are stored next to a checkpoint file.

    Args:
        path: pathlib.Path of the checkpoint file.
        layout: `Layout` of the file.
        verified: Whether the file matched a digest. Then only a `NAME.json` is read whose digest the file
            holds; others are ignored with a warning, since anyone could have changed them.

    Returns:
        (dict of options, name of the file that was read or None). `image_size` is that of the weights.
        What the project's files state replaces what `NAME.json` has, if they changed since they were saved
        together.

    Raises:
        ValueError: if such a file is not JSON, describes another kind of model, or was saved with other
            weights than the checkpoint file has.
    """
    config = path.with_name(layout.config_files[0]) if layout.config_files else None
    if config is not None and (path.name not in WEIGHTS or not config.is_file()):
        config = None
    sidecar = path.with_name(f"{path.stem}.json")
    metadata = read_json(sidecar, {}) if sidecar.name not in SIDECARS else {}
    if metadata.get("format") == FORMAT:
        stored = digest_in(path)
        if "digest" in metadata and metadata["digest"] != stored:
            raise ValueError(
                f"{sidecar.name} was saved with other weights than {path.name}; save the model again, or "
                f"remove 'digest' from {sidecar.name} if the two belong together"
            )
        if verified and stored != _digest(metadata.get("arguments")):
            return _ignored(sidecar)
        options = _options(metadata.get("arguments"), sidecar.name)
        if config is None or _are_as_saved(path.parent, layout, metadata.get("files")):
            return options, sidecar.name
        if verified:
            _ignored(config)
            return options, sidecar.name
        return {**options, **_configured(config, layout)}, config.name
    if config is None:
        return {}, None
    if verified:
        return _ignored(config)
    return _configured(config, layout), config.name


def _configured(config, layout):
    """The options in the configuration files of a layout's project."""
    try:
        options = layout.read_config(config.parent)
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{config.name} is not in the format of {layout.name}: {error!r}") from None
    return checked_options(options, config.name)


def _are_as_saved(folder, layout, digests):
    """Whether the configuration files in a folder have these digests by name; None if none were saved."""
    files = [folder / name for name in layout.config_files]
    if not isinstance(digests, dict):
        return True
    return all(_digest(read_json(file)) == digests.get(file.name) for file in files if file.is_file())


def _ignored(file):
    warnings.warn(
        f"{file} is not read because sha256 does not cover it; give its contents as arguments", stacklevel=4
    )
    return {}, None


def sidecar_text(config, layout, digest=None, files=None):
    """The text of `NAME.json`.

    Args:
        config: `model.get_config()`.
        layout: The layout's name.
        digest: `configuration_digest(config)`, if the weights file also holds it.
        files: dict from the names of the project's configuration files to their values, if any are saved.
    """
    metadata = {"format": FORMAT, "layout": layout, **({"digest": digest} if digest else {})}
    if files:
        metadata["files"] = {file: _digest(values) for file, values in files.items()}
    return json.dumps({**metadata, "arguments": _arguments_in(config)}, indent=1, allow_nan=False) + "\n"


def configuration_digest(config):
    """The SHA-256 of the model's options in a configuration, in hexadecimal.

    >>> configuration_digest({"hidden_size": 24, "name": "vit"}) == configuration_digest({"hidden_size": 24})
    True
    """
    return _digest(_arguments_in(config))


def _digest(values):
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _arguments_in(config):
    return {name: value for name, value in config.items() if name in OPTIONS}


def _options(arguments, file):
    if not isinstance(arguments, dict):
        raise ValueError(f"{file}: arguments must be an object; got {arguments!r}")
    options = with_own_size(checked_options(arguments, file))
    # A dynamic size and None say nothing about the stored arrays.
    unset = {"image_size": DYNAMIC_SIZE, "position_grid": None, "class_names": None}
    return {name: value for name, value in options.items() if name not in unset or value != unset[name]}


def with_own_size(options):
    """The options, with an image size of the preprocessing only in a model for any size.

    In another model it is the model's, which loading may change.
    """
    if not options.get("preprocessing") or is_dynamic(options.get("image_size")):
        return options
    preprocessing = {name: value for name, value in options["preprocessing"].items() if name != "image_size"}
    return {**options, "preprocessing": preprocessing}


def checked_options(options, file):
    """The options of a file in their normal forms; ValueError for an unknown option or a wrong value."""
    check_options(options, file)
    normalize = {name: OPTIONS[name].metadata["normalize"] for name in options}
    return {n: v if v is None or not normalize[n] else normalize[n](v) for n, v in options.items()}
