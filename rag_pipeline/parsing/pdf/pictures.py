"""Takes the images out of a document, within bounds on their number and size."""

import ctypes
import hashlib
import io

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.core.parsed_document import BoundingBox, ParsedImage
from rag_pipeline.parsing.pdf.objects import PlacedImage

_MAX_IMAGES = 500
_MAX_TOTAL_BYTES = 64_000_000
_MAX_STREAM_BYTES = 16_000_000
_MAX_PIXELS = 16_000_000
_MIN_PIXELS = 32
"""Shortest side, pixels: rules, bullets and spacers are smaller."""
_MIN_POINTS = 18.0
"""Shortest side on the page, points."""
_PAGE_SHARE = 0.85
"""An image over this share of the page is the page itself (a scan), which is shown by rendering it."""


class PictureCollector:
    """Images of one document in the order of their pages; what is drawn on many pages is kept once."""

    def __init__(self) -> None:
        self.images: list[ParsedImage] = []
        self.left_out = 0
        """Images that did not fit into the bounds."""
        self._seen: set[bytes] = set()
        self._bytes = 0

    def add(
        self,
        document: pdfium.PdfDocument,
        page: pdfium.PdfPage,
        image: PlacedImage,
        number: int,
        box: BoundingBox,
        *,
        caption: str,
    ) -> None:
        """Take one image of a loaded page, unless it is small, the scan of the page, or known already.

        Args:
            document: that the page belongs to.
            page: still loaded.
            image: to take.
            number: of the page, from 1.
            box: where it is shown, in display coordinates.
            caption: text beside it that names it, or "".
        """
        width, height = page.get_size()
        shown_width, shown_height = box.right - box.left, box.bottom - box.top
        if min(image.width, image.height) < _MIN_PIXELS or min(shown_width, shown_height) < _MIN_POINTS:
            return
        if shown_width * shown_height >= _PAGE_SHARE * width * height:
            return
        stream_bytes = pdfium_c.FPDFImageObj_GetImageDataRaw(image.handle, None, 0)
        too_many = len(self.images) >= _MAX_IMAGES or self._bytes >= _MAX_TOTAL_BYTES
        if too_many or stream_bytes > _MAX_STREAM_BYTES or image.width * image.height > _MAX_PIXELS:
            self.left_out += 1
            return
        stream = ctypes.create_string_buffer(max(stream_bytes, 1))
        pdfium_c.FPDFImageObj_GetImageDataRaw(image.handle, stream, stream_bytes)
        digest = hashlib.sha256(stream.raw).digest()
        if digest in self._seen:
            return
        self._seen.add(digest)
        found = _encode(document, page, image, stream.raw[:stream_bytes])
        if found is None:
            self.left_out += 1
            return
        media_type, content = found
        self._bytes += len(content)
        self.images.append(
            ParsedImage(
                position=len(self.images),
                media_type=media_type,
                content=content,
                width=image.width,
                height=image.height,
                page=number,
                bbox=box,
                description=caption,
            )
        )


def _encode(
    document: pdfium.PdfDocument, page: pdfium.PdfPage, image: PlacedImage, stream: bytes
) -> tuple[str, bytes] | None:
    """JPEG streams as they are, everything else as PNG; None for what cannot be decoded."""
    helper = pdfium.PdfImage(image.handle, page=page, pdf=document)
    if stream.startswith(b"\xff\xd8\xff") and helper.get_filters() == ["DCTDecode"]:
        return "image/jpeg", stream
    try:
        bitmap = helper.get_bitmap(render=False)
    except pdfium.PdfiumError:
        return None
    picture = bitmap.to_pil()
    if picture.mode not in {"L", "RGB", "RGBA"}:
        picture = picture.convert("RGB")
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=3)
    return "image/png", buffer.getvalue()
