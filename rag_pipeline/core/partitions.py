"""Names: partition keys that people can read, and the keys of objects. Pure, no I/O."""

import hashlib
import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import regex

from rag_pipeline.errors import InvalidFileNameError

MAX_PARTITION_KEY = 100
"""Characters; longer keys make the partition list of the Dagster UI unreadable."""
MAX_SOURCE_PATH = 2_000
"""Bytes in UTF-8: the path is in a unique index, whose rows PostgreSQL limits to 2,704 bytes."""
MAX_FILE_NAME = 255
"""Characters, as in most file systems' limit (there in bytes)."""

_NOT_ALLOWED = regex.compile(r"[^\p{L}\p{M}\p{N}._\-]+")
_DOTS = regex.compile(r"\.{2,}")
_CONTROL = regex.compile(r"[\p{Cc}\p{Cs}\u2028\u2029]")


def partition_key(kb_name: str, file_name: str, document_id: str) -> str:
    """`{kb}.{file name}~{12 hex of the document id}`: letters of any script, digits and `._-~`.

    Commas, blanks, slashes and "..." (a range) in keys break the Dagster UI; the id keeps keys apart and is never cut.
    """
    suffix = f"~{document_id.replace('-', '')[:12]}"
    readable = _NOT_ALLOWED.sub("-", unicodedata.normalize("NFC", f"{kb_name}.{file_name}"))
    readable = _DOTS.sub(".", readable)
    return _cut(readable, MAX_PARTITION_KEY - len(suffix)) + suffix


def source_path(given: str) -> str:
    """The identity of a document inside its knowledge base: relative, `/` separated, NFC.

    Raises:
        InvalidFileNameError: it is absolute, climbs with `..`, is empty, too long, or holds control characters.
    """
    parts = PurePosixPath(unicodedata.normalize("NFC", given).replace("\\", "/")).parts
    clean = "/".join(parts)
    if not parts or not parts[-1].strip():
        raise InvalidFileNameError("the file name is empty")
    if PureWindowsPath(clean).drive or parts[0].startswith(("/", "~")) or ".." in parts:
        raise InvalidFileNameError(
            f"{given!r} is not a plain relative path: give a name below the folder, without '..'"
        )
    if has_control_characters(clean):
        raise InvalidFileNameError(f"{given!r} holds control characters: rename the file")
    if len(parts[-1]) > MAX_FILE_NAME:
        raise InvalidFileNameError(
            f"the file name {parts[-1][:60]!r}... is over {MAX_FILE_NAME} characters: shorten it"
        )
    if len(clean.encode()) > MAX_SOURCE_PATH:
        raise InvalidFileNameError(f"the path {clean[:60]!r}... is over {MAX_SOURCE_PATH} bytes: use fewer folders")
    return clean


def file_name(given: str) -> str:
    r"""A bare file name, checked.

    Raises:
        InvalidFileNameError: it is a path (`a/b.pdf`, `..\b.pdf`), or `source_path` refuses it.
    """
    clean = source_path(given)
    if "/" in clean or "\\" in given:
        raise InvalidFileNameError(f"{given!r} is a path: give the bare file name, or a folder to submit_many")
    return clean


def has_control_characters(text: str) -> bool:
    """Whether a name holds control characters, line separators or bytes that are no text: refused in every name."""
    return _CONTROL.search(text) is not None


def original_key(kb_id: str, document_id: str, version: int, name: str) -> str:
    """Key of an original; of the user's file name only a plain extension is used."""
    extension = PurePosixPath(name).suffix.lower()
    if not regex.fullmatch(r"\.[a-z0-9]{1,10}", extension):
        extension = ""
    return f"{kb_id}/{document_id}/v{version}/source{extension}"


def artefact_key(kb_id: str, document_id: str, version: int, asset: str, attempt: int) -> str:
    """Key of a stage's Parquet artefact; PostgreSQL says which attempt won."""
    return f"kb/{kb_id}/{document_id}/v{version}/{asset}.a{attempt}.parquet"


def vectors_key(kb_id: str, document_id: str, version: int, fingerprint: str) -> str:
    """Key of vectors for a generation that does not answer yet: the same fingerprint, the same content."""
    return f"kb/{kb_id}/{document_id}/v{version}/embeddings.{fingerprint}.parquet"


def image_key(kb_id: str, document_id: str, version: int, position: int, media_type: str) -> str:
    """Key of an extracted image: stable, so that a repeated parse overwrites it."""
    extension = media_type.rpartition("/")[2].partition("+")[0]
    return f"kb/{kb_id}/{document_id}/v{version}/images/{position:05d}.{extension}"


def image_id(document_id: str, version: int, page: int | None, position: int) -> str:
    """Stable over repeated parses: 32 hex digits of a hash of document, version, page and position."""
    return hashlib.sha256(f"{document_id}/{version}/{page}/{position}".encode()).hexdigest()[:32]


def _cut(text: str, length: int) -> str:
    """Shorten in the middle of the stem, keeping the extension, never inside a character cluster."""
    if len(text) <= length:
        return text
    stem, dot, extension = text.rpartition(".")
    tail = dot + extension if len(extension) <= 10 else ""
    clusters = regex.findall(r"\X", stem if tail else text)
    kept, used = [], 0
    for cluster in clusters:
        if used + len(cluster) > length - len(tail):
            break
        kept.append(cluster)
        used += len(cluster)
    return "".join(kept) + tail
