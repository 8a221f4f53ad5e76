"""HTML reports that are complete in one file: pictures and style are inside, and all text is escaped."""

import base64
import html
import io


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
        return Markup(f'<div class="{width}">{picture(png, title)}</div>')

    def page(self, title, *paragraphs):
        """Return the HTML, with paragraphs below the title."""
        contents, body = [], []
        for i, (heading, parts) in enumerate(self.sections.items()):
            contents.append(f'<li><a href="#s{i}">{_text(heading)}</a></li>')
            body.append(f'<section id="s{i}"><h2>{_text(heading)}</h2>\n{_parts(parts)}\n</section>\n')
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
{_parts(paragraphs)}
</header>
<nav aria-label="Contents"><ol>{"".join(contents)}</ol></nav>
<main>
{"".join(body)}</main>
</body>
</html>
"""


class Markup(str):
    """HTML, which is not escaped again."""


def picture(png, alt, caption="", file=""):
    """Return a PNG image.

    Args:
        png: The content of the file.
        alt: What it shows, for screen readers.
        caption: Text below it.
        file: The name of the image's file, below the caption.
    """
    data = base64.b64encode(png).decode("ascii")
    caption = _text(caption) + (f"<small>{_text(file)}</small>" if file else "")
    caption = f"<figcaption>{caption}</figcaption>" if caption else ""
    return Markup(f'<figure><img src="data:image/png;base64,{data}" alt="{_text(alt)}">{caption}</figure>')


def gallery(pictures):
    """Return small pictures side by side."""
    return Markup(f'<div class="gallery">{"".join(pictures)}</div>')


def panels(pictures):
    """Return figures side by side, or one below the other on a narrow screen."""
    return Markup(f'<div class="panels">{"".join(pictures)}</div>')


def table(title, columns, rows, folded=False):
    """Return a table whose first column names the rows.

    Args:
        title: The table's caption.
        columns: Column titles; () for pairs of a name and a value.
        rows: Tuples of text, numbers or None. The floats of a column of numbers get four decimals.
        folded: Whether only the title is shown until it is clicked.
    """
    numeric = [all(isinstance(x, int | float | None) for x in column) for column in zip(*rows)]
    kinds = [' class="number"' if columns and number else "" for number in numeric]
    lines = ["".join(f'<th scope="col"{kind}>{_text(name)}</th>' for name, kind in zip(columns, kinds))]
    for name, *values in rows:
        line = f'<th scope="row">{_text(name)}</th>'
        for value, kind in zip(values, kinds[1:]):
            value = f"{value:.4f}" if kind and isinstance(value, float) else value
            line += f"<td{kind}>{_text(value)}</td>"
        lines.append(line)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines if line)
    caption = "" if folded else f"<caption>{_text(title)}</caption>\n"
    text = f'<div class="scroll"><table>{caption}{body}\n</table></div>'
    return Markup(f"<details><summary>{_text(title)}</summary>\n{text}</details>" if folded else text)


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
    return str(value)


def _parts(parts):
    return "\n".join(part if isinstance(part, Markup) else f"<p>{_text(part)}</p>" for part in parts)


def _text(value):
    return html.escape(format_value(value))


WIDE = 6  # inches: wider figures are not shrunk to the width of a phone, but scrolled
STYLE = """
:root { color-scheme: light dark; }
:root { --text: #1a1a1a; --back: #fff; --soft: #5a5a5a; --line: #d0d0d0; --link: #3b4cc0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ececec; --back: #16181c; --soft: #a8a8a8; --line: #4a4e57; --link: #a9b4ff; }
}
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 1rem/1.5 system-ui, sans-serif; }
body { color: var(--text); background: var(--back); overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.25; }
h2 { margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--line); font-size: 1.25rem; }
a { color: var(--link); }
nav ol { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; list-style: none; }
@media (min-width: 64rem) {
  body { display: grid; grid-template-columns: 11rem minmax(0, 1fr); column-gap: 2rem; max-width: 76rem; }
  header { grid-column: 1 / -1; }
  nav { position: sticky; top: 1rem; align-self: start; max-height: calc(100vh - 2rem); overflow-y: auto; }
  nav ol { flex-direction: column; margin: 2.5rem 0 0; font-size: .875rem; }
}
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; }
figcaption, table { font-size: .875rem; }
small { display: block; font-size: .75rem; color: var(--soft); }
.plot { overflow-x: auto; }
.plot img { box-sizing: border-box; padding: .5rem; border-radius: .375rem; background: #fff; }
.wide img { max-width: max(100%, 40rem); }
.panels { display: grid; gap: 0 1rem; }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(18rem, 100%), 1fr)); }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: 1rem; }
.gallery figure { margin: 0; }
.gallery img { width: 100%; max-width: 8rem; image-rendering: pixelated; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; }
caption { text-align: left; font-weight: 600; }
summary { margin: .5rem 0; font-weight: 600; cursor: pointer; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
th, td { border-bottom: 1px solid var(--line); }
th[scope=row] { font-weight: 400; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
"""
