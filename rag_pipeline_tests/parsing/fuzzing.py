"""Damages files: bits, ends, numbers, markup, pieces of other files. The same random state gives the same file.

Archives and PDF streams are opened up first, where a checksum or a filter would keep the damage from the parser.
"""

import io
import random
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import PurePath

import pikepdf

MAX_BYTES = 4_000_000
"""A damaged file is never longer."""

_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?")
_ODD_NUMBERS = (b"0", b"-1", b"1", b"65536", b"2147483648", b"-99999999999", b"1e308", b"9" * 5_000, b"NaN")
_MARKUP = re.compile(rb"<[^<>]{1,200}>|[\[\]{},:\"|]")


def damaged(content: bytes, name: str, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A damaged copy of a file.

    Args:
        content: of the file.
        name: its extension says whether it is opened up before it is damaged.
        others: files of the same format that pieces may come from.
        chance: decides everything.
    """
    extension = PurePath(name).suffix.lower()
    if zipfile.is_zipfile(io.BytesIO(content)) and chance.random() < 0.6:
        return _damaged_archive(content, others, chance)[:MAX_BYTES]
    if extension == ".pdf" and chance.random() < 0.5:
        content = _without_filters(content) or content
    for _ in range(chance.choice((1, 1, 2, 4))):
        content = chance.choice(_DAMAGES)(content, others, chance) or b"\0"
    return content[:MAX_BYTES]


def _damaged_archive(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """The archive with one of its parts damaged, exchanged or left out, and everything else in order."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = [(name, archive.read(name)) for name in archive.namelist()]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError):
        return _flip_bits(content, others, chance)
    if not parts or sum(len(data) for _, data in parts) > MAX_BYTES:
        return _flip_bits(content, others, chance)
    number = chance.randrange(len(parts))
    name, data = parts[number]
    if chance.random() < 0.1:
        del parts[number]
    else:
        pieces = [data for _, data in parts]
        for _ in range(chance.choice((1, 2, 4))):
            data = chance.choice(_DAMAGES)(data, pieces, chance)
        parts[number] = (name, data)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts:
            archive.writestr(name, data)
    return buffer.getvalue()


def _without_filters(content: bytes) -> bytes | None:
    """The PDF with its streams and objects in plain bytes; None if it cannot be opened."""
    buffer = io.BytesIO()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            pikepdf.open(io.BytesIO(content), suppress_warnings=True) as document,
        ):
            document.save(
                buffer,
                stream_decode_level=pikepdf.StreamDecodeLevel.generalized,
                compress_streams=False,
                object_stream_mode=pikepdf.ObjectStreamMode.disable,
                encryption=False,
            )
    except (pikepdf.PdfError, pikepdf.PasswordError, RuntimeError, ValueError, TypeError):
        return None
    return buffer.getvalue()


def _flip_bits(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 4, 30)) if content else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut_off(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _take_out(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    start, end = _piece(content, chance)
    return content[:start] + content[end:]


def _repeat(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    start, end = _piece(content, chance)
    times = chance.choice((1, 1, 3, 200)) if end - start < 2_000 else 1
    return content[:end] + content[start:end] * times + content[end:]


def _splice(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """The beginning of the file and the rest of another one, or a piece of that in the middle."""
    other = chance.choice(others) if others else content
    start, end = _piece(other, chance)
    place = chance.randrange(len(content) + 1)
    return content[:place] + (other[start:] if chance.random() < 0.5 else other[start:end] + content[place:])


def _change_number(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    found = list(_NUMBER.finditer(content[:MAX_BYTES]))
    return _exchange(content, chance.choice(found), chance.choice(_ODD_NUMBERS)) if found else content


def _change_markup(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """A tag, bracket, quote or separator left out, or in the place of another one."""
    found = list(_MARKUP.finditer(content[:MAX_BYTES]))
    return _exchange(content, chance.choice(found), chance.choice((b"", chance.choice(found)[0]))) if found else content


def _exchange(content: bytes, match: re.Match[bytes], replacement: bytes) -> bytes:
    return content[: match.start()] + replacement + content[match.end() :]


def _piece(content: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(content) + 1)
    return start, min(start + chance.choice((1, 16, 300, 5_000)), len(content))


_DAMAGES: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    _flip_bits,
    _cut_off,
    _take_out,
    _repeat,
    _splice,
    _change_number,
    _change_markup,
)
