"""What users named, as text in Markdown: shown as it is, never taken for Markdown or HTML."""

import html
import re

from keras_vit.messages import printable


def plain(text):
    """A line of text.

    >>> print(plain("<b>5 * 3</b> | `x`"))
    &lt;b&gt;5 \\* 3&lt;/b&gt; \\| \\`x\\`
    """
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(printable(text), quote=False))


def code(text):
    """The same as code; in a table it must have no |.

    >>> code("rose"), code("a`b"), code("`")
    ('`rose`', '``a`b``', '`` ` ``')
    """
    text = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text[:1] + text[-1:] else ""
    return f"{fence}{space}{text}{space}{fence}"
