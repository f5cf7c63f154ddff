"""Where a text may be cut without tearing a user-perceived character (extended grapheme clusters, UAX 29)."""

import regex

MAX_CLUSTER = 256
"""Characters. The longest real clusters have about a dozen; piles of combining marks beyond this are cut."""
_MAX_LOOK_BACK = 4096
"""Characters. Text without an anchor for longer than this (nothing but flags) may be cut inside a cluster."""

_CLUSTER = regex.compile(r"\X")
_ANCHOR = regex.compile(
    r"(?rV1)(?<![\p{GCB=Prepend}\p{GCB=Extend}\p{GCB=ZWJ}])[\p{GCB=Other}--\p{Extended_Pictographic}]"
)
"""A cluster begins before such a character whatever stands further left. Searched from right to left."""


def is_boundary(text: str, position: int, *, lowest: int = 0) -> bool:
    """Whether a cut at `position` keeps every cluster whole; `lowest` as for `floor_boundary`."""
    if position <= lowest or position >= len(text):
        return True
    before, after = text[position - 1], text[position]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    return floor_boundary(text, position, lowest=lowest) == position


def floor_boundary(text: str, position: int, *, lowest: int = 0) -> int:
    """The last boundary at or before `position`, and after or at `lowest`, which must be a boundary itself."""
    if position >= len(text):
        return len(text)
    look_from = max(lowest, position - _MAX_LOOK_BACK)
    anchor = _ANCHOR.search(text, look_from, position + 1)
    boundary = look_from if anchor is None else int(anchor.start())
    while boundary < position:
        end = int(_CLUSTER.match(text, boundary, boundary + MAX_CLUSTER).end())
        if end > position:
            break
        boundary = end
    return boundary


def ceil_boundary(text: str, position: int, *, lowest: int = 0) -> int:
    """The first boundary at or after `position`."""
    floor = floor_boundary(text, position, lowest=lowest)
    return floor if floor >= position else int(_CLUSTER.match(text, floor, floor + MAX_CLUSTER).end())
