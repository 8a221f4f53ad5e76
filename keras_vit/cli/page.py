"""HTML pages that are complete in one file: pictures and style are inside, and all text is escaped."""

import base64
import html
import io


def page(title, paragraphs, sections):
    """Return a page that opens without a network.

    All text is escaped, since users choose the names of classes and files.

    Args:
        title: The page's title.
        paragraphs: Text below the title.
        sections: A dict from headings to lists of parts: text, or what the functions below return.

    Example:
        >>> text = page("A model", ["It <sees>."], {"Scores": [table("t", (), [("a", 1)])]})
        >>> "It &lt;sees&gt;." in text, "http" in text
        (True, False)
    """
    contents = [f'<li><a href="#s{i}">{_text(heading)}</a></li>' for i, heading in enumerate(sections)]
    body = [
        f'<section id="s{i}"><h2>{_text(heading)}</h2>\n{_parts(parts)}\n</section>'
        for i, (heading, parts) in enumerate(sections.items())
    ]
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
<h1>{_text(title)}</h1>
{_parts(paragraphs)}
<nav aria-label="Contents"><ol>{"".join(contents)}</ol></nav>
<main>
{_lines(body)}
</main>
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
    image = f'<img src="data:image/png;base64,{data}" alt="{_text(alt)}">'
    file = f"<small>{_text(file)}</small>" if file else ""
    caption = f"<figcaption>{_text(caption)}{file}</figcaption>" if caption or file else ""
    return Markup(f"<figure>{image}{caption}</figure>")


def gallery(pictures):
    """Return small pictures side by side."""
    return Markup(f'<div class="gallery">{_lines(pictures)}</div>')


def table(title, columns, rows):
    """Return a table whose first column names the rows.

    Args:
        title: The table's caption.
        columns: Column titles; () for pairs of a name and a value.
        rows: Tuples of text, numbers or None. The floats of a column of numbers get four decimals.
    """
    numeric = [bool(columns) and all(map(_is_number, column)) for column in zip(*rows)]
    cells = [_lines(f'<th scope="col"{_class(n)}>{_text(c)}</th>' for c, n in zip(columns, numeric))]
    for name, *values in rows:
        row = "".join(_cell(value, number) for value, number in zip(values, numeric[1:]))
        cells.append(f'<th scope="row">{_text(name)}</th>{row}')
    body = _lines(f"<tr>{row}</tr>" for row in cells if row)
    return Markup(f'<div class="scroll"><table><caption>{_text(title)}</caption>\n{body}\n</table></div>')


def folded(summary, *parts):
    """Return parts that are shown when a reader opens them."""
    return Markup(f"<details><summary>{_text(summary)}</summary>\n{_lines(parts)}\n</details>")


def png_of(figure):
    """Return the content of a PNG file of a matplotlib figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def format_value(value):
    """Return a value as text.

    >>> [format_value(value) for value in (0.98765, 1797, 1234567, None, True, (32, 48), "cat")]
    ['0.9877', '1797', '1,234,567', '–', 'yes', '32, 48', 'cat']
    """
    if value is None or value in ((), [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(part)}" for name, part in value.items())
    return str(value)


def _parts(parts):
    return _lines(part if isinstance(part, Markup) else f"<p>{_text(part)}</p>" for part in parts)


def _lines(parts):
    return "\n".join(parts)


def _cell(value, number):
    text = f"{value:.4f}" if number and isinstance(value, float) else _text(value)
    return f"<td{_class(number)}>{text}</td>"


def _class(number):
    return ' class="number"' if number else ""


def _is_number(value):
    return value is None or isinstance(value, int | float)


def _text(value):
    return html.escape(format_value(value))


STYLE = """
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 1rem/1.5 system-ui, sans-serif; }
body { color: #1a1a1a; background: #fff; overflow-wrap: break-word; }
h2 { margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 1px solid #ccc; font-size: 1.25rem; }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; }
figcaption, table { font-size: .875rem; }
small { display: block; font-size: .75rem; color: #666; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: 1rem; }
.gallery figure { margin: 0; }
.gallery img { width: 100%; max-width: 8rem; image-rendering: pixelated; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; }
caption { text-align: left; font-weight: 600; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
th[scope=row] { font-weight: 400; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
"""
