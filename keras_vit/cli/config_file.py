"""The files of --config: options of a subcommand, with their values."""

import json
import pathlib

from keras_vit.messages import one_line


def config_words(path, actions):
    """Return the options of a file as words of a command line.

    Args:
        path: A `.json` file, or YAML: a mapping from names of options to values. A flag is true or false. An
            option that can be repeated also takes a list, or if its values are NAME=VALUE, a mapping.
        actions: dict from options to their `argparse.Action`. Other names become options all the same.

    Returns:
        list of `--name`, for flags, and `--name=value`.

    Raises:
        ValueError: for a file that is no such mapping, or a value that the option cannot have.
        OSError: if it cannot be read.

    Example:
        >>> import argparse
        >>> add = argparse.ArgumentParser().add_argument
        >>> actions = {"--captions": add("--captions", action="store_true")}
        >>> actions |= {"--set": add("--set", action="append", default=[])}
        >>> _ = (tmp / "run.yaml").write_text("captions: true\\nset: {base_lr: 0.1, flip: false}\\n")
        >>> config_words(tmp / "run.yaml", actions)
        ['--captions', '--set=base_lr=0.1', '--set=flip=False']
    """
    words = []
    for name, value in _read(pathlib.Path(path).expanduser()).items():
        option = f"--{name}"
        if (action := actions.get(option)) is None:
            words.append(f"{option}={value}")
        elif value is None:
            continue
        elif action.nargs == 0:
            if not isinstance(value, bool):
                raise ValueError(f"{str(path)!r}: expected {name} to be true or false; got {value!r}")
            words += [option] * value
        else:
            words += [f"{option}={text}" for text in _texts(path, name, value, action.default == [])]
    return words


def _texts(path, name, value, is_repeated):
    """Yield the values of an option as on a command line."""
    expected = "a text or a number" + ", or several of them" * is_repeated
    if is_repeated and isinstance(value, dict):
        value = [f"{key}={item}" for key, item in value.items()]
    for item in value if is_repeated and isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise ValueError(f"{str(path)!r}: expected {name} to be {expected}; got {value!r}")
        yield item


def _read(path):
    import yaml

    if not path.is_file():
        raise ValueError(f"no such file: {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r}: expected a mapping from options to values; got {content!r:.60}")
    return content
