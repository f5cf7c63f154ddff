"""What Word, PowerPoint and Excel files share: charts, SmartArt, formulas and embedded pictures."""

import warnings
from io import BytesIO

from lxml import etree

from rag_pipeline.core.parsed_document import BoundingBox, DocumentBuilder, ParsedImage
from rag_pipeline.parsing.office.docx_styles import to_int

MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
IMAGE_PIXELS = 100_000_000
"""Pictures with more pixels are listed without their bytes: nobody shows them, and they fill the memory."""
MAX_CHART_POINTS = 2_000
"""Points of a chart that are kept as table rows."""

_SCRIPTS = {"sSup": ("^", "sup"), "sSub": ("_", "sub")}


def local_name(element: etree._Element) -> str:
    """Tag without namespace; "" for comments and entities."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _text(element: etree._Element) -> str:
    return "".join(run.text or "" for run in element.iter("{*}t"))


def chart_rows(root: etree._Element) -> tuple[str, list[list[str]]]:
    """Title of a chart part, and its cached data: one row per category, one column per series, header first."""
    titles = [_text(title) for title in root.iterfind(".//{*}chart/{*}title")]
    names: list[str] = []
    categories: dict[int, str] = {}
    values: list[dict[int, str]] = []
    for series in root.iterfind(".//{*}ser"):
        names.append("".join(_points(series, "tx").values()))
        categories.update(_points(series, "cat") or _points(series, "xVal"))
        values.append(_points(series, "val") or _points(series, "yVal"))
    indices = sorted(set(categories).union(*values))[:MAX_CHART_POINTS]
    if not indices or not any(values):
        return " ".join(titles).strip(), []
    rows = [["", *names]]
    rows += [[categories.get(index, ""), *(column.get(index, "") for column in values)] for index in indices]
    return " ".join(titles).strip(), rows


def _points(series: etree._Element, child: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for point in series.iterfind(f"{{*}}{child}//{{*}}pt"):
        value = point.findtext("{*}v")
        if value is not None:
            found.setdefault(to_int(point.get("idx"), len(found)), _readable(value))
    if not found and child == "tx":
        found = {0: series.findtext(f"{{*}}{child}/{{*}}v") or ""}
    return found


def _readable(value: str) -> str:
    """A stored number without the noise of binary fractions (4.4000000000000004); other texts as they are."""
    try:
        return f"{float(value):.15g}" if "." in value else value
    except ValueError:
        return value


def diagram_lines(root: etree._Element) -> list[str]:
    """Texts of a SmartArt data part, one line per node, in the order of the file."""
    lines = []
    for point in root.iterfind(".//{*}pt"):
        text = " ".join(_text(point).split())
        if text and point.get("type", "node") in {"node", "asst"}:
            lines.append(text)
    return lines


def formula_text(element: etree._Element) -> str:
    """A formula (Office Math) on one line: `(a)/(b)`, `x^2`, `x_1`, `√(x)`."""
    name = local_name(element)
    if name == "t":
        return element.text or ""
    if name == "f":
        return f"({_part(element, 'num')})/({_part(element, 'den')})"
    if name in _SCRIPTS:
        mark, part = _SCRIPTS[name]
        return f"{_part(element, 'e')}{mark}{_part(element, part)}"
    if name == "rad":
        return f"√({_part(element, 'e')})"
    return "".join(formula_text(child) for child in element)


def _part(element: etree._Element, name: str) -> str:
    return "".join(formula_text(child) for child in element.iterfind(f"{MATH}{name}"))


def add_image(
    builder: DocumentBuilder,
    content: bytes,
    *,
    description: str = "",
    page: int | None = None,
    box: BoundingBox | None = None,
) -> int | None:
    """Keep an embedded picture and return its position; None, with a warning, for kinds that are not pixels (EMF, SVG).

    Only the header is read, so a picture that is a decompression bomb costs nothing here.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(BytesIO(content)) as image:
                width, height, media_type = image.width, image.height, image.get_format_mimetype()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        media_type = None
    if media_type is None or media_type in {"image/emf", "image/wmf", "image/x-emf", "image/x-wmf"}:
        builder.warn("pictures in vector formats (EMF, WMF, SVG) were left out")
        return None
    if width * height > IMAGE_PIXELS:
        builder.warn(f"a picture of {width} x {height} pixels was left out")
        return None
    position = len(builder.images)
    builder.images.append(
        ParsedImage(
            position=position,
            media_type=media_type,
            content=content,
            width=width,
            height=height,
            page=page,
            bbox=box,
            description=description,
        )
    )
    return position
