"""HTML reports that are complete in one file: pictures and style are inside, and all text is escaped.

The HTML is in the templates `page.html` and `parts.html`.
"""

import base64
import io
import math
import pathlib

import jinja2
import numpy as np

from keras_vit.preprocessing.image_files import image_bytes


class Report:
    """A page that is written section by section, and the PNG files of its figures.

    The page opens without a network. All text is escaped, since users choose the names of classes and files.

    Attributes:
        sections: The parts of each section by its heading.
        figures: The contents of the PNG files by their names.

    Example:
        >>> report = Report()
        >>> report.add("Scores", table("t", (), [("a", 1)]))
        >>> text = report.page("A model", "It <sees>.")
        >>> "It &lt;sees&gt;." in text, "http" in text
        (True, False)
    """

    def __init__(self):
        self.sections, self.figures = {}, {}

    def add(self, heading, *parts):
        """Append parts to a section: text, or what the functions below return."""
        self.sections.setdefault(heading, []).extend(parts)

    def draw(self, heading, name, figure, title):
        """Append a matplotlib figure to a section."""
        self.add(heading, self.drawn(name, figure, title))

    def drawn(self, name, figure, title):
        """Return a matplotlib figure as a picture, and keep its PNG file."""
        png = self.figures[f"{name}.png"] = png_of(figure)
        width = "plot wide" if figure.get_figwidth() > WIDE else "plot"
        return _PARTS.box(width, [picture(png, title)])

    def page(self, title, *paragraphs):
        """Return the HTML, with paragraphs below the title.

        In names of files that are not UTF-8, U+FFFD replaces other bytes.
        """
        page = _TEMPLATES.get_template("page.html")
        text = page.render(title=title, paragraphs=paragraphs, sections=self.sections)
        return text.encode(errors="surrogateescape").decode(errors="replace")


def picture(png, alt, caption="", file=""):
    """Return a PNG image.

    Args:
        png: The content of the file.
        alt: What it shows, for screen readers.
        caption: Text below it.
        file: The name of the image's file, below the caption.
    """
    return _PARTS.picture(base64.b64encode(png).decode("ascii"), alt, caption, file)


def explorer(image, similarity, alt):
    """Return an image of which a click or the arrow keys choose a patch, whose similar patches are shown.

    Of a grid with more than `MAX_PATCHES` patches every k-th row and column can be chosen and is compared.

    Args:
        image: (height, width, 3) in [0, 1].
        similarity: (rows, columns, rows, columns), cosines, as `patch_similarity` returns of one image.
        alt: What the image shows, for screen readers.
    """
    every = math.ceil(math.sqrt(similarity[0, 0].size / MAX_PATCHES))
    similarity = similarity[::every, ::every, ::every, ::every]
    png = image_bytes(np.rint(255 * np.clip(image, 0, 1)).astype("uint8"))
    cosines = np.rint(127.5 * (1 + similarity)).astype("uint8").tobytes()
    encoded = (base64.b64encode(data).decode("ascii") for data in (png, cosines))
    return _PARTS.explorer(*encoded, *similarity.shape[:2], alt)


def gallery(pictures):
    """Return small pictures side by side."""
    return _PARTS.box("gallery", pictures)


def panels(pictures):
    """Return figures side by side, or one below the other on a narrow screen."""
    return _PARTS.box("panels", pictures)


def table(title, columns, rows, folded=False):
    """Return a table whose first column names the rows.

    Args:
        title: The table's caption.
        columns: Column titles; () for pairs of a name and a value.
        rows: Tuples of text, numbers or None. The floats of a column of numbers get four decimals.
        folded: Whether only the title is shown until it is clicked.
    """
    numeric = [all(isinstance(x, int | float | None) for x in column) for column in zip(*rows)]
    numeric = [bool(columns) and is_number for is_number in numeric]
    return _PARTS.table(title, [*zip(columns, numeric)], rows, numeric, folded)


def code(command):
    """Return a command, of which a narrow screen breaks no word: browsers break lines after hyphens.

    >>> code("vit -a")
    Markup('<code><span>vit</span> <span>-a</span></code>')
    """
    return _PARTS.code(command.split(" "))


def png_of(figure):
    """Return the content of a PNG file of a matplotlib figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def format_value(value):
    """Return a value as text.

    >>> [format_value(value) for value in (0.98765, 1797, 1234567, None, (32, 48), "cat")]
    ['0.9877', '1797', '1,234,567', '–', '32, 48', 'cat']
    """
    if value is None or value in ((), []):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return value if isinstance(value, str) else str(value)  # HTML is a str that is not escaped again


MAX_PATCHES = 2048  # of an explorer, whose cosines then take 4 MB
WIDE = 6  # inches: wider figures are not shrunk to the width of a phone, but scrolled
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    finalize=format_value,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PARTS = _TEMPLATES.get_template("parts.html").module
