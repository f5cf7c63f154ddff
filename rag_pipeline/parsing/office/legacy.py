"""Legacy Office files (doc, xls, ppt): LibreOffice makes modern ones of them, which the usual parsers read."""

import shutil
from dataclasses import replace
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import ClassVar

from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.parsing import libreoffice
from rag_pipeline.parsing.parser import Parser

MODERN = {"doc": "docx", "dot": "docx", "xls": "xlsx", "ppt": "pptx", "pps": "pptx"}
"""What each format is converted to: not to PDF, which would lose headings and cells."""

_TIME_SHARE = 0.6
"""Share of the time limit that the conversion may take."""


class LegacyOfficeParser(Parser):
    """doc, dot, xls, ppt and pps where LibreOffice is installed."""

    name: ClassVar[str] = "legacy_office"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`, and `ParseTimeoutError` of the conversion."""
        from rag_pipeline.parsing.registry import resolve

        name = PurePath(request.file_name)
        legacy = name.suffix.lower().removeprefix(".")
        modern = MODERN[legacy]
        with TemporaryDirectory(prefix="rag-pipeline-convert-") as scratch:
            source = Path(scratch) / f"file.{legacy}"
            shutil.copyfile(request.path, source)
            seconds = _TIME_SHARE * request.limits.seconds
            converted = libreoffice.convert(source, extension=modern, folder=Path(scratch), seconds=seconds)
            parser = resolve(f"file.{modern}")
            document = parser.parse(replace(request, path=converted, file_name=f"{name.stem}.{modern}"))
        return replace(
            document,
            parser=self.name,
            parser_version=f"{self.version}/{parser.version}",
            metadata={**document.metadata, "converted_to": modern},
            warnings=(f"the file was converted to .{modern} by LibreOffice", *document.warnings),
        )
