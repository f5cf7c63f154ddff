"""Elements of HTML trees: which are blocks, which are seen, and what they show. Pure functions on lxml elements."""

import re
from collections.abc import Iterator

from lxml import etree

_INVISIBLE = frozenset({
    "script", "style", "template", "noscript", "head", "svg", "canvas", "iframe", "object", "embed", "audio",
    "video", "map", "datalist", "colgroup", "annotation", "annotation-xml", "rp",
})  # fmt: skip
HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
BLOCKS = HEADINGS | {
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "dir",
    "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html",
    "legend", "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre", "search", "section", "select",
    "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
}  # fmt: skip
_CONTROLS = frozenset({"a", "button", "label"})
_SHOWN_FIELDS = frozenset({"text", "search", "email", "tel", "url", "number", "submit", "button"})
_HIDDEN_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\r\n\f\xa0]+")


def is_hidden(element: "etree._Element") -> bool:
    """Whether no reader sees the element."""
    tag = element.tag
    if tag in _INVISIBLE or element.get("hidden") is not None:
        return True
    style = element.get("style")
    return bool(style and _HIDDEN_STYLE.search(style)) or (tag == "input" and element.get("type") == "hidden")


def follows_control(element: "etree._Element") -> bool:
    """Whether it is a link, button or label right after another one, which only their style sets apart."""
    before = element.getprevious()
    return element.tag in _CONTROLS and before is not None and before.tag in _CONTROLS and not before.tail


def field_text(element: "etree._Element") -> str:
    """What a form field shows."""
    if element.tag == "textarea":
        return f" {element.text or ''} "
    if (element.get("type") or "text").lower() in _SHOWN_FIELDS:
        return f" {element.get('value') or ''} "
    return ""


def parts_of(element: "etree._Element") -> Iterator["etree._Element | str"]:
    """Text and children of an element in order."""
    if element.text:
        yield element.text
    for child in element:
        yield child
        if child.tail:
            yield child.tail


def count_in(text: str | None, default: int) -> int:
    """A number in an attribute, within reason: the HTML standard cuts spans at 1,000 columns and 65,534 rows."""
    text = (text or "").strip()
    return min(int(text[:9]), 65_534) if text.isdecimal() else default


def squeeze(text: str) -> str:
    """Runs of white space as one blank each."""
    return _SPACES.sub(" ", text)


def collapse(text: str) -> str:
    """White space as a browser shows it; line breaks are those of `br`."""
    return "\n".join(_SPACES.sub(" ", line).strip() for line in text.split("\n")).strip()
