"""Keeps the options of commands in one line, as a hook of MkDocs: browsers break lines after hyphens."""

import re

COMMANDS = re.compile(
    r'<div class="language-(?:bash|text) highlight">.*?</div>|<td><code>.*?</code></td>', re.DOTALL
)
OPTION = re.compile(r"(?<=[\s>])--\w[\w-]*")


def on_page_content(html, **kwargs):
    """Put each option of a command into an element, which style.css does not break.

    >>> on_page_content("<td><code>vit --top 3</code></td> --top")
    '<td><code>vit <span class="option">--top</span> 3</code></td> --top'
    """
    return COMMANDS.sub(lambda found: OPTION.sub(r'<span class="option">\g<0></span>', found[0]), html)
