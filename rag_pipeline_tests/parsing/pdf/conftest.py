from collections.abc import Callable
from pathlib import Path

import pytest

from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.parsing.pdf.parser import PdfParser

Parse = Callable[..., ParsedDocument]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """Write bytes to a file and parse it."""

    def run(content: bytes, *, password: str | None = None, limits: ParseLimits | None = None) -> ParsedDocument:
        path = tmp_path / "file.pdf"
        path.write_bytes(content)
        request = ParseRequest(path=path, file_name="file.pdf", password=password, limits=limits or ParseLimits())
        return PdfParser().parse(request)

    return run
