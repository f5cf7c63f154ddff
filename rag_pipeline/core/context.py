"""The context of an answer: numbered passages in a data block that no passage can leave. Pure and deterministic.

Passages are untrusted: every line is quoted with `> `, no `<` is left that could close the block or open another, and
what looks like our own marks (`[source 2]`, `citation://`, `asset://`) or like a change of speaker is taken apart. The
budget counts characters, not tokens, and the separators too. What does not fit is not cited.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import regex

from rag_pipeline.core.graphemes import floor_boundary
from rag_pipeline.core.passages import StoredImage

CONTEXT_CHARACTERS = 12_000
"""About 3,000 tokens of English, 8,000 of Chinese: small enough for every model in use."""
SEPARATOR = "\n\n---\n\n"
NO_LOCATION = "no source location provided"
CUT_MARK = " …"
SHORTEST_CUT = 200
"""Characters of content; less of a passage is not worth a source number."""
IMAGES_PER_SOURCE = 3
HEADER_CHARACTERS = 300
"""Longest document name, location or image description."""

_OWN_MARK = regex.compile(r"[\[【［](?=\s*sources?\b)", regex.IGNORECASE)
_CHAT_MARK = regex.compile(r"\[(/?(?:INST|SYS|SYSTEM|USER|ASSISTANT)\b[^\[\]\n]{0,20})\]", regex.IGNORECASE)
_OWN_SCHEME = regex.compile(r"\b(citation|asset)://", regex.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPassage:
    """One passage for the context, best first."""

    document: str
    location: str
    content: str
    images: tuple[StoredImage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSource:
    """A passage as it is in the context."""

    number: int
    """1-based; the rank of the passage."""
    characters: int
    """Of the content, from its beginning, that the model sees."""
    image_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is sent to the model, and which passages are in it."""

    text: str
    sources: tuple[ContextSource, ...]


def build_context(passages: Sequence[ContextPassage], *, budget: int = CONTEXT_CHARACTERS) -> Context:
    """As many passages, in order, as fit into `budget` characters; the last one may be cut.

    A passage of which less than `SHORTEST_CUT` characters would be left is left out, and so are all after it, so that
    the numbers of the sources are the ranks of the passages.
    """
    parts: list[str] = []
    sources: list[ContextSource] = []
    left = budget
    for number, passage in enumerate(passages, start=1):
        separator = SEPARATOR if parts else ""
        part, source = _section(number, passage, left - len(separator))
        if source is None:
            break
        parts.append(separator + part)
        sources.append(source)
        left -= len(parts[-1])
        if source.characters < len(passage.content):
            break
    return Context(text="".join(parts), sources=tuple(sources))


def neutral(text: str) -> str:
    """Untrusted text without anything that means something to us or to a model's chat format."""
    text = _OWN_MARK.sub("(", text.replace("<", "&lt;"))
    return str(_OWN_SCHEME.sub(r"\1:", _CHAT_MARK.sub(r"(\1)", text)))


def neutral_line(text: str) -> str:
    """As `neutral`, on one line and not longer than `HEADER_CHARACTERS`."""
    line = neutral(" ".join(text.split()))
    return line if len(line) <= HEADER_CHARACTERS else line[: HEADER_CHARACTERS - 1] + "…"


def location_text(
    *, page: int | None, page_end: int | None, heading_path: Sequence[str], metadata: Mapping[str, object]
) -> str:
    """Where a passage stands, for people: pages, sheet and rows, headings."""
    parts = []
    if page is not None:
        parts.append(f"page {page}" if page_end in {None, page} else f"pages {page}-{page_end}")
    parts += [f"{name} {metadata[name]}" for name in ("sheet", "row") if isinstance(metadata.get(name), str | int)]
    if heading_path:
        parts.append("section " + " > ".join(heading_path))
    return ", ".join(parts) or NO_LOCATION


def _section(number: int, passage: ContextPassage, room: int) -> tuple[str, ContextSource | None]:
    """The text of one source within `room` characters; no source if too little of it would be left."""
    images = passage.images[:IMAGES_PER_SOURCE]
    head = f"[source {number}]\ndocument: {neutral_line(passage.document)}\nlocation: {neutral_line(passage.location)}"
    tail = "".join(f"\n![{_description(image)}](asset://{image.id})" for image in images)
    head += ("\nimages:" + tail if tail else "") + "\ncontent:\n"
    whole = _quoted(passage.content)
    if len(head) + len(whole) <= room:
        sent, characters = whole, len(passage.content)
    else:
        characters = _fitting(passage.content, room - len(head) - len(CUT_MARK))
        if characters < max(min(SHORTEST_CUT, len(passage.content)), 1):
            return "", None
        sent = _quoted(passage.content[:characters]) + CUT_MARK
    ids = tuple(image.id for image in images)
    return head + sent, ContextSource(number=number, characters=characters, image_ids=ids)


def _fitting(content: str, room: int) -> int:
    """How many characters of the content, whole clusters, are quoted in `room` characters."""
    if room <= 0:
        return 0
    upper = min(len(content), room)
    length = bisect_right(range(upper + 1), room, key=lambda characters: len(_quoted(content[:characters]))) - 1
    return floor_boundary(content, max(length, 0)) if length < len(content) else length


def _quoted(content: str) -> str:
    return "\n".join(f"> {line}" for line in neutral(content).splitlines())


def _description(image: StoredImage) -> str:
    return neutral_line(image.description).translate({ord("["): "(", ord("]"): ")"}) or "image"
