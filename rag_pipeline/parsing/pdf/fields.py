"""Form fields, annotations and links: what people typed, ticked and noted on a page. Hidden ones stay out."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from rag_pipeline.parsing.pdf.geometry import Affine, Box
from rag_pipeline.parsing.pdf.words import FIELD_FONT, Style, Word

_MAX_ANNOTATIONS = 5_000
_MAX_TEXT = 100_000
"""Bytes of one value; longer ones are cut."""
_HIDDEN = pdfium_c.FPDF_ANNOT_FLAG_HIDDEN | pdfium_c.FPDF_ANNOT_FLAG_NOVIEW
_PASSWORD_FIELD = 1 << 13
_NOTES = frozenset(
    {
        pdfium_c.FPDF_ANNOT_TEXT,
        pdfium_c.FPDF_ANNOT_FREETEXT,
        pdfium_c.FPDF_ANNOT_HIGHLIGHT,
        pdfium_c.FPDF_ANNOT_UNDERLINE,
        pdfium_c.FPDF_ANNOT_SQUIGGLY,
        pdfium_c.FPDF_ANNOT_STRIKEOUT,
        pdfium_c.FPDF_ANNOT_STAMP,
        pdfium_c.FPDF_ANNOT_CARET,
        pdfium_c.FPDF_ANNOT_LINE,
        pdfium_c.FPDF_ANNOT_SQUARE,
        pdfium_c.FPDF_ANNOT_CIRCLE,
    }
)
_TYPED = frozenset(
    {pdfium_c.FPDF_FORMFIELD_TEXTFIELD, pdfium_c.FPDF_FORMFIELD_COMBOBOX, pdfium_c.FPDF_FORMFIELD_LISTBOX}
)
_TICKED = frozenset({pdfium_c.FPDF_FORMFIELD_CHECKBOX, pdfium_c.FPDF_FORMFIELD_RADIOBUTTON})
_FIRST_INDEX = 10_000_000
"""Character index of field values: after all characters of the page."""


class Note(NamedTuple):
    """An annotation with text."""

    text: str
    box: Box


class Link(NamedTuple):
    """A rectangle that leads to an address."""

    address: str
    box: Box


@dataclass(slots=True)
class Annotations:
    """What lies over a page, in display coordinates."""

    fields: list[Word] = field(default_factory=list)
    """Values of form fields as words at the place of the field, so that they are read beside their label."""
    notes: list[Note] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)


def read_annotations(document: pdfium.PdfDocument, page: pdfium.PdfPage, to_display: Affine) -> Annotations:
    """Read the visible annotations of a loaded page; `init_forms` must have been called for field values."""
    found = Annotations()
    count = min(pdfium_c.FPDFPage_GetAnnotCount(page.raw), _MAX_ANNOTATIONS)
    for index in range(count):
        annotation = pdfium_c.FPDFPage_GetAnnot(page.raw, index)
        if not annotation:
            continue
        try:
            _read(document, annotation, to_display, found)
        finally:
            pdfium_c.FPDFPage_CloseAnnot(annotation)
    return found


def _read(
    document: pdfium.PdfDocument,
    annotation: "ctypes._Pointer[ctypes.Structure]",
    to_display: Affine,
    found: Annotations,
) -> None:
    if pdfium_c.FPDFAnnot_GetFlags(annotation) & _HIDDEN:
        return
    rectangle = pdfium_c.FS_RECTF()
    if not pdfium_c.FPDFAnnot_GetRect(annotation, rectangle):
        return
    box = to_display.box(rectangle.left, rectangle.top, rectangle.right, rectangle.bottom)
    subtype = pdfium_c.FPDFAnnot_GetSubtype(annotation)
    if subtype == pdfium_c.FPDF_ANNOT_LINK:
        address = _address(document, annotation)
        if address:
            found.links.append(Link(address, box))
    elif subtype == pdfium_c.FPDF_ANNOT_WIDGET:
        value = _field_value(document, annotation)
        if value:
            found.fields.append(_as_word(value, box, _FIRST_INDEX + 2 * len(found.fields)))
    elif subtype in _NOTES:
        text = _string(lambda buffer, size: pdfium_c.FPDFAnnot_GetStringValue(annotation, b"Contents", buffer, size))
        if text.strip():
            found.notes.append(Note(text.replace("\r\n", "\n").replace("\r", "\n").strip(), box))


def _field_value(document: pdfium.PdfDocument, annotation: "ctypes._Pointer[ctypes.Structure]") -> str:
    if document.formenv is None:
        return ""
    form = document.formenv.raw
    kind = pdfium_c.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in _TICKED:
        return "[x]" if pdfium_c.FPDFAnnot_IsChecked(form, annotation) else "[ ]"
    if kind not in _TYPED or pdfium_c.FPDFAnnot_GetFormFieldFlags(form, annotation) & _PASSWORD_FIELD:
        return ""
    value = _string(lambda buffer, size: pdfium_c.FPDFAnnot_GetFormFieldValue(form, annotation, buffer, size))
    return " ".join(value.split())


def _as_word(value: str, box: Box, index: int) -> Word:
    size = min(max(box.height * 0.7, 4.0), 12.0)
    middle = (box.top + min(box.bottom, box.top + 2.5 * size)) / 2
    style = Style(round(size, 1), False, False, FIELD_FONT, 0, False)
    return Word(value, box.left, middle - 0.6 * size, box.right, middle + 0.6 * size, style, index, index + 1, 0)


def _address(document: pdfium.PdfDocument, annotation: "ctypes._Pointer[ctypes.Structure]") -> str:
    link = pdfium_c.FPDFAnnot_GetLink(annotation)
    action = pdfium_c.FPDFLink_GetAction(link) if link else None
    if not action or pdfium_c.FPDFAction_GetType(action) != pdfium_c.PDFACTION_URI:
        return ""
    length = pdfium_c.FPDFAction_GetURIPath(document.raw, action, None, 0)
    if not 1 < length <= _MAX_TEXT:
        return ""
    buffer = ctypes.create_string_buffer(length)
    pdfium_c.FPDFAction_GetURIPath(document.raw, action, buffer, length)
    return buffer.raw[: length - 1].decode("utf-8", "replace").strip()


def _string(read: Callable[[object, int], int]) -> str:
    length = min(read(None, 0), _MAX_TEXT)
    if length <= 2:
        return ""
    buffer = ctypes.create_string_buffer(length)
    read(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), length)
    return buffer.raw[: length - 2].decode("utf-16-le", "replace")
