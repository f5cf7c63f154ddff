"""What may stay of a model's answer: citations of sources it saw, images we gave it, links that the sources hold.

Works on pieces as they stream in: what may still become a mark is held back until it is one or is none.
"""

from collections.abc import Iterable
from typing import cast

import regex

MARK_CHARACTERS = 600
"""A longer mark is none."""

_MARK = regex.compile(
    r"(?P<image>!)?[\[【](?P<label>[^\[\]【】\n]{0,300})[\]】]"
    r"(?:\((?P<target>[^()\s]{0,250})(?:\s+\"[^\"\n]{0,40}\")?\)|\[(?P<reference>[^\[\]\n]{0,100})\])?"
    r"|(?P<html><\s*/?\s*(?:img|iframe|script|object|embed|svg|video|audio|link)\b[^>\n]{0,400}>?)",
    regex.IGNORECASE,
)
_BEGIN = regex.compile(r"!?[\[【]|!\Z|<")
_LABEL = regex.compile(r"\s*sources?\s*\d+(?:\s*(?:,|;|and|&|、|，|和)\s*(?:sources?\s*)?\d+)*\s*", regex.IGNORECASE)
_NUMBER = regex.compile(r"\d{1,4}")
_CITATION = regex.compile(r"citation://(\d{1,4})", regex.IGNORECASE)
_ASSET = regex.compile(r"asset://([0-9A-Za-z_-]{1,100})")
_OPEN_TARGET = regex.compile(r"\([^()\n]*|\[[^\[\]\n]*")
_SCHEME = regex.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//")


class AnswerFilter:
    """Lets through an answer's text, with only the marks that are right; keeps count of both kinds."""

    def __init__(self, *, numbers: Iterable[int], image_ids: Iterable[str], context: str) -> None:
        """Begin an answer.

        Args:
            numbers: of the sources in the context.
            image_ids: of the images in the context.
            context: as it was sent; a link is kept if its address stands there.
        """
        self.cited: dict[int, None] = {}
        """Numbers of sources that the answer cites, in order of first use."""
        self.dropped: list[str] = []
        """Marks that were taken out."""
        self._numbers = frozenset(numbers)
        self._image_ids = frozenset(image_ids)
        self._context = context
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that is certain after this piece."""
        self._held += piece
        return self._release(is_last=False)

    def finish(self) -> str:
        """The rest."""
        return self._release(is_last=True)

    def _release(self, *, is_last: bool) -> str:
        out: list[str] = []
        text, position = self._held, 0
        while (begin := _BEGIN.search(text, position)) is not None:
            out.append(text[position : begin.start()])
            position = begin.start()
            found = _MARK.match(text, position, partial=not is_last)
            if not is_last and found is not None and _may_grow(found, text):
                break
            if found is None or found.partial:
                out.append(text[position])
                position += 1
                continue
            out.append(self._checked(found))
            position = max(found.end(), position + 1)
        else:
            out.append(text[position:])
            position = len(text)
        self._held = text[position:]
        return "".join(out)

    def _checked(self, found: "regex.Match[str]") -> str:
        """What the mark becomes: itself, a citation in our form, its label, or nothing."""
        whole, label = found.group(), cast("str", found["label"] or "")
        target = cast("str", found["target"] or "")
        if found["html"] is not None:
            return self._drop(whole, "")
        if found["image"]:
            asset = _ASSET.fullmatch(target)
            return whole if asset and asset[1] in self._image_ids else self._drop(whole, "")
        citation = _CITATION.fullmatch(target)
        if _LABEL.fullmatch(label):
            numbers = [int(number) for number in _NUMBER.findall(label)]
            if target and (citation is None or int(citation[1]) not in numbers):
                return self._drop(whole, "")
            return self._citations(whole, numbers)
        if citation is not None:
            return self._citations(whole, [int(citation[1])])
        return self._link(whole, label, target)

    def _citations(self, whole: str, numbers: list[int]) -> str:
        known = [number for number in dict.fromkeys(numbers) if number in self._numbers]
        if len(known) < len(numbers):
            self.dropped.append(whole)
        self.cited.update(dict.fromkeys(known))
        return "".join(f"[source {number}](citation://{number})" for number in known)

    def _link(self, whole: str, label: str, target: str) -> str:
        asset = _ASSET.fullmatch(target)
        if asset is not None:
            return whole if asset[1] in self._image_ids else self._drop(whole, label)
        if not _SCHEME.match(target) or target in self._context:
            return whole
        return self._drop(whole, label)

    def _drop(self, whole: str, instead: str) -> str:
        self.dropped.append(whole)
        return instead


def _may_grow(found: "regex.Match[str]", text: str) -> bool:
    """Whether more text could make the mark longer: it is not finished, or a target may follow or has begun."""
    if len(text) - found.start() >= MARK_CHARACTERS:
        return False
    if found.partial or found["html"] is not None:
        return found.end() == len(text) and not text.endswith(">")
    if found["target"] is not None or found["reference"] is not None:
        return False
    return found.end() == len(text) or _OPEN_TARGET.fullmatch(text, found.end()) is not None
