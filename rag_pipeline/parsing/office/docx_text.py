"""Text of one Word paragraph: runs, fields, tracked changes, symbols, and what hangs on it (boxes, notes, pictures)."""

from dataclasses import dataclass, field

from lxml import etree

from rag_pipeline.parsing.office.docx_styles import W, is_on
from rag_pipeline.parsing.office.drawing import MATH, formula_text, local_name

R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"

# Deleted and moved-away text, field codes, phonetic guides, properties, and the look of a placeholder.
_SKIPPED = frozenset(
    f"{W}{name}"
    for name in ("del", "moveFrom", "instrText", "delText", "delInstrText", "rt", "pPr", "rPr", "sdtPr", "sdtEndPr")
)
_FIXED_TEXT = {
    f"{W}tab": "\t",
    f"{W}ptab": "\t",
    f"{W}br": "\n",
    f"{W}cr": "\n",
    f"{W}noBreakHyphen": "-",
    f"{W}softHyphen": "",
}
# The Adobe Symbol encoding of Greek letters and common signs, and the boxes and arrows of Wingdings.
_SYMBOL = dict(zip(range(0x41, 0x5B), "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", strict=True))
_SYMBOL |= dict(zip(range(0x61, 0x7B), "αβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True))
_SYMBOL |= {0xA3: "≤", 0xA5: "∞", 0xAB: "↔", 0xAC: "←", 0xAD: "↑", 0xAE: "→", 0xAF: "↓", 0xB0: "°", 0xB1: "±"}
_SYMBOL |= {0xB3: "≥", 0xB4: "×", 0xB7: "•", 0xB8: "÷", 0xB9: "≠", 0xBB: "≈", 0xD6: "√", 0xE5: "∑", 0xF2: "∫"}
_SYMBOL |= {0xD2: "®", 0xD3: "©", 0xD4: "™", 0xE2: "®", 0xE3: "©", 0xE4: "™"}
_WINGDINGS = {0x6C: "●", 0x6E: "■", 0x6F: "☐", 0x71: "❑", 0x72: "❒", 0x76: "❖", 0xA7: "▪", 0xA8: "☐", 0xD8: "➢"}
_WINGDINGS |= {0xDF: "←", 0xE0: "→", 0xE8: "➔", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something outside the paragraph that it points to."""

    kind: str
    """`footnote`, `endnote`, `comment`, `image`, `chart` or `diagram`."""
    id: str
    """Id of the note, or of the relationship to the part."""
    description: str = ""
    """Alternative text of an image."""


@dataclass(slots=True, kw_only=True)
class ParagraphContent:
    """What was read from one paragraph."""

    text: str = ""
    boxes: list[etree._Element] = field(default_factory=list)
    """Contents of text boxes anchored here, each once."""
    references: list[Reference] = field(default_factory=list)


class ParagraphReader:
    """Reads the paragraphs of one part in order: fields may begin in one paragraph and end in another."""

    def __init__(self, part: etree._Element) -> None:
        self._field_results: list[bool] = []
        self.hidden_text = False
        """Whether text formatted as hidden was met (it is left out)."""
        kinds = [element.get(f"{W}fldCharType") for element in part.iter(f"{W}fldChar")]
        self._fields_balanced = kinds.count("begin") == kinds.count("end")

    def read(self, paragraph: etree._Element) -> ParagraphContent:
        """Text and attachments of a paragraph."""
        content = ParagraphContent()
        pieces: list[str] = []
        self._children(paragraph, pieces, content)
        content.text = "".join(pieces)
        return content

    def _children(self, element: etree._Element, pieces: list[str], content: ParagraphContent) -> None:
        for child in element:
            self._element(child, pieces, content)

    def _element(self, element: etree._Element, pieces: list[str], content: ParagraphContent) -> None:
        tag = element.tag
        if not isinstance(tag, str) or tag in _SKIPPED or (tag == f"{W}sdt" and is_placeholder(element)):
            return
        if tag in {f"{W}r", f"{W}hyperlink"}:
            if tag == f"{W}r" and _is_hidden(element):
                self.hidden_text = self.hidden_text or any(element.itertext(f"{W}t"))
                return
            self._children(element, pieces, content)
        elif tag == f"{W}fldChar":
            self._field_character(element, pieces)
        elif not self._visible:
            return
        elif (text := _own_text(element, tag)) is not None:
            pieces.append(text)
        elif tag == f"{MC}AlternateContent":
            self._alternative(element, pieces, content)
        elif tag in {f"{W}drawing", f"{W}pict", f"{W}object"}:
            _drawing(element, pieces, content)
        elif tag in {f"{W}footnoteReference", f"{W}endnoteReference", f"{W}commentReference"}:
            kind = local_name(element).removesuffix("Reference")
            content.references.append(Reference(kind=kind, id=element.get(f"{W}id", "")))
        else:
            self._children(element, pieces, content)

    def _alternative(self, element: etree._Element, pieces: list[str], content: ParagraphContent) -> None:
        """Of the versions of one drawing, the first that holds anything: they repeat each other."""
        for version in element:
            before = len(pieces) + len(content.boxes) + len(content.references)
            self._children(version, pieces, content)
            if len(pieces) + len(content.boxes) + len(content.references) > before:
                return

    @property
    def _visible(self) -> bool:
        return all(self._field_results)

    def _field_character(self, element: etree._Element, pieces: list[str]) -> None:
        if not self._fields_balanced:
            return
        kind = element.get(f"{W}fldCharType")
        if kind == "begin":
            form = element.find(f"{W}ffData")
            if form is not None and self._visible:
                pieces.append(_form_value(form))
            self._field_results.append(False)
        elif kind == "separate" and self._field_results:
            self._field_results[-1] = True
        elif kind == "end" and self._field_results:
            self._field_results.pop()


def _own_text(element: etree._Element, tag: str) -> str | None:
    """What an element shows by itself; None for elements that only hold others."""
    if tag == f"{W}t":
        return element.text or ""
    if tag == f"{W}sym":
        return _symbol(element)
    if tag.startswith(MATH):
        return formula_text(element)
    return _FIXED_TEXT.get(tag)


def is_placeholder(control: etree._Element) -> bool:
    """Whether a content control is empty and shows its prompt ("Click here to enter text")."""
    return control.find(f"{W}sdtPr/{W}showingPlcHdr") is not None


def _drawing(element: etree._Element, pieces: list[str], content: ParagraphContent) -> None:
    """Collect text boxes, pictures, charts and SmartArt; what lies inside a text box belongs to that box."""
    description = next((d.get("descr") or "" for d in element.iter("{*}docPr") if d.get("descr")), "")
    pending = list(reversed(element))
    while pending:
        child = pending.pop()
        name = local_name(child)
        relationship = child.get(f"{R}embed") or child.get(f"{R}id") or ""
        if name == "AlternateContent":
            pending.extend(list(child)[:1])
        elif name == "txbxContent":
            content.boxes.append(child)
        elif name == "blip" or (name == "imagedata" and local_name(element) == "pict"):
            alternative = description or next(
                (s.get("alt") or "" for s in element.iter("{*}shape") if s.get("alt")), ""
            )
            content.references.append(Reference(kind="image", id=relationship, description=alternative))
        elif name == "chart" and relationship:
            content.references.append(Reference(kind="chart", id=relationship))
        elif name == "relIds":
            content.references.append(Reference(kind="diagram", id=child.get(f"{R}dm", "")))
        elif name == "textpath":
            pieces.append(child.get("string") or "")
        else:
            pending.extend(reversed(child))


def _is_hidden(run: etree._Element) -> bool:
    hidden = run.find(f"{W}rPr/{W}vanish")
    return hidden is not None and is_on(hidden.get(f"{W}val"))


def _form_value(form: etree._Element) -> str:
    """What an old-style check box or drop-down shows; text inputs keep theirs in the field result."""
    box = form.find(f"{W}checkBox")
    if box is not None:
        state = box.find(f"{W}checked")
        state = box.find(f"{W}default") if state is None else state
        return "☒ " if state is not None and is_on(state.get(f"{W}val")) else "☐ "
    choices = [entry.get(f"{W}val", "") for entry in form.iterfind(f"{W}ddList/{W}listEntry")]
    chosen = form.find(f"{W}ddList/{W}result")
    index = chosen.get(f"{W}val", "0") if chosen is not None else "0"
    return choices[int(index)] if index.isdecimal() and int(index) < len(choices) else ""


def _symbol(element: etree._Element) -> str:
    """A character given by font and code; codes F000 to F0FF are positions in a symbol font."""
    try:
        code = int(element.get(f"{W}char", ""), 16)
    except ValueError:
        return ""
    position = code - 0xF000 if 0xF000 <= code <= 0xF0FF else code
    font = element.get(f"{W}font", "").lower()
    if font.startswith("wingdings"):
        return _WINGDINGS.get(position, "•")
    if font == "symbol":
        return _SYMBOL.get(position, chr(position) if position < 0x80 else "")
    return chr(position) if 0x20 <= position <= 0x10FFFF and not 0xD800 <= position <= 0xDFFF else ""
