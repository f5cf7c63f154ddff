"""Rows as one JSON parameter, so that a batch of any size is one statement of constant text."""

import json
import math
import re
from collections.abc import Mapping, Sequence

_REPLACEMENT = "\ufffd"
_ESCAPE_OR_SURROGATE = re.compile(r"\\(u0000|.)|[\ud800-\udfff]")
"""Walks escape by escape, so that an escaped backslash before `u0000` is not mistaken for a NUL."""


def to_json(rows: Sequence[Mapping[str, object]]) -> str:
    """JSON that `jsonb` accepts whatever a file or an error message holds.

    NUL and lone surrogates become U+FFFD, NaN and infinities become null: PostgreSQL refuses the whole statement for
    one of them, and with it every other document of the batch.
    """
    try:
        text = json.dumps(rows, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(rows), ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text or not _is_encodable(text):
        text = _ESCAPE_OR_SURROGATE.sub(_cleaned, text)
    return text


def _cleaned(found: re.Match[str]) -> str:
    return found[0] if found[1] not in (None, "u0000") else _REPLACEMENT


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
