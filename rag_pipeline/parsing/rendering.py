"""A page or an image as PNG, with regions outlined. Runs in a worker process: native code may crash or hang."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError

from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.ports import ParseLimits
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError, ResourceNotFoundError
from rag_pipeline.parsing.worker import enforced

LONGEST_SIDE = 1_600
"""Pixels; an A4 page at 140 DPI, readable on any screen."""
MOST_BYTES = 4_000_000
"""Of the PNG; a larger one is drawn smaller."""
MOST_PIXELS = 100_000_000
"""An image with more is not decoded."""
SMALLEST_SIDE = 200
OUTLINE_COLOR = (214, 39, 40)
OUTLINE_WIDTH = 3
OUTLINE_MARGIN = 4
"""Pixels between text and outline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderRequest:
    """What to draw."""

    path: Path
    page: int = 1
    """1-based page of a PDF, or frame of an image."""
    boxes: tuple[BoundingBox, ...] = ()
    """Regions to outline, in points of the page as shown."""
    page_size: tuple[float, float] | None = None
    """Width and height of the page in points that the boxes refer to; needed for images only."""
    limits: ParseLimits


def render(request: RenderRequest) -> bytes:
    """Draw a page of a PDF, or an image, as PNG of at most `MOST_BYTES`.

    Raises:
        ResourceNotFoundError: there is no such page.
        CorruptDocumentError: the file cannot be drawn.
        DocumentTooLargeError: an image has more than `MOST_PIXELS`.
    """
    with enforced(request.limits):
        with request.path.open("rb") as file:
            is_pdf = b"%PDF-" in file.read(1024)
        side = LONGEST_SIDE
        while True:
            picture = _pdf_page(request, side) if is_pdf else _image(request, side)
            buffer = io.BytesIO()
            picture.save(buffer, "PNG", optimize=True)
            if buffer.tell() <= MOST_BYTES or side <= SMALLEST_SIDE:
                return buffer.getvalue()
            side = side * 2 // 3


def _pdf_page(request: RenderRequest, side: int) -> Image.Image:
    import pypdfium2 as pdfium

    from rag_pipeline.parsing.pdf.opening import open_document

    with open_document(request.path, None) as opened:
        if not 1 <= request.page <= len(opened.document):
            raise ResourceNotFoundError(f"the document has no page {request.page}")
        try:
            page = opened.document[request.page - 1]
            scale = side / max(*page.get_size(), 1.0)
            picture = page.render(scale=scale, may_draw_forms=False).to_pil().convert("RGB")
        except pdfium.PdfiumError as error:
            raise CorruptDocumentError(f"page {request.page} is damaged and cannot be drawn") from error
    return _outlined(picture, request.boxes, scale)


def _image(request: RenderRequest, side: int) -> Image.Image:
    with warnings.catch_warnings():
        # The size is checked here, before anything is decoded.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(request.path) as image:
                image.seek(request.page - 1)
                if image.width * image.height > MOST_PIXELS:
                    raise DocumentTooLargeError(f"the image has more than {MOST_PIXELS:,} pixels")
                image.draft("RGB", (2 * side, 2 * side))
                picture = ImageOps.exif_transpose(_on_white(image))
        except EOFError as error:
            raise ResourceNotFoundError(f"the image has no page {request.page}") from error
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            raise CorruptDocumentError("the image is damaged and cannot be drawn") from error
    picture.thumbnail((side, side))
    return _outlined(picture, request.boxes, _scale(picture, request.page_size))


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode not in {"RGBA", "LA", "PA"} and "transparency" not in image.info:
        return image.convert("RGB")
    colours = image.convert("RGBA")
    white = Image.new("RGB", colours.size, "white")
    white.paste(colours, mask=colours.getchannel("A"))
    return white


def _scale(picture: Image.Image, page_size: tuple[float, float] | None) -> float | None:
    """Pixels per point; None when the page of the boxes has another shape (it was turned to be read)."""
    if page_size is None or min(page_size) <= 0:
        return None
    across, down = picture.width / page_size[0], picture.height / page_size[1]
    return across if abs(across - down) <= 0.02 * across else None


def _outlined(picture: Image.Image, boxes: Sequence[BoundingBox], scale: float | None) -> Image.Image:
    if scale is None:
        return picture
    draw = ImageDraw.Draw(picture)
    for box in boxes:
        left, top = max(box.left * scale - OUTLINE_MARGIN, 0), max(box.top * scale - OUTLINE_MARGIN, 0)
        right = min(box.right * scale + OUTLINE_MARGIN, picture.width - 1)
        bottom = min(box.bottom * scale + OUTLINE_MARGIN, picture.height - 1)
        if left < right and top < bottom:
            draw.rectangle((left, top, right, bottom), outline=OUTLINE_COLOR, width=OUTLINE_WIDTH)
    return picture
