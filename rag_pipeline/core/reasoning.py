"""What a reasoning model says to itself before it answers, `<think>...</think>`: no part of the answer.

Works on pieces as they stream in, wherever they are cut.
"""

import regex

_TAG = r"(?P<tag><(?P<end>/?)think(?:ing)?\s{0,8}>)"
_UNFINISHED_TAG = r"<[^<>]{0,24}\Z"
_CODE = r"`[^`\n]{1,200}`"
"""Passed over: an answer may be about such tags."""
_UNFINISHED_CODE = r"`[^`\n]{0,200}\Z"

_OUTSIDE = regex.compile(rf"{_CODE}|(?P<held>{_UNFINISHED_CODE}|{_UNFINISHED_TAG})|{_TAG}", regex.IGNORECASE)
_INSIDE = regex.compile(rf"{_TAG}|(?P<held>{_UNFINISHED_TAG})", regex.IGNORECASE)


class ReasoningFilter:
    """Lets through an answer's text without the thoughts in it.

    Thoughts that nobody closes go on to the end. Some chat templates open them in the prompt, so that an answer begins
    with thoughts and only closes them: what has not been let through before such an end is dropped, which is all of it
    in an answer that comes in one piece.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_thinking = False
        self._has_thought = False
        self._has_begun = False

    def feed(self, piece: str) -> str:
        """The text that is certain after this piece."""
        self._held += piece
        return self._release(is_last=False)

    def finish(self) -> str:
        """The rest."""
        return self._release(is_last=True)

    def _release(self, *, is_last: bool) -> str:
        out, text, position = "", self._held, 0
        while (found := (_INSIDE if self._is_thinking else _OUTSIDE).search(text, position)) is not None:
            if found["held"] is not None and not is_last:
                break
            before = "" if self._is_thinking else text[position : found.start()]
            position = found.end()
            if found["tag"] is None:
                out += "" if self._is_thinking else before + found.group()
                continue
            is_end = bool(found["end"])
            out = "" if is_end and not self._has_thought else out + before
            self._is_thinking, self._has_thought = not is_end, True
        certain = text[position : len(text) if found is None else found.start()]
        self._held = text[position + len(certain) :]
        return self._begun(out if self._is_thinking else out + certain)

    def _begun(self, out: str) -> str:
        """Without the blank lines between thoughts and answer."""
        if self._has_thought and not self._has_begun:
            out = out.lstrip()
        self._has_begun = self._has_begun or bool(out)
        return out
