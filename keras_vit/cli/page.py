"""A page for people, whole in one file: it refers to nothing outside itself."""

import base64
import dataclasses
import html
import io


@dataclasses.dataclass(frozen=True)
class Picture:
    """A PNG in a page.

    Args:
        png: The file's content.
        alt: What it shows, for who cannot see it.
        caption: What is written below it.
        file: The image file's name, below the caption.
    """

    png: bytes
    alt: str
    caption: str = ""
    file: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of values under column titles; the first of each row says what the row is of.

    Args:
        title: What the table is of.
        columns: Titles; () for pairs of a name and its value.
        rows: Of as many values: text, numbers or None.
    """

    title: str
    columns: tuple
    rows: list


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page: words, figures and tables, small pictures; closed at first if `folded`."""

    heading: str
    words: tuple[str, ...] = ()
    figures: tuple[Picture, ...] = ()
    gallery: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False


def page(title, words, sections):
    """HTML that opens without a network, on a phone as on a desk, and prints.

    All text is escaped: names of classes and files are what users made of them.

    Args:
        title: The page's title.
        words: Paragraphs below it.
        sections: Sections, listed at the top.

    Returns:
        The file's text.

    Example:
        >>> text = page("A model", ["It <sees>."], [Section("Scores", tables=(Table("t", (), [("a", 1)]),))])
        >>> "It &lt;sees&gt;." in text, "http" in text
        (True, False)
    """
    numbered = [*enumerate(sections, 1)]
    contents = "\n".join(f'<li><a href="#s{i}">{_text(s.heading)}</a></li>' for i, s in numbered)
    body = "\n".join(_section(i, section) for i, section in numbered)
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
{_paragraphs(words)}
</header>
<nav aria-label="Contents">
<ol>
{contents}
</ol>
</nav>
<main>
{body}
</main>
</body>
</html>
"""


def png_of(figure):
    """A figure as the content of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def shown(value):
    """A value as people read it.

    >>> [shown(value) for value in (0.98765, 1797, 1234567, None, True, (32, 48), "cat")]
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
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(part)}" for name, part in value.items())
    return str(value)


def _section(number, section):
    heading = f"<h2>{_text(section.heading)}</h2>"
    parts = [
        f'<section id="s{number}">',
        f"<details><summary>{heading}</summary>" if section.folded else heading,
        _paragraphs(section.words),
        *_side_by_side("row", [*map(_figure, section.figures), *map(_table, section.tables)]),
        *_side_by_side("gallery", map(_figure, section.gallery)),
        "</details>" if section.folded else "",
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def _side_by_side(kind, parts):
    parts = [*parts]
    return [f'<div class="{kind}">', *parts, "</div>"] if parts else []


def _paragraphs(words):
    return "\n".join(f"<p>{_text(word)}</p>" for word in words)


def _figure(picture):
    data = base64.b64encode(picture.png).decode("ascii")
    image = f'<img src="data:image/png;base64,{data}" alt="{_text(picture.alt)}">'
    file = f"<small>{_text(picture.file)}</small>" if picture.file else ""
    caption = f"<figcaption>{_text(picture.caption)}{file}</figcaption>" if picture.caption or file else ""
    return f"<figure>{image}{caption}</figure>"


def _table(table):
    numeric = [bool(table.columns) and all(map(_is_number, column)) for column in zip(*table.rows)]
    lines = [
        f'<div class="scroll" role="region" tabindex="0" aria-label="{_text(table.title)}">',
        "<table>",
        f"<caption>{_text(table.title)}</caption>",
    ]
    if table.columns:
        titles = zip(table.columns, numeric)
        cells = "".join(f'<th scope="col"{_kind(number)}>{_text(title)}</th>' for title, number in titles)
        lines.append(f"<thead><tr>{cells}</tr></thead>")
    lines.append("<tbody>")
    for name, *values in table.rows:
        cells = "".join(_cell(value, number) for value, number in zip(values, numeric[1:]))
        lines.append(f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def _cell(value, number):
    """A cell; those of a column of numbers have as many decimals, to the right."""
    text = f"{value:.4f}" if number and isinstance(value, float) else _text(value)
    return f"<td{_kind(number)}>{text}</td>"


def _kind(number):
    return ' class="number"' if number else ""


def _is_number(value):
    return value is None or isinstance(value, int | float)


def _text(value):
    return html.escape(shown(value))


STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: #1a1a1a; background: #fff;
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 1px solid #ccc; }
p { max-width: 46rem; margin: .5rem 0; }
nav ol { margin: 1rem 0; padding-left: 1.5rem; columns: 15rem; }
a { color: #0b4f9e; }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; }
figcaption { font-size: .875rem; line-height: 1.3; margin-top: .25rem; }
figcaption small { display: block; font-size: .75rem; color: #666; overflow-wrap: anywhere; }
summary { cursor: pointer; }
summary h2 { display: inline-block; border: 0; margin: 0; padding: 0; }
details { margin-top: 2.5rem; padding-top: .5rem; border-top: 1px solid #ccc; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); gap: 1rem; }
.gallery figure { margin: 0; }
.gallery img { width: 100%; max-width: 8rem; }
.row { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 0 3rem; }
.row > * { min-width: 0; max-width: 100%; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .25rem; white-space: nowrap; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
thead th { border-bottom: 1px solid #666; }
tbody th { font-weight: 400; }
td { overflow-wrap: anywhere; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
@media screen and (max-width: 45rem) {
  .row > figure { overflow-x: auto; }
  .row > figure img { max-width: none; zoom: .7; }
}
@media print {
  body { max-width: none; padding: 0; }
  nav { display: none; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
}
"""
