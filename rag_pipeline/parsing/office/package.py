"""Zip-based files opened safely: what they expand to is bounded, XML entities stay inert, damage has one error.

Shared by docx, pptx, xlsx, epub and OpenDocument. Nothing here knows what a paragraph or a cell is.
"""

import errno
import lzma
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Self
from urllib.parse import unquote

from lxml import etree

from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EmptyDocumentError,
    EncryptedDocumentError,
    UnsupportedFormatError,
)

OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")
"""First bytes of a compound file: the container of .doc, .xls, .ppt, .msg and of encrypted .docx, .xlsx, .pptx."""
MAX_ENTRIES = 50_000
"""Entries of an archive; the largest office files seen have some thousands."""
READ_BYTES = 1 << 20
STRICT_NAMESPACE = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
"""ISO 29500 Strict namespaces, which differ from the usual (Transitional) ones only by this prefix."""

_FORBIDDEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|&#(?:x0*(?:[0-8bcef]|1[0-9a-f])|0*(?:[0-8]|1[124-9]|2\d|3[01]));", re.I
)
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, UnicodeDecodeError)
_LEGACY_STREAMS = {
    "WordDocument": ("a Word 97-2003 file (.doc)", ".docx"),
    "Workbook": ("an Excel 97-2003 file (.xls)", ".xlsx"),
    "Book": ("an Excel 5 file (.xls)", ".xlsx"),
    "PowerPoint Document": ("a PowerPoint 97-2003 file (.ppt)", ".pptx"),
    "__properties_version1.0": ("an Outlook message (.msg)", ".eml"),
}
_OTHER_CONTENT = (
    (b"%PDF", "a PDF", ".pdf"),
    (b"{\\rtf", "an RTF document", ".rtf"),
    (b"\x89PNG", "a PNG image", ".png"),
    (b"\xff\xd8\xff", "a JPEG image", ".jpg"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relationship:
    """A link from one part of a package to another, or to the outside."""

    id: str
    type: str
    """The last segment of the relationship type, e.g. `header`, `image`, `footnotes`."""
    target: str
    """Name of the part inside the archive, or a URL when `external`."""
    external: bool


class Archive:
    """A zip file whose expansion is bounded by `limits.max_expanded_bytes`, counted while reading."""

    def __init__(self, archive: zipfile.ZipFile, request: ParseRequest) -> None:
        self.file_name = request.file_name
        self._archive = archive
        self._limit = request.limits.max_expanded_bytes
        self._expanded = 0
        self._entries = {_key(entry.filename): entry for entry in archive.infolist()}
        self._check_entries()

    @classmethod
    @contextmanager
    def open(cls, request: ParseRequest) -> Iterator[Self]:
        """The archive at `request.path`.

        Raises:
            EmptyDocumentError: no bytes.
            EncryptedDocumentError: password protected.
            UnsupportedFormatError: the content is of another kind, for example a legacy .doc.
            DocumentTooLargeError: it declares to expand beyond the limit.
            CorruptDocumentError: not a zip file, or a damaged one; also for damage found inside the `with` block.
        """
        check_container(request)
        with translate_damage(request), zipfile.ZipFile(request.path) as archive:
            yield cls(archive, request)

    @property
    def names(self) -> list[str]:
        """Names of all entries as stored, in archive order."""
        return [entry.filename for entry in self._entries.values()]

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._entries

    def size(self, name: str) -> int:
        """Declared size of an entry in bytes, 0 if there is none."""
        entry = self._entries.get(_key(name))
        return entry.file_size if entry else 0

    def read(self, name: str) -> bytes:
        """Content of an entry. Raises `CorruptDocumentError` if it is missing, `DocumentTooLargeError`."""
        pieces = []
        with self.stream(name) as source:
            while piece := source.read(READ_BYTES):
                self._expanded += len(piece)
                if self._expanded > self._limit:
                    raise too_large(self.file_name, self._limit)
                pieces.append(piece)
        return b"".join(pieces)

    def stream(self, name: str) -> IO[bytes]:
        """An entry opened for reading; the zip reader never gives more than the declared size, which was checked."""
        entry = self._entries.get(_key(name))
        if entry is None:
            raise CorruptDocumentError(f"{self.file_name}: the part {name} is missing; save the document again")
        return self._archive.open(entry)

    def xml(self, name: str) -> etree._Element:
        """An entry as XML; see `parse_xml`."""
        return parse_xml(self.read(name), file_name=self.file_name, part=name)

    def _check_entries(self) -> None:
        entries = self._archive.infolist()
        if len(entries) > MAX_ENTRIES or sum(entry.file_size for entry in entries) > self._limit:
            raise too_large(self.file_name, self._limit)
        if any(entry.flag_bits & 0x1 for entry in entries):
            raise encrypted(self.file_name)


class OfficePackage(Archive):
    """An Office Open XML package: parts and the relationships between them."""

    def relationships(self, part: str = "") -> dict[str, Relationship]:
        """Relationships of a part by id; of the package itself for "". Empty when the part has none."""
        folder, name = posixpath.split(part)
        rels = posixpath.join(folder, "_rels", f"{name}.rels")
        if rels not in self:
            return {}
        found = {}
        for element in self.xml(rels).iter("{*}Relationship"):
            external = element.get("TargetMode") == "External"
            target = element.get("Target", "")
            relationship = Relationship(
                id=element.get("Id", ""),
                type=element.get("Type", "").rpartition("/")[2],
                target=target if external else _resolve(folder, target),
                external=external,
            )
            found[relationship.id] = relationship
        return found

    def related(self, part: str, type: str) -> list[str]:
        """Existing parts that `part` links to with this relationship type."""
        return [
            relationship.target
            for relationship in self.relationships(part).values()
            if relationship.type == type and not relationship.external and relationship.target in self
        ]

    def main_part(self, *, expected: str) -> str:
        """Name of the main part, whose folder must be `expected` (`word`, `ppt` or `xl`).

        Raises `UnsupportedFormatError` for another kind of package and `CorruptDocumentError` when there is none.
        """
        kinds = {"word": ".docx", "ppt": ".pptx", "xl": ".xlsx"}
        for part in self.related("", "officeDocument"):
            folder = part.split("/")[0].lower()
            if folder in kinds and folder != expected:
                raise wrong_content(
                    self.file_name, f"an office document of another kind ({kinds[folder]})", kinds[folder]
                )
            return part
        if "mimetype" in self:
            raise wrong_content(self.file_name, "an OpenDocument or EPUB file", "its own extension")
        if "[Content_Types].xml" in self or any(name.lower().startswith(f"{expected}/") for name in self.names):
            raise CorruptDocumentError(f"{self.file_name}: its main part is missing; open it and save it again")
        raise UnsupportedFormatError(f"{self.file_name}: this is a zip archive; submit the files inside it one by one")

    @property
    def is_strict(self) -> bool:
        """Whether it uses the ISO Strict namespaces (Save as "Strict Open XML")."""
        return "_rels/.rels" in self and STRICT_NAMESPACE.search(self.read("_rels/.rels")) is not None

    def transitional_copy(self) -> IO[bytes]:
        """The package in memory with the usual namespaces, for libraries that do not read Strict ones."""
        copy = BytesIO()
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
            for name in self.names:
                content = self.read(name)
                target.writestr(name, to_transitional(content) if name.endswith((".xml", ".rels")) else content)
        copy.seek(0)
        return copy

    def core_properties(self) -> dict[str, str]:
        """Title, author, subject, keywords, language, created and modified, as far as they are filled."""
        names = {"creator": "author", "lastModifiedBy": "last_modified_by", "description": "comments"}
        wanted = {"title", "subject", "keywords", "language", "created", "modified", *names}
        found: dict[str, str] = {}
        for part in self.related("", "core-properties")[:1]:
            try:
                root = self.xml(part)
            except CorruptDocumentError:
                return {}
            for element in root:
                name = etree.QName(element).localname if isinstance(element.tag, str) else ""
                text = " ".join((element.text or "").split())
                if name in wanted and text:
                    found[names.get(name, name)] = text
        return found


def check_container(request: ParseRequest) -> None:
    """Refuse what is not a zip: empty files, encrypted or legacy OLE containers, other formats. Errors as `Archive`."""
    with request.path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise EmptyDocumentError(f"{request.file_name} is empty (0 bytes); submit the file again")
    if head == OLE_MAGIC:
        raise _ole_error(request)
    for magic, kind, extension in _OTHER_CONTENT:
        if head.startswith(magic):
            raise wrong_content(request.file_name, kind, extension)
    if not head.startswith(b"PK"):
        raise corrupt(request.file_name)


def _ole_error(request: ParseRequest) -> EncryptedDocumentError | UnsupportedFormatError:
    streams = _ole_stream_names(request.path)
    if "EncryptedPackage" in streams:
        return encrypted(request.file_name)
    for stream, (kind, extension) in _LEGACY_STREAMS.items():
        if any(name.startswith(stream) for name in streams):
            return UnsupportedFormatError(
                f"{request.file_name} is {kind}; convert it to {extension} and submit it again"
            )
    return UnsupportedFormatError(
        f"{request.file_name} is an old binary office file; convert it to .docx, .xlsx or .pptx"
    )


def _ole_stream_names(path: Path) -> set[str]:
    """Names in the directory of a compound file, found without trusting its tables (they may be damaged).

    Directory entries are 128 bytes: a UTF-16 name of at most 64 bytes, and its length with terminator at offset 64.
    """
    names: set[str] = set()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            for start in range(0, len(block) - 127, 128):
                length = int.from_bytes(block[start + 64 : start + 66], "little")
                if 2 <= length <= 64 and length % 2 == 0 and block[start + 66] in {1, 2, 5}:
                    names.add(block[start : start + length - 2].decode("utf-16-le", "replace").lstrip("\x01\x05\x06"))
    return names


@contextmanager
def translate_damage(request: ParseRequest) -> Iterator[None]:
    """Turn what zip and XML readers raise on damaged bytes into `CorruptDocumentError`."""
    try:
        yield
    except (etree.LxmlError, *_DAMAGE) as error:
        raise corrupt(request.file_name) from error
    except OSError as error:
        # A damaged directory sends the reader to a place before the file; decompressors raise without a number.
        if error.errno not in {None, errno.EINVAL}:
            raise
        raise corrupt(request.file_name) from error
    except RecursionError as error:
        raise CorruptDocumentError(f"{request.file_name}: its content is nested too deeply to be a document") from error


def parse_xml(content: bytes, *, file_name: str, part: str) -> etree._Element:
    """Parse one part. Entities are never expanded, nothing is fetched, characters that XML forbids are skipped.

    Raises:
        CorruptDocumentError: not XML at all, or with entities of its own, which documents never need.
    """
    content = to_transitional(content)
    try:
        root = etree.fromstring(content, _xml_parser())
    except etree.XMLSyntaxError:
        try:
            root = etree.fromstring(_without_forbidden(content), _xml_parser())
        except etree.XMLSyntaxError as error:
            raise CorruptDocumentError(f"{file_name}: the part {part} is damaged; open and save it again") from error
    declarations = root.getroottree().docinfo.internalDTD
    if declarations is not None and list(declarations.entities()):  # type: ignore[union-attr]  # the stubs lack it
        raise CorruptDocumentError(f"{file_name}: the part {part} declares XML entities, which documents never need")
    return root


def to_transitional(content: bytes) -> bytes:
    """Replace ISO Strict namespaces by the usual ones."""
    if b"purl.oclc.org/ooxml" not in content:
        return content
    return STRICT_NAMESPACE.sub(rb"http://schemas.openxmlformats.org/\1/2006/", content)


def corrupt(file_name: str) -> CorruptDocumentError:
    """The error for a damaged file."""
    return CorruptDocumentError(
        f"{file_name} is damaged or cut off; open it in its own program, save it again and submit that copy"
    )


def encrypted(file_name: str) -> EncryptedDocumentError:
    """The error for a password-protected file."""
    return EncryptedDocumentError(
        f"{file_name} is encrypted: open it in its own program, remove the password or copy protection, and submit it "
        "again"
    )


def too_large(file_name: str, limit: int) -> DocumentTooLargeError:
    """The error for an archive that expands beyond the limit (bytes)."""
    return DocumentTooLargeError(
        f"{file_name} unpacks to more than {limit:,} bytes or {MAX_ENTRIES:,} parts; "
        "split it, or raise RAG_PARSE_MAX_EXPANDED_BYTES if the file is trusted"
    )


def wrong_content(file_name: str, kind: str, extension: str) -> UnsupportedFormatError:
    """The error for a file whose content does not match its name."""
    return UnsupportedFormatError(f"{file_name} contains {kind}; rename it to {extension} and submit it again")


def _xml_parser() -> etree.XMLParser:
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )


def _without_forbidden(content: bytes) -> bytes:
    """XML without the control characters and broken UTF-8 that careless writers leave in."""
    text = content.decode("utf-8", "replace")
    return _FORBIDDEN.sub("", text).encode()


def _key(name: str) -> str:
    return name.replace("\\", "/").lstrip("/").lower()


def _resolve(folder: str, target: str) -> str:
    path = unquote(target).replace("\\", "/").partition("#")[0]
    return posixpath.normpath(path.lstrip("/") if path.startswith("/") else posixpath.join(folder, path))
