"""The parser contract: one file in, one `ParsedDocument` out. Parsers run in worker processes without connections."""

from abc import ABC, abstractmethod
from typing import ClassVar

from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.ports import ParseRequest

NO_TIME_FOR_OCR = "the time limit left no time for OCR"
"""End of the reason of a page that failed for want of time."""


class Parser(ABC):
    """Reads one family of formats.

    Errors: `CorruptDocumentError`, `EncryptedDocumentError`, `EmptyDocumentError`, `UnsupportedFormatError` and
    `DocumentTooLargeError`, each with a message that says what is wrong and what to do. A readable file without any
    text is not an error: the document comes back without content, with a warning.
    """

    name: ClassVar[str]
    """Stored with the document, e.g. `pdf`."""
    version: ClassVar[str]
    """Raised by hand whenever the output for some file changes: it makes parsed documents stale."""

    @abstractmethod
    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`."""
