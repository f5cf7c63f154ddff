"""Opens a PDF, or says in plain words why it cannot be opened."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.errors import CorruptDocumentError, EmptyDocumentError, EncryptedDocumentError


@contextmanager
def open_document(path: Path, password: str | None) -> Iterator[pdfium.PdfDocument]:
    """The document, opened with the password, or without one (many encrypted files need none for reading).

    Raises:
        EmptyDocumentError: the file has no bytes.
        EncryptedDocumentError: a password is needed, or the given one is wrong.
        CorruptDocumentError: the file is not a PDF, or is damaged beyond repair, or has no pages.
    """
    if path.stat().st_size == 0:
        raise EmptyDocumentError("the file has no bytes: upload it again")
    document = _open(path, password)
    try:
        if len(document) == 0:
            raise CorruptDocumentError("the PDF is damaged: it has no pages; save it again from its source")
        yield document
    finally:
        document.close()


def _open(path: Path, password: str | None) -> pdfium.PdfDocument:
    try:
        return pdfium.PdfDocument(path, password=password)
    except pdfium.PdfiumError as error:
        # The library keeps the error of an earlier file when this one fails in another way.
        wrong_password = error.err_code == pdfium_c.FPDF_ERR_PASSWORD and _contains(path, b"/Encrypt")
    if wrong_password and password is None:
        raise EncryptedDocumentError(
            "the PDF is encrypted and needs a password: give the password, or save the file without protection"
        )
    if wrong_password:
        raise EncryptedDocumentError("the password does not open the encrypted PDF: give the right password")
    if not _contains(path, b"%PDF-"):
        raise CorruptDocumentError("the file is not a PDF: it has no PDF header; check the file and its extension")
    raise CorruptDocumentError("the PDF is damaged beyond repair: save or export it again from its source")


def _contains(path: Path, needle: bytes) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(needle) >= 0
