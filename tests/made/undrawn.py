"""Figures that are made and not drawn, for tests that look at no pixel: tests/inspection draws them all."""

import contextlib
import io
from unittest import mock

from PIL import Image


@contextlib.contextmanager
def undrawn_figures():
    png = io.BytesIO()
    Image.new("L", (1, 1)).save(png, "PNG")
    with mock.patch("keras_vit.reports.page.png_of", lambda figure: png.getvalue()):
        yield
