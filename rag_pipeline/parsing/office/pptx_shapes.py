"""Shapes of a slide with their place on it, in reading order. Positions are points from the top left of the slide."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lxml import etree

from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.parsing.office.docx_styles import to_int
from rag_pipeline.parsing.office.drawing import local_name

P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
EMU_PER_POINT = 12_700
TITLES = frozenset({"title", "ctrTitle"})

_SHAPES = frozenset(f"{P}{name}" for name in ("sp", "pic", "graphicFrame", "cxnSp"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A shape that is no group, or a group with its members."""

    element: etree._Element
    box: BoundingBox | None
    """None when neither the shape nor its layout says where it is."""
    placeholder: str | None = None
    """Type of the placeholder (`title`, `body`, `ftr`, ...), None for other shapes."""
    members: tuple["Shape", ...] = ()

    @property
    def description(self) -> str:
        """Alternative text."""
        return next((found.get("descr") or "" for found in self.element.iter(f"{P}cNvPr")), "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transform:
    """From the coordinates inside a group to those of the slide, in EMU."""

    scale_x: float = 1.0
    scale_y: float = 1.0
    offset_x: float = 0.0
    offset_y: float = 0.0

    def box(self, left: int, top: int, width: int, height: int) -> BoundingBox:
        x, y = left * self.scale_x + self.offset_x, top * self.scale_y + self.offset_y
        return BoundingBox(
            left=x / EMU_PER_POINT,
            top=y / EMU_PER_POINT,
            right=(x + width * self.scale_x) / EMU_PER_POINT,
            bottom=(y + height * self.scale_y) / EMU_PER_POINT,
        )


def layout_boxes(layout: etree._Element) -> dict[tuple[str, str], BoundingBox]:
    """Boxes of the placeholders of a layout or master, by (type, index): slides inherit them."""
    boxes = {}
    for element in layout.iter(f"{P}sp"):
        key = _placeholder_key(element)
        box = _own_box(element, _Transform())
        if key is not None and box is not None:
            boxes[key] = box
    return boxes


def read_shapes(tree: etree._Element, inherited: Mapping[tuple[str, str], BoundingBox]) -> list[Shape]:
    """Visible shapes of a shape tree in reading order: the title first, then rows from the top, columns in each row."""
    shapes = list(_shapes(tree, inherited, _Transform()))
    titles = [shape for shape in shapes if shape.placeholder in TITLES]
    return titles + reading_order([shape for shape in shapes if shape.placeholder not in TITLES])


def reading_order(shapes: Sequence[Shape]) -> list[Shape]:
    """Order by recursive cuts along blank strips; shapes that overlap go by their top, then their left edge.

    Shapes without a position keep their place at the end, in the order of the file.
    """
    placed = [shape for shape in shapes if shape.box is not None]
    return [*_cut(placed, vertical=True), *(shape for shape in shapes if shape.box is None)]


def _cut(shapes: Sequence[Shape], *, vertical: bool, failed: bool = False) -> list[Shape]:
    if len(shapes) <= 1:
        return list(shapes)
    strips = _strips(shapes, vertical=vertical)
    if len(strips) > 1:
        return [shape for strip in strips for shape in _cut(strip, vertical=not vertical)]
    if failed:
        return sorted(shapes, key=lambda shape: _edges(shape, vertical=True)[:1] + _edges(shape, vertical=False)[:1])
    return _cut(shapes, vertical=not vertical, failed=True)


def _strips(shapes: Sequence[Shape], *, vertical: bool) -> list[list[Shape]]:
    """Groups of shapes that share no point of the axis (vertical: rows, else columns), in order."""
    strips: list[list[Shape]] = []
    reach = float("-inf")
    for shape in sorted(shapes, key=lambda item: _edges(item, vertical=vertical)):
        start, end = _edges(shape, vertical=vertical)
        # A touch of overlap (a twentieth of the shape) is a sloppy edge, not a shared row.
        if not strips or start + (end - start) * 0.05 >= reach:
            strips.append([])
        strips[-1].append(shape)
        reach = max(reach, end)
    return strips


def _edges(shape: Shape, *, vertical: bool) -> tuple[float, float]:
    box = shape.box
    if box is None:
        return (0.0, 0.0)
    return (box.top, box.bottom) if vertical else (box.left, box.right)


def _shapes(
    tree: etree._Element, inherited: Mapping[tuple[str, str], BoundingBox], transform: _Transform
) -> Iterator[Shape]:
    for element in tree:
        if local_name(element) == "AlternateContent":
            yield from (shape for version in list(element)[:1] for shape in _shapes(version, inherited, transform))
        elif element.tag == f"{P}grpSp" and not _is_hidden(element):
            inner = _group_transform(element, transform)
            members = reading_order(list(_shapes(element, inherited, inner)))
            yield Shape(element=element, box=_own_box(element, transform), members=tuple(members))
        elif element.tag in _SHAPES and not _is_hidden(element):
            key = _placeholder_key(element)
            box = _own_box(element, transform)
            if box is None and key is not None:
                box = inherited.get(key) or _by_index_or_type(key, inherited)
            yield Shape(element=element, box=box, placeholder=key[0] if key else None)


def _by_index_or_type(key: tuple[str, str], inherited: Mapping[tuple[str, str], BoundingBox]) -> BoundingBox | None:
    kind, index = key
    same_index = (box for (_, other), box in inherited.items() if index and other == index)
    same_kind = (box for (other, _), box in inherited.items() if other == kind or {kind, other} <= TITLES)
    return next(same_index, None) or next(same_kind, None)


def _placeholder_key(element: etree._Element) -> tuple[str, str] | None:
    placeholder = element.find(f"*/{P}nvPr/{P}ph")
    if placeholder is None:
        return None
    return placeholder.get("type", "obj"), placeholder.get("idx", "")


def _is_hidden(element: etree._Element) -> bool:
    properties = element.find(f"*/{P}cNvPr")
    return properties is not None and properties.get("hidden") in {"1", "true"}


def _frame(element: etree._Element) -> etree._Element | None:
    for path in (f"{P}spPr/{A}xfrm", f"{P}grpSpPr/{A}xfrm", f"{P}xfrm"):
        found = element.find(path)
        if found is not None:
            return found
    return None


def _own_box(element: etree._Element, transform: _Transform) -> BoundingBox | None:
    frame = _frame(element)
    offset, extent = (frame.find(f"{A}off"), frame.find(f"{A}ext")) if frame is not None else (None, None)
    if offset is None or extent is None:
        return None
    return transform.box(_number(offset, "x"), _number(offset, "y"), _number(extent, "cx"), _number(extent, "cy"))


def _group_transform(group: etree._Element, outer: _Transform) -> _Transform:
    frame = _frame(group)
    parts = [frame.find(f"{A}{name}") if frame is not None else None for name in ("off", "ext", "chOff", "chExt")]
    offset, extent, child_offset, child_extent = parts
    if offset is None or extent is None or child_offset is None or child_extent is None:
        return outer
    scale_x = _number(extent, "cx") / (_number(child_extent, "cx") or 1)
    scale_y = _number(extent, "cy") / (_number(child_extent, "cy") or 1)
    inner_x = _number(offset, "x") - _number(child_offset, "x") * scale_x
    inner_y = _number(offset, "y") - _number(child_offset, "y") * scale_y
    return _Transform(
        scale_x=scale_x * outer.scale_x,
        scale_y=scale_y * outer.scale_y,
        offset_x=inner_x * outer.scale_x + outer.offset_x,
        offset_y=inner_y * outer.scale_y + outer.offset_y,
    )


def _number(element: etree._Element, attribute: str) -> int:
    return to_int(element.get(attribute), 0)
