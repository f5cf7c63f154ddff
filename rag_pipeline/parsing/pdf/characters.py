"""Kinds of characters that decide about blanks, hyphens and line breaks. Pure functions on strings."""

import re
import unicodedata

LINE_END_HYPHEN = "\u00ad"
"""How this package marks a hyphen at the end of a line until the lines are joined."""

REPLACEMENT = "\ufffd"
"""Stands for a glyph whose font does not say which character it is."""

_UNSPACED = re.compile(
    "[\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_PRESENTATION_FORMS = re.compile("[\ufb00-\ufb06\ufb13-\ufb17]")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
"""Characters that no text has; white space is none."""


def is_unspaced(character: str) -> bool:
    """Whether the script (Chinese, Japanese, full-width forms) puts no blanks between words; Korean does."""
    return _UNSPACED.match(character) is not None


def count_unspaced(text: str) -> int:
    """Characters of scripts without blanks."""
    return 0 if text.isascii() else len(_UNSPACED.findall(text))


def is_right_to_left(text: str) -> bool:
    """Whether the text has Hebrew or Arabic letters."""
    return not text.isascii() and _RIGHT_TO_LEFT.search(text) is not None


def clean_word(text: str) -> str:
    """Spell out ligature characters (U+FB01 becomes "fi") and drop control characters."""
    if text.isascii():
        return CONTROL.sub("", text) if not text.isprintable() else text
    text = _PRESENTATION_FORMS.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    return CONTROL.sub("", text)


def visible_length(text: str) -> float:
    """Length in Latin characters: one of Chinese or Japanese counts as two."""
    return len(text) + count_unspaced(text)
