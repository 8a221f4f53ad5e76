"""The console script `keras-vit`.

It is outside the package, whose `__init__` imports Keras: command lines are parsed, and `--help` is printed,
before that.
"""

import contextlib
import importlib
import importlib.util
import sys

# The packages whose `__init__` imports Keras, or names for users of the library.
PACKAGES = ("data", "inspection", "layers", "models", "preprocessing", "training", "weights")


@contextlib.contextmanager
def without_keras():
    """Import modules of the package without the `__init__` of these packages and of itself.

    A process that has imported the package keeps it. Otherwise the modules are imported again after this.
    """
    if "keras_vit" in sys.modules:
        yield
        return
    try:
        for name in ("keras_vit", *(f"keras_vit.{package}" for package in PACKAGES)):
            sys.modules[name] = importlib.util.module_from_spec(importlib.util.find_spec(name))
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "keras_vit"]:
            del sys.modules[name]


def main(argv=None):
    """Run a subcommand; return the exit status: 0, 2 for bad input, 130 if interrupted."""
    with without_keras():
        console = importlib.import_module("keras_vit.cli.console")
        words = sys.argv[1:] if argv is None else [*argv]
        args = console.parser(words).parse_args(words)
        if not console.needs_keras(args):
            return console.run(args, with_keras=False)
    return console.run(args)


if __name__ == "__main__":
    sys.exit(main())
