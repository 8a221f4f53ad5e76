"""The bounds on images, wherever they are decoded."""

import os

MAX_PIXELS = os.environ.get("KERAS_VIT_MAX_PIXELS", str(2**28 // 3))
if not (MAX_PIXELS.isdecimal() and int(MAX_PIXELS)):
    raise ValueError(f"KERAS_VIT_MAX_PIXELS must be a positive int; got {MAX_PIXELS!r}")
MAX_PIXELS = int(MAX_PIXELS)
MAX_BYTES = 3 * MAX_PIXELS  # of a file, which then is no larger than its pixels may be
