"""Scripts of the repository that are no modules of a package, as modules."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[2]


def script(path):
    """The module of a script, by its path in the repository."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
