"""Images (png, jpg, tiff, webp, bmp) by OCR. A frame of a TIFF is a page; of other formats the first frame counts."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from rag_pipeline.core.parsed_document import DocumentBuilder, PageState, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError, EmptyDocumentError
from rag_pipeline.parsing.ocr import MAX_SIDE, OcrEngine, OcrResult, process_engine
from rag_pipeline.parsing.ocr import Image as Pixels
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.pdf.assembly import assemble
from rag_pipeline.parsing.pdf.layout import arrange
from rag_pipeline.parsing.pdf.lines import build_segments
from rag_pipeline.parsing.pdf.pages import PageContent
from rag_pipeline.parsing.pdf.paragraphs import Piece, read_pieces
from rag_pipeline.parsing.pdf.scans import words_of_lines

MAX_PIXELS = 100_000_000
"""A frame with more is refused before it is decoded; an A0 poster at 150 DPI has 35 million."""
DECODED_SIDE = 6_000
"""Larger frames are shrunk to this before OCR, pixels."""
DEFAULT_DPI = 96.0
POINTS_PER_INCH = 72.0
LOW_SCORE = 0.7
"""Mean OCR score under which the text of a page is reported as doubtful."""


class ImageParser(Parser):
    """Text, tables and headings that OCR finds in a picture or a multi-page scan."""

    name: ClassVar[str] = "image"
    version: ClassVar[str] = "2"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Errors as `Parser`."""
        if not request.path.stat().st_size:
            raise EmptyDocumentError(f"{request.file_name} is empty (0 bytes); submit the file again")
        builder = DocumentBuilder(parser=self.name, parser_version=self.version)
        with _opened(request) as image:
            frames = _frames(image, request)
            if frames > request.limits.max_pages:
                raise DocumentTooLargeError(
                    f"{request.file_name} has {frames:,} pages, more than {request.limits.max_pages:,}; "
                    "split it, or raise RAG_PARSE_MAX_PAGES"
                )
            builder.metadata.update(format=image.format, width=image.width, height=image.height, ladder_step="ocr")
            pages = [_read_frame(image, number, request) for number in range(1, frames + 1)]
        if all(page.state is PageState.FAILED for page in pages):
            raise _corrupt(request)
        assemble(builder, pages, {})
        if not builder.block_count:
            builder.warn("no readable text was found in the image")
        return builder.build()


@contextmanager
def _opened(request: ParseRequest) -> Iterator[Image.Image]:
    with warnings.catch_warnings():
        # The size is checked here, frame by frame, before anything is decoded.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(request.path)
        except Image.DecompressionBombError as error:
            raise _too_large(request) from error
        except (UnidentifiedImageError, *_DAMAGE) as error:
            raise _corrupt(request) from error
        with image:
            yield image


_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error)
"""What image decoders raise on damaged bytes."""


def read_picture(content: bytes, request: ParseRequest) -> list[Piece] | None:
    """What OCR finds in a picture inside another file; None if it is damaged, too large or in an unknown format."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content)) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            page = _read_frame(image, 1, request)
    except (Image.DecompressionBombError, UnidentifiedImageError, DocumentTooLargeError, *_DAMAGE):
        return None
    return None if page.state is PageState.FAILED else page.pieces


def _frames(image: Image.Image, request: ParseRequest) -> int:
    if image.format != "TIFF":
        return 1
    try:
        return int(getattr(image, "n_frames", 1))
    except Image.DecompressionBombError as error:
        raise _too_large(request) from error
    except _DAMAGE as error:
        raise _corrupt(request) from error


def _read_frame(image: Image.Image, number: int, request: ParseRequest) -> PageContent:
    """One page; FAILED when the frame is damaged, so that the others keep their numbers."""
    try:
        image.seek(number - 1)
        if image.width * image.height > MAX_PIXELS:
            raise _too_large(request)
        dpi = _dpi(image)
        pixels, scale = _decoded(image)
    except Image.DecompressionBombError as error:
        raise _too_large(request) from error
    except _DAMAGE:
        return PageContent(
            state=PageState.FAILED,
            reason="the image is damaged",
            warnings=[f"page {number} is damaged and could not be read"],
        )
    points_per_pixel = POINTS_PER_INCH / (dpi * scale)
    result = _read_tiles(pixels, process_engine(request.limits.threads))
    return _content(result, pixels.shape[:2], number, points_per_pixel)


def _content(result: OcrResult, size: tuple[int, int], number: int, points_per_pixel: float) -> PageContent:
    height, width = size if result.turned in {0, 180} else size[::-1]
    width_points, height_points = width * points_per_pixel, height * points_per_pixel
    content = PageContent(
        state=PageState.OCR, width=round(width_points, 1), height=round(height_points, 1), reason="an image"
    )
    if not result.lines:
        content.state = PageState.BLANK
        content.reason = "no readable text"
        return content
    if result.turned:
        content.warnings.append(f"page {number} was turned by {result.turned} degrees to be read")
    characters = sum(len(line.text) for line in result.lines)
    score = sum(line.score * len(line.text) for line in result.lines) / characters
    if score < LOW_SCORE:
        content.warnings.append(f"page {number} is hard to read: its text may be wrong (score {score:.2f})")
    regions = arrange(build_segments(words_of_lines(result.lines, points_per_pixel=points_per_pixel)))
    content.pieces = list(read_pieces(regions, 0, width_points, height_points))
    return content


def _read_tiles(pixels: Pixels, engine: OcrEngine) -> OcrResult:
    """Read an image; a very long one (a screenshot of a whole page) in tiles, so that shrinking does not blur it."""
    parts = [(top, engine.read(tile)) for top, tile in tiles(pixels)]
    if len(parts) == 1:
        return parts[0][1]
    lines = (line._replace(top=line.top + top, bottom=line.bottom + top) for top, part in parts for line in part.lines)
    return OcrResult(lines=tuple(lines), turned=0)


def tiles(pixels: Pixels, *, side: int = MAX_SIDE) -> Iterator[tuple[int, Pixels]]:
    """Cut an image that is much longer than `side` and than it is wide, at rows without text.

    Yields the first row of each tile, in pixels, and the tile.
    """
    height, width = pixels.shape[:2]
    length = max(side, 2 * width)
    top = 0
    while height - top > length * 1.25:
        start = top + length * 3 // 4
        contrast = pixels[start : top + length].mean(axis=2).std(axis=1)
        cut = start + int(contrast.argmin())
        yield top, pixels[top:cut]
        top = cut
    yield top, pixels[top:]


def _decoded(image: Image.Image) -> tuple[Pixels, float]:
    """Pixels of the current frame on white, upright by EXIF, and by which factor they were shrunk (1: not)."""
    width = image.width
    image.draft("RGB", (DECODED_SIDE, DECODED_SIDE))
    frame = image
    if frame.mode in {"I", "I;16", "I;16B", "I;16L", "F"}:
        frame = _to_eight_bits(frame)
    if frame.mode in {"RGBA", "LA", "PA"} or "transparency" in frame.info:
        colours = frame.convert("RGBA")
        frame = Image.new("RGB", colours.size, "white")
        frame.paste(colours, mask=colours.getchannel("A"))
        frame.info = dict(image.info)
    frame = frame.convert("RGB")
    scale = frame.width / width
    if max(frame.size) > DECODED_SIDE:
        before = frame.width
        frame.thumbnail((DECODED_SIDE, DECODED_SIDE))
        scale *= frame.width / before
    turned = ImageOps.exif_transpose(frame, in_place=False)
    return np.ascontiguousarray(np.asarray(turned, dtype=np.uint8)[:, :, ::-1]), scale


def _to_eight_bits(frame: Image.Image) -> Image.Image:
    values = np.asarray(frame, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255.0 / ((high - low) or 1.0))).astype(np.uint8))


def _dpi(image: Image.Image) -> float:
    """Resolution that the file states, if it is plausible; 96 otherwise."""
    stated = image.info.get("dpi", (DEFAULT_DPI,))[0]
    try:
        dpi = float(stated)
    except (TypeError, ValueError, ZeroDivisionError):
        return DEFAULT_DPI
    return dpi if 50 <= dpi <= 2400 else DEFAULT_DPI


def _corrupt(request: ParseRequest) -> CorruptDocumentError:
    return CorruptDocumentError(f"{request.file_name} is damaged or no image; open it, save it again and submit that")


def _too_large(request: ParseRequest) -> DocumentTooLargeError:
    return DocumentTooLargeError(
        f"{request.file_name} has more than {MAX_PIXELS:,} pixels; reduce it (300 DPI are enough) and submit it again"
    )
