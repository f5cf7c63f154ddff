"""PowerPoint presentations (pptx, pptm, ppsx). A slide is a page; hidden slides count, so numbers never shift.

The parts are read with lxml: the document model of the usual library refuses slide shows and packages with a dangling
relationship, stops at malformed shapes, and does not look into alternate content and SmartArt.
"""

from typing import ClassVar

from rag_pipeline.core.parsed_document import BoundingBox, DocumentBuilder, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError
from rag_pipeline.parsing.office.docx_styles import to_int
from rag_pipeline.parsing.office.docx_text import R
from rag_pipeline.parsing.office.package import OfficePackage
from rag_pipeline.parsing.office.pptx_shapes import EMU_PER_POINT, P, layout_boxes
from rag_pipeline.parsing.office.pptx_slide import Slide
from rag_pipeline.parsing.parser import Parser


class PptxParser(Parser):
    """Slides in order: title, shapes by position, tables, chart data, SmartArt, pictures, speaker notes."""

    name: ClassVar[str] = "pptx"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with OfficePackage.open(request) as package:
            builder.metadata.update(package.core_properties())
            deck = _Deck(package, package.main_part(expected="ppt"), builder)
            if len(deck.slides) > request.limits.max_pages:
                raise DocumentTooLargeError(
                    f"{request.file_name} has {len(deck.slides):,} slides, more than {request.limits.max_pages:,}; "
                    "split it, or raise RAG_PARSE_MAX_PAGES"
                )
            for number, part in enumerate(deck.slides, 1):
                deck.read(number, part)
        if not builder.length:
            builder.warn("the slides hold no text")
        return builder.build()


class _Deck:
    def __init__(self, package: OfficePackage, main: str, builder: DocumentBuilder) -> None:
        self._package = package
        self._builder = builder
        root = package.xml(main)
        links = package.relationships(main)
        ids = [slide.get(f"{R}id", "") for slide in root.iterfind(f"{P}sldIdLst/{P}sldId")]
        self.slides = [links[key].target if key in links else "" for key in ids]
        """Parts of the slides in the order of the presentation; "" for a slide that is lost."""
        size = root.find(f"{P}sldSz")
        self._width, self._height = (
            (to_int(size.get(name), 0) / EMU_PER_POINT or None if size is not None else None) for name in ("cx", "cy")
        )
        self._footers: set[str] = set()
        self._boxes: dict[str, dict[tuple[str, str], BoundingBox]] = {}
        self._images: dict[str, int | None] = {}
        self._hidden: list[int] = []

    def read(self, number: int, part: str) -> None:
        """Add one slide and its line of the page ledger."""
        start = self._builder.length
        images = len(self._builder.images)
        self._builder.leave_headings()
        try:
            slide = self._package.xml(part)
        except CorruptDocumentError:
            self._builder.warn(f"slide {number} is damaged and could not be read")
            self._builder.add_page(state=PageState.FAILED, start=start, reason="the slide is missing or damaged")
            return
        hidden = slide.get("show") in {"0", "false"}
        if hidden:
            self._hidden.append(number)
            self._builder.metadata["hidden_slides"] = self._hidden
            self._builder.warn(f"slide {number} is hidden in the presentation; its text is included")
        reader = Slide(
            self._package, self._builder, part, number=number, hidden=hidden, footers=self._footers, images=self._images
        )
        reader.read(slide, self._inherited_boxes(part))
        blank = self._builder.length == start
        pictures = len(self._builder.images) > images
        self._builder.add_page(
            state=PageState.BLANK if blank else PageState.TEXT,
            start=start,
            reason=("only pictures" if pictures else "no text") if blank else None,
            width=self._width,
            height=self._height,
        )

    def _inherited_boxes(self, slide: str) -> dict[tuple[str, str], BoundingBox]:
        for layout in self._package.related(slide, "slideLayout")[:1]:
            if layout not in self._boxes:
                masters = self._package.related(layout, "slideMaster")[:1]
                parts = [*masters, layout]
                self._boxes[layout] = {
                    key: box for part in parts for key, box in layout_boxes(self._package.xml(part)).items()
                }
            return self._boxes[layout]
        return {}
