"""What is drawn on a page besides text that can be read: images, straight lines that may be the rules of tables."""

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.parsing.pdf.geometry import Affine, Box
from rag_pipeline.parsing.pdf.native import address_of, get_bounds, get_object, get_type

_MAX_OBJECTS = 20_000
"""Maps and drawings with more objects are not searched for tables."""
_MAX_SEGMENTS = 4_000
_THICKEST = 3.0
"""A rule is at most this thick, points."""
_SHORTEST = 4.0
"""A rule is at least this long, points."""
_MAX_DEPTH = 4
_NO_WIDTH = 0.01
"""Points."""
_LEAST_COLUMN = 4.0
"""A column of text is at least this high, points."""


class Rules(NamedTuple):
    """Rules in user space, as thin boxes: left, bottom, right, top."""

    boxes: list[tuple[float, float, float, float]]

    def transformed(self, transform: Affine) -> tuple[list[Box], list[Box]]:
        """Horizontal and vertical rules after a transformation."""
        boxes = [transform.box(*box) for box in self.boxes]
        horizontal = [box for box in boxes if box.height <= box.width]
        return horizontal, [box for box in boxes if box.height > box.width]


class PlacedImage(NamedTuple):
    """An image drawn on a page; the handle is good until the page is closed."""

    handle: "ctypes._Pointer[ctypes.Structure]"
    box: tuple[float, float, float, float]
    """left, bottom, right, top in user space."""
    width: int
    """Pixels."""
    height: int


class PageObjects(NamedTuple):
    """What is drawn on a page besides text that can be read."""

    shapes: int
    """Paths that are no rules: drawings, or text turned into outlines."""
    rules: Rules
    images: list[PlacedImage]
    unseen: int = 0
    """Columns of vertical text of which PDFium gives nothing: they have a height and no width, because neither the file
    nor this machine has a font for them (`CPDF_TextPage` passes over objects without width)."""


def read_objects(page: pdfium.PdfPage) -> PageObjects:
    """Walk over the objects of a loaded page; rules inside form XObjects are not seen, images are."""
    count = pdfium_c.FPDFPage_CountObjects(page.raw)
    if count > _MAX_OBJECTS:
        return PageObjects(count, Rules([]), [])
    rules: list[tuple[float, float, float, float]] = []
    images: list[PlacedImage] = []
    bounds = _Bounds()
    segments = shapes = unseen = 0
    page_address = address_of(page.raw)
    for index in range(count):
        address = get_object(page_address, index)
        kind = get_type(address)
        if kind == pdfium_c.FPDF_PAGEOBJ_PATH:
            box = bounds.of(address)
            wide, high = box[2] - box[0], box[3] - box[1]
            if min(wide, high) <= _THICKEST:
                if max(wide, high) >= _SHORTEST:
                    rules.append(box)
                continue
            shapes += 1
            item = _handle(address)
            if segments < _MAX_SEGMENTS and _is_stroked(item):
                edges = _edges(item)
                segments += len(edges)
                rules.extend(edges)
        elif kind == pdfium_c.FPDF_PAGEOBJ_IMAGE:
            images.append(_image(_handle(address), bounds.of(address)))
        elif kind == pdfium_c.FPDF_PAGEOBJ_FORM:
            # The place of a nested image is given in the form's space; that of the form is near enough.
            box = bounds.of(address)
            images.extend(_image(nested, box) for nested in _nested_images(_handle(address), depth=0))
        elif kind == pdfium_c.FPDF_PAGEOBJ_TEXT:
            box = bounds.of(address)
            unseen += box[2] - box[0] < _NO_WIDTH and box[3] - box[1] > _LEAST_COLUMN
    return PageObjects(shapes, Rules(rules), images, unseen)


class _Bounds:
    """Asks for the bounds of objects, left, bottom, right, top in user space, with one set of buffers."""

    def __init__(self) -> None:
        self._values = (ctypes.c_float * 4)()
        start = ctypes.addressof(self._values)
        self._addresses = tuple(start + number * ctypes.sizeof(ctypes.c_float) for number in range(4))

    def of(self, address: int) -> tuple[float, float, float, float]:
        if not get_bounds(address, *self._addresses):
            return (0.0, 0.0, 0.0, 0.0)
        left, bottom, right, top = self._values
        return (left, bottom, right, top)


def _handle(address: int) -> "ctypes._Pointer[ctypes.Structure]":
    return ctypes.cast(address, pdfium_c.FPDF_PAGEOBJECT)


def _image(item: "ctypes._Pointer[ctypes.Structure]", box: tuple[float, float, float, float]) -> PlacedImage:
    width, height = ctypes.c_uint(), ctypes.c_uint()
    pdfium_c.FPDFImageObj_GetImagePixelSize(item, width, height)
    return PlacedImage(item, box, width.value, height.value)


def _nested_images(
    form: "ctypes._Pointer[ctypes.Structure]", *, depth: int
) -> Iterator["ctypes._Pointer[ctypes.Structure]"]:
    count = pdfium_c.FPDFFormObj_CountObjects(form)
    if count < 0 or count > _MAX_OBJECTS or depth > _MAX_DEPTH:
        return
    for index in range(count):
        item = pdfium_c.FPDFFormObj_GetObject(form, index)
        kind = pdfium_c.FPDFPageObj_GetType(item)
        if kind == pdfium_c.FPDF_PAGEOBJ_IMAGE:
            yield item
        elif kind == pdfium_c.FPDF_PAGEOBJ_FORM:
            yield from _nested_images(item, depth=depth + 1)


def _is_stroked(item: "ctypes._Pointer[ctypes.Structure]") -> bool:
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    return bool(pdfium_c.FPDFPath_GetDrawMode(item, fill, stroke)) and bool(stroke.value)


def _edges(item: "ctypes._Pointer[ctypes.Structure]") -> list[tuple[float, float, float, float]]:
    """The axis-parallel straight parts of a stroked path."""
    count = pdfium_c.FPDFPath_CountSegments(item)
    if not 2 <= count <= _MAX_SEGMENTS:
        return []
    matrix = pdfium_c.FS_MATRIX()
    pdfium_c.FPDFPageObj_GetMatrix(item, matrix)
    transform = Affine(matrix.a, matrix.c, matrix.e, matrix.b, matrix.d, matrix.f)
    x, y = ctypes.c_float(), ctypes.c_float()
    edges: list[tuple[float, float, float, float]] = []
    start = before = (0.0, 0.0)
    for index in range(count):
        segment = pdfium_c.FPDFPath_GetPathSegment(item, index)
        pdfium_c.FPDFPathSegment_GetPoint(segment, x, y)
        point = transform.point(x.value, y.value)
        kind = pdfium_c.FPDFPathSegment_GetType(segment)
        if kind == pdfium_c.FPDF_SEGMENT_MOVETO:
            start = point
        elif kind == pdfium_c.FPDF_SEGMENT_LINETO:
            _add_edge(edges, before, point)
        before = point
        if pdfium_c.FPDFPathSegment_GetClose(segment):
            _add_edge(edges, point, start)
    return edges


def _add_edge(
    edges: list[tuple[float, float, float, float]], first: tuple[float, float], second: tuple[float, float]
) -> None:
    wide, high = abs(first[0] - second[0]), abs(first[1] - second[1])
    if min(wide, high) <= 0.5 and max(wide, high) >= _SHORTEST:
        edges.append(
            (min(first[0], second[0]), min(first[1], second[1]), max(first[0], second[0]), max(first[1], second[1]))
        )
