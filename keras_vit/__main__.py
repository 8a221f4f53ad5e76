"""`python -m keras_vit`: the same command line as `keras-vit`."""

import sys

from _keras_vit_cli import main

if __name__ == "__main__":
    sys.exit(main())
