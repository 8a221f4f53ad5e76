"""What every page that the package writes must be: whole, escaped, and without a tie to anywhere."""

import html.parser
import re

VOID = {"meta", "link", "img", "br", "hr", "input"}
ALLOWED = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "nav", "main", "section", "div"),
    *("h1", "h2", "p", "ol", "li", "a", "figure", "figcaption", "img", "table", "caption", "thead", "tbody"),
    *("tr", "th", "td", "details", "summary", "small", "code"),
    *("canvas", "span", "output", "script"),
}


class Page(html.parser.HTMLParser):
    """A page that has been read, tags balanced: `tags` as (name, attributes), `words` and `headings`."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words, self.headings, self.style = [], [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" in self.open:
            self.style += data
        elif data.strip() and "script" not in self.open:
            self.words.append(data)
            if "h2" in self.open:
                self.headings.append(data)

    @property
    def text(self):
        return " ".join(self.words)

    def pictures(self):
        return [attributes for tag, attributes in self.tags if tag == "img"]


def read_page(text):
    """The page, after it was held against what holds for all of them."""
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert text.startswith("<!doctype html>") and {*tags} <= ALLOWED
    assert all(tags.count(once) == 1 for once in ("html", "head", "title", "body", "h1", "main", "nav"))
    assert page.tags[0] == ("html", {"lang": "en"})
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert not re.search(r"url\(|@import|expression", page.style)
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcset")]
        for name in {"src", "href", "data", "action", "poster"} & {*attributes}:
            value = attributes[name]
            assert value.startswith("data:") or (value[0] == "#" and value[1:] in targets), (tag, value[:99])
        assert tag != "img" or attributes["alt"].strip()
    assert page.headings and len(targets) == len(page.headings)
    return page
