"""Builds small Office packages from raw XML, so that tests hold what no writer library produces."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rag_pipeline.core.ports import ParseRequest

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
NAMESPACES = (
    f'xmlns:w="{WORD}" xmlns:r="{RELATIONSHIPS}" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:v="urn:schemas-microsoft-com:vml" '
    'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
)


def paragraph(text: str, *, style: str | None = None, properties: str = "") -> str:
    """A Word paragraph with one run."""
    named = f'<w:pStyle w:val="{style}"/>' if style else ""
    return f"<w:p><w:pPr>{named}{properties}</w:pPr>{run(text)}</w:p>"


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def cell(content: str, *, properties: str = "") -> str:
    inner = content if content.startswith("<") else paragraph(content)
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{inner}</w:tc>"


def table(*rows: str) -> str:
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"


def relationships(*links: tuple[str, str, str]) -> str:
    """A relationships part from (id, type, target)."""
    items = "".join(
        f'<Relationship Id="{key}" Type="{RELATIONSHIPS}/{kind}" Target="{target}"/>' for key, kind, target in links
    )
    return (
        f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{items}</Relationships>'
    )


def write_docx(
    folder: Path,
    body: str,
    *,
    parts: Mapping[str, str | bytes] | None = None,
    links: tuple[tuple[str, str, str], ...] = (),
    name: str = "file.docx",
) -> ParseRequest:
    """Write a Word package with this body and further parts of `word/`, linked from the document."""
    content: dict[str, str | bytes] = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
        "_rels/.rels": relationships(("rId1", "officeDocument", "word/document.xml")),
        "word/document.xml": f"<w:document {NAMESPACES}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": relationships(*links),
    }
    content |= {f"word/{key}": value for key, value in (parts or {}).items()}
    return write_package(folder / name, content)


def write_package(path: Path, content: Mapping[str, str | bytes]) -> ParseRequest:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return ParseRequest(path=path, file_name=path.name)


def rewrite(request: ParseRequest, changes: Mapping[str, bytes | Callable[[bytes], bytes]]) -> ParseRequest:
    """The same package with some parts replaced, or changed by a function."""
    with zipfile.ZipFile(request.path) as archive:
        content: dict[str, str | bytes] = {name: archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        if isinstance(change, bytes):
            content[name] = change
        else:
            before = content[name]
            assert isinstance(before, bytes)
            content[name] = change(before)
            assert content[name] != before, f"{name} is unchanged"
    return write_package(request.path.with_name(f"changed-{request.path.name}"), content)
