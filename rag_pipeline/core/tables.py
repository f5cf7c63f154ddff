"""Line spans of tables and code, and the lines that are repeated in front when such a block is split."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rag_pipeline.core.sentences import Span

_RULE = re.compile(r"\s*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?\s*")
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})")
_HEADER_LINES = 8
"""How far down the rule line is looked for: more header rows than this do not occur."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of a block that may be split between lines."""

    spans: list[Span]
    """Lines with visible characters, in order, without the line end."""
    header: int
    """How many of the first lines are to be repeated in front of a later part."""
    groups: frozenset[int]
    """Indices of lines that follow a blank line."""
    closing: bool
    """Whether the last line only closes a fence."""


def table_lines(text: str, start: int, end: int, *, rows: Sequence[Sequence[str]]) -> Lines:
    """Rows of a table. The header is everything up to the Markdown rule line, or the first of as many lines as rows."""
    spans, _ = _line_spans(text, start, end, keep_indent=False)
    header = 0
    for index, (left, right) in enumerate(spans[1 : _HEADER_LINES + 1], start=1):
        if _RULE.fullmatch(text, left, right):
            header = index + 1
            break
    if not header and len(rows) == len(spans) > 1:
        header = 1
    return Lines(spans=spans, header=header, groups=frozenset(), closing=False)


def code_lines(text: str, start: int, end: int) -> Lines:
    """Lines of code with their indentation. The header is the opening fence line, if the block has one."""
    spans, groups = _line_spans(text, start, end, keep_indent=True)
    fenced = bool(spans) and is_fence(text[slice(*spans[0])])
    closing = fenced and len(spans) > 1 and _FENCE.fullmatch(text, *spans[-1]) is not None
    return Lines(spans=spans, header=1 if fenced else 0, groups=groups, closing=closing)


def is_fence(line: str) -> bool:
    """Whether the line opens or closes a fenced code block."""
    return _FENCE.match(line) is not None


def _line_spans(text: str, start: int, end: int, *, keep_indent: bool) -> tuple[list[Span], frozenset[int]]:
    spans: list[Span] = []
    groups: set[int] = set()
    position = start
    after_blank = False
    for line in text[start:end].splitlines(keepends=True):
        content = line.rstrip()
        if content:
            if after_blank:
                groups.add(len(spans))
            indent = 0 if keep_indent else len(content) - len(content.lstrip())
            spans.append((position + indent, position + len(content)))
        after_blank = not content
        position += len(line)
    return spans, frozenset(groups)
