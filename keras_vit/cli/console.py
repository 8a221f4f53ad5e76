"""The console: runs a subcommand with its backend, without start-up logs, to an exit status."""

import contextlib
import importlib
import os
import signal
import sys
import threading

from keras_vit.cli import device
from keras_vit.cli.parser import parser as parser
from keras_vit.cli.parser import subcommand
from keras_vit.cli.report import check_json, print_now
from keras_vit.messages import one_line, printable, redact_urls
from keras_vit.startup_logs import quiet_startup_logs


def needs_keras(args):
    """Whether a subcommand imports Keras and TensorFlow; a module with a function of this name decides."""
    return getattr(subcommand(args.subcommand), "needs_keras", lambda args: True)(args)


def run(args, with_keras=True):
    """Run a subcommand; return the exit status: 0, 2 for bad input, 130 if interrupted, 143 after SIGTERM.

    Args:
        args: The parsed command line.
        with_keras: Whether to import Keras and TensorFlow before.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    after = ""
    if hasattr(sys.stdout, "reconfigure"):  # Names of files that are not UTF-8 keep their bytes.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        check_json(args)
        device.choose(args)
        module = _start(args.subcommand, with_keras)
        device.check(args)
        if continues := getattr(module, "continues", lambda args: None)(args):
            after = f"; {continues}"
        with _sigterm_as_exit(f"keras-vit: stopped by SIGTERM{after}"):
            status = module.run(args) or 0
        print_now("", end="")
        return status
    except BrokenPipeError:  # the reader of standard output has ended, such as `head`
        _discard_output()
        return 141
    except Exception as error:
        # Bad input, or TensorFlow's error about a file or an image; any other exception is a bug.
        from_tensorflow = type(error).__module__.startswith("tensorflow.")
        if not (from_tensorflow or isinstance(error, ValueError | OSError | ImportError)):
            raise
        try:
            sys.stdout.flush()
        except OSError:  # its disk is full, and Python would try again at exit
            _discard_output()
        print(f"keras-vit: {printable(redact_urls(one_line(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"keras-vit: interrupted{after}", file=sys.stderr)
        return 130


@contextlib.contextmanager
def _sigterm_as_exit(line):
    """Print a line on SIGTERM and end by SystemExit, so that temporary files are removed."""

    def stop(number, frame):
        print(line, file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # which alone can handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _start(name, with_keras):
    """Return the subcommand's module, after the package and TensorFlow with Keras."""
    if with_keras:
        with quiet_startup_logs():
            importlib.import_module("keras_vit")
            importlib.import_module("tensorflow").config.list_physical_devices()
    return subcommand(name)


def _discard_output():
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
