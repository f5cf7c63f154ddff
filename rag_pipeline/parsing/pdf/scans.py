"""Decides which pages need OCR, and reads them: the page is rendered and its lines become words of the layout."""

import re
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.parsing.ocr import MAX_SIDE, OcrEngine, OcrLine, OcrResult
from rag_pipeline.parsing.pdf.characters import REPLACEMENT
from rag_pipeline.parsing.pdf.objects import PageObjects
from rag_pipeline.parsing.pdf.words import Style, Word

_POINTS_PER_INCH = 72
_FIRST_DPI = 200
_FINE_DPI = 300
_FIRST_SIDE = 2200
"""Longest side of the first rendering, pixels: A4 at 190 DPI."""
_SMALL_LINES = 18
"""Median line height in pixels below which a page is rendered again at `_FINE_DPI`."""
_MAX_IMAGE_PIXELS = 150_000_000
"""A page whose images have more pixels is not rendered: decoding takes 4 bytes for each."""
_SCAN_SHARE = 0.65
"""An image over this share of a page makes it a scan."""
_SPARSE_SHARE = 0.02
"""Share of the page that text covers below which the text layer of a scan is only a stamp or a page number."""
_SPARSE_CHARACTERS = 200
_MIN_SHAPES = 12
"""Shapes on a page without text and images from which they may be letters turned into outlines."""
_ORNAMENT_SIDE = 100.0
"""Longest side in points of a picture that is a logo or an ornament, ..."""
_ORNAMENT_SHARE = 0.01
"""... if all of them together cover less than this share of the page."""
_GARBLED_SHARE = 0.3
_FONT_SHARE = 0.65
"""Font size as a share of the height of a line's box, which the detection draws with a margin."""
_BOX_MARGIN = 0.15
"""That margin at the left and the right, as a share of the height."""
_SAME_SIZE = (0.75, 1.3)
"""Line heights within these shares of the median are one font size: boxes of `ace` and `Ag` differ by a quarter."""
_PRIVATE_USE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_MOJIBAKE = re.compile("[\u0080-\u00bf\u00c0-\u00ff]{4,}")


class OcrPage(NamedTuple):
    """A page read by OCR."""

    words: list[Word]
    """In the frame of their direction, like the words of a text layer."""
    turned: int
    """Degrees clockwise by which the page was turned to be read."""


def why_ocr(
    words: Sequence[Word], objects: PageObjects, width: float, height: float, *, is_deep: bool = False
) -> str | None:
    """Why the text layer of a page is not good enough; None where it is, or where the page is empty.

    Pictures without room for a line of text are read only where all else has found nothing (`is_deep`).
    """
    if not words:
        has_room = bool(objects.images) and (is_deep or not _are_ornaments(objects, width * height))
        return "no text layer" if has_room or objects.shapes >= _MIN_SHAPES else None
    if garbage_score(words) > _GARBLED_SHARE:
        return "the text layer is garbled"
    is_scan = _largest_image(objects) > _SCAN_SHARE * width * height
    if is_scan and sum(len(word.text) for word in words) < _SPARSE_CHARACTERS:
        covered = sum((word.right - word.left) * (word.bottom - word.top) for word in words)
        if covered < _SPARSE_SHARE * width * height:
            return "a scanned page with little text in its text layer"
    return None


def garbage_score(words: Sequence[Word]) -> float:
    """Share of characters that say nothing: without a character, private use, or bytes read in a wrong encoding."""
    text = "".join([word.text for word in words])
    if not text or text.isascii():
        return 0.0
    bad = text.count(REPLACEMENT) + len(_PRIVATE_USE.findall(text))
    bad += sum(len(match) for word in words if not word.text.isascii() for match in _MOJIBAKE.findall(word.text))
    return bad / len(text)


def read_scan(page: pdfium.PdfPage, objects: PageObjects, engine: OcrEngine, *, is_deep: bool) -> OcrPage | None:
    """Render and read a loaded page; None where its images are too large to render.

    Args:
        page: loaded.
        objects: drawn on it.
        engine: that reads it.
        is_deep: render as large as the engine takes it, and look for lines in more pixels.
    """
    if sum(image.width * image.height for image in objects.images) > _MAX_IMAGE_PIXELS:
        return None
    longest = max(page.get_size())
    largest = (MAX_SIDE - 8) / longest
    scale = largest if is_deep else min(_FIRST_DPI / _POINTS_PER_INCH, _FIRST_SIDE / longest)
    result = engine.read(_render(page, scale), is_deep=is_deep)
    finer = min(_FINE_DPI / _POINTS_PER_INCH, largest)
    if result.lines and result.line_height < _SMALL_LINES and finer > 1.25 * scale:
        again = engine.read(_render(page, finer))
        if _confidence(again) >= _confidence(result):
            result, scale = again, finer
    return OcrPage(words_of_lines(result.lines, points_per_pixel=1 / scale, direction=result.turned), result.turned)


def words_of_lines(lines: Sequence[OcrLine], *, points_per_pixel: float, direction: int = 0) -> list[Word]:
    """Lines read by OCR as words for the layout, in points; where the words of a line stand is interpolated.

    Args:
        lines: of one image.
        points_per_pixel: of that image.
        direction: frame of the words: degrees clockwise by which the image was turned to be read.
    """
    heights = [line.bottom - line.top for line in lines]
    usual = median(heights) if heights else 0.0
    words: list[Word] = []
    offset = 0
    for line, height in zip(lines, heights, strict=True):
        size = usual if _SAME_SIZE[0] * usual <= height <= _SAME_SIZE[1] * usual else height
        style = Style(round(_FONT_SHARE * size * points_per_pixel, 1), False, False, "", direction, False)
        inset = min(_BOX_MARGIN * height, (line.right - line.left) / 4)
        step = (line.right - line.left - 2 * inset) / max(len(line.text), 1)
        words.extend(
            Word(
                text=match.group(),
                left=(line.left + inset + match.start() * step) * points_per_pixel,
                top=line.top * points_per_pixel,
                right=(line.left + inset + match.end() * step) * points_per_pixel,
                bottom=line.bottom * points_per_pixel,
                style=style,
                start=offset + match.start(),
                end=offset + match.end(),
                direction=direction,
            )
            for match in re.finditer(r"\S+", line.text)
        )
        offset += len(line.text) + 1
    return words


def _render(page: pdfium.PdfPage, scale: float) -> npt.NDArray[np.uint8]:
    bitmap = page.render(scale=scale, force_bitmap_format=pdfium_c.FPDFBitmap_BGR)
    # Copied, since the array only borrows the memory of the bitmap.
    return np.array(bitmap.to_numpy(), np.uint8)


def _confidence(result: OcrResult) -> float:
    """Characters read with certainty: a better rendering finds more text and is surer of it."""
    return sum(line.score * len(line.text) for line in result.lines)


def _are_ornaments(objects: PageObjects, page_area: float) -> bool:
    """Whether the images are too small for a line of text: OCR of a page costs as much as reading fifty."""
    sides = [(box[2] - box[0], box[3] - box[1]) for _, box, _, _ in objects.images]
    covered = sum(width * height for width, height in sides)
    return covered < _ORNAMENT_SHARE * page_area and all(max(side) < _ORNAMENT_SIDE for side in sides)


def _largest_image(objects: PageObjects) -> float:
    return max(((box[2] - box[0]) * (box[3] - box[1]) for _, box, _, _ in objects.images), default=0.0)
