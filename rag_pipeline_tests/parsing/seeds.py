"""A small file of every format family, with most of what its parser knows: where damaging files begins."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pptx
from openpyxl import Workbook
from openpyxl.comments import Comment
from PIL import Image, ImageDraw, ImageFont

from rag_pipeline_tests.parsing.office.packages import cell, paragraph, table, write_docx, write_package
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, at, gray_image, lines, pdf

HTML = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Pumps</title></head><body><nav>Home</nav>
<h1>Pumps</h1><p>Text with <a href="/x">a link</a> &amp; more.</p><ul><li>one<ol start="3"><li>two</li></ol></li></ul>
<table><tr><th rowspan="2">Site</th><th colspan="2">kPa</th></tr><tr><td>1</td><td>2</td></tr></table>
<pre><code class="language-python">print(1)</code></pre></body></html>"""
XML = """<?xml version="1.0" encoding="utf-8"?><!DOCTYPE report SYSTEM "r.dtd">
<report xmlns:a="urn:a"><title>Pumps</title>
<section id="1"><title>Scope</title><p>All <b>pumps</b> of the site.</p><![CDATA[raw < text]]></section>
<table><row><c>a</c><c>1</c></row><row><c>b</c><c>2</c></row></table><a:item key="k">v</a:item></report>"""
MARKDOWN = """---\ntitle: Pumps\ntags: [a, b]\n---\n# Pumps\n\nText *with* [a link](http://x.org).\n
- one\n  - two\n\n| Site | kPa |\n|---|---|\n| North | 1 |\n
```python\nprint(1)\n```\n\n> quoted\n\nSetext\n======\n\n<div>html</div>\n"""
EMAIL = """Subject: =?utf-8?q?Pumps_=E2=82=AC?=\nFrom: Ada <a@b.org>
Date: Fri, 01 Mar 2024 14:30:00 +0200\nMIME-Version: 1.0
Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/plain; charset=iso-8859-1\n
Content-Transfer-Encoding: quoted-printable\n\nplain =E4 text\n--x\nContent-Type: text/html\n\n<p>html</p>\n--x
Content-Type: message/rfc822\n\nSubject: inner\n\nbody\n--x
Content-Type: application/pdf; name="a.pdf"\nContent-Transfer-Encoding: base64\n\nJVBERi0=\n--x--\n"""
RTF = rb"""{\rtf1\ansi\ansicpg1252
{\fonttbl{\f0 Arial;}{\f1\fcharset134 S;}}{\stylesheet{\s1 heading 1;}}
{\info{\title T}}{\pard\s1\outlinelevel0 Scope\par}\trowd\cellx100\cellx200\intbl a\cell b\cell\row
\pard{\f1\'ba\'cf}\u20320?\'e4\par
{\footnote note}{\field{\*\fldinst HYPERLINK "x"}{\fldrslt link}}{\*\unknown gone}{\pict\pngblip 89504e47}}"""
TEXTS: Mapping[str, str | bytes] = {
    "page.html": HTML,
    "report.xml": XML,
    "notes.md": MARKDOWN,
    "mail.eml": EMAIL,
    "letter.rtf": RTF,
    "table.csv": 'site;kPa;note\nNorth;"1,5";"a ""quoted"" note"\nSouth;2\nWest;3;x;extra\n' * 5,
    "table.tsv": "site\tkPa\nNorth\t1\n",
    "data.json": '{"pumps": [{"id": 1, "tags": ["a", null], "text": "\\u00e4\\ud83d\\ude00"}, {"id": 2.5e3}]}',
    "lines.jsonl": '{"a": 1}\n{"b": [1, 2]}\n"text"\n',
    "config.yaml": "pumps:\n  - &a {id: 1, name: north}\n  - *a\ntext: |\n  lines\n? [x, y]\n: !!set {a, b}\n",
    "notes.txt": "Pumps\n\nA paragraph of text.\n\u6cf5\u7684\u7ef4\u62a4\n" * 4,
    "chinese.txt": "\u6cf5\u7684\u7ef4\u62a4\u624b\u518c\uff0c\u7b2c\u4e00\u7ae0\u3002\n".encode("gb18030") * 8,
    "wide.txt": "Pumps and valves\n\u6cf5\n".encode("utf-16"),
    "guide.rst": "Pumps\n=====\n\nText::\n\n    code\n\nScope\n-----\n\n* one\n* two\n",
}
"""Text formats by file name."""

_OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns:"
_CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OPS/book.opf"/></rootfiles></container>'
)
_BOOK = (
    '<package xmlns="http://www.idpf.org/2007/opf"><metadata/><manifest><item id="a" href="a.xhtml" '
    'media-type="application/xhtml+xml"/><item id="b" href="b.xhtml" media-type="application/xhtml+xml"/></manifest>'
    '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
)


def write_seeds(folder: Path) -> list[Path]:
    """Write all files and return them in a fixed order."""
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    for write in _WRITERS:
        write(folder)
    return sorted(folder.iterdir())


def picture(text: str, size: tuple[int, int] = (160, 40)) -> Image.Image:
    """Black letters on white."""
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((10, 8), text, fill="black", font=ImageFont.load_default(24))
    return image


def png(text: str) -> bytes:
    """`picture` as a PNG file."""
    buffer = io.BytesIO()
    picture(text).save(buffer, "PNG")
    return buffer.getvalue()


def _write_pdfs(folder: Path) -> None:
    field = "<</Type/Annot/Subtype/Widget/FT/Tx/T(name)/V(Marta)/Rect[150 640 300 660]/F 4>>"
    note = "<</Type/Annot/Subtype/Text/Contents(a note)/Rect[10 10 30 30]>>"
    link = "<</Type/Annot/Subtype/Link/Rect[60 690 200 710]/A<</S/URI/URI(http://x.org)>>>>"
    rules = (
        "60 500 m 300 500 l S 60 520 m 300 520 l S 60 500 m 60 520 l S 180 500 m 180 520 l S 300 500 m 300 520 l S\n"
    )
    first = Page(
        content=at(60, 740, "Pumps", font="B1", size=20)
        + lines(60, 700, ["Text of the first page that is bro-", "ken at its end.", "1. an item"])
        + rules
        + at(64, 505, "North")
        + at(184, 505, "12.5"),
        annotations=[field, note, link],
        xobjects={"I1": gray_image(40, 40, bytes(range(40)) * 40)},
    )
    second = Page(content=at(60, 740, "Second page") + "q 100 0 0 100 60 400 cm /I1 Do Q\n", extra="/Rotate 90",
                  xobjects={"I1": gray_image(40, 40, bytes(1_600))})  # fmt: skip
    (folder / "pages.pdf").write_bytes(pdf(first, second, catalog="/AcroForm<</Fields[]>>", info="/Title(Pumps)"))
    (folder / "locked.pdf").write_bytes(pdf(Page(content=at(60, 740, "Locked")), password=""))


def _write_docx(folder: Path) -> None:
    body = (
        paragraph("Scope", style="Heading1")
        + paragraph("a list item", properties='<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>')
        + table(cell("a", properties='<w:gridSpan w:val="2"/>') + cell("b"), cell("c") + cell(table(cell("d"))))
        + '<w:p><w:ins w:id="1"><w:r><w:t>new</w:t></w:r></w:ins><w:del w:id="2"><w:r><w:delText>old</w:delText></w:r>'
        '</w:del><w:r><w:footnoteReference w:id="2"/></w:r></w:p>'
    )
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    notes = f'<w:footnotes {namespace}><w:footnote w:id="2">{paragraph("a note")}</w:footnote></w:footnotes>'
    styles = (
        f'<w:styles {namespace}><w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/><w:pPr>'
        '<w:outlineLvl w:val="0"/></w:pPr></w:style></w:styles>'
    )
    numbering = (
        f'<w:numbering {namespace}><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:start w:val="1"/>'
        '<w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl></w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
    )
    write_docx(
        folder,
        body,
        parts={"footnotes.xml": notes, "styles.xml": styles, "numbering.xml": numbering},
        links=(("a", "footnotes", "footnotes.xml"), ("b", "styles", "styles.xml"), ("c", "numbering", "numbering.xml")),
    )


def _write_pptx(folder: Path) -> None:
    deck: Any = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Pumps"
    slide.placeholders[1].text_frame.text = "bullet"
    slide.notes_slide.notes_text_frame.text = "said aloud"
    shown = slide.shapes.add_table(2, 2, 0, 0, 1_000_000, 1_000_000).table
    shown.cell(0, 0).text = "a"
    shown.cell(0, 0).merge(shown.cell(0, 1))
    slide.shapes.add_picture(io.BytesIO(png("Valve")), 0, 0)
    deck.save(folder / "deck.pptx")


def _write_xlsx(folder: Path) -> None:
    book = Workbook()
    page: Any = book.active
    for row in (["Item", "Price", "Sold"], ["Desk", 120, "=1+1"], ["Lamp", 0.5, None]):
        page.append(row)
    page.merge_cells("A2:A3")
    page["B2"].number_format = "yyyy-mm-dd"
    page["B3"].comment = Comment("a comment", "Ada")
    book.create_sheet("Hidden").sheet_state = "hidden"
    book.save(folder / "book.xlsx")


def _write_open_documents(folder: Path) -> None:
    spaces = " ".join(f'xmlns:{name}="{_OPEN_DOCUMENT}{name}:1.0"' for name in ("office", "text", "table"))
    bodies = {
        "text": '<text:h text:outline-level="1">Pumps</text:h><text:p>a<text:s text:c="3"/>b<text:note><text:note-body>'
        "<text:p>n</text:p></text:note-body></text:note></text:p><text:list><text:list-item><text:p>i</text:p>"
        "</text:list-item></text:list>",
        "spreadsheet": '<table:table table:name="S"><table:table-row table:number-rows-repeated="2"><table:table-cell '
        'table:number-columns-repeated="3" office:value-type="float" office:value="1"><text:p>1</text:p>'
        "</table:table-cell></table:table-row></table:table>",
    }
    for (kind, body), suffix in zip(bodies.items(), ("odt", "ods"), strict=True):
        content = (
            f"<office:document-content {spaces}><office:body><office:{kind}>{body}</office:{kind}></office:body>"
            "</office:document-content>"
        )
        mimetype = f"application/vnd.oasis.opendocument.{kind}"
        write_package(folder / f"open.{suffix}", {"mimetype": mimetype, "content.xml": content})


def _write_epub(folder: Path) -> None:
    parts = {"mimetype": "application/epub+zip", "META-INF/container.xml": _CONTAINER, "OPS/book.opf": _BOOK}
    write_package(folder / "book.epub", parts | {"OPS/a.xhtml": HTML, "OPS/b.xhtml": "<html><p>b</p></html>"})


def _write_images(folder: Path) -> None:
    image = picture("Pump 12")
    for name in ("scan.png", "scan.jpg", "scan.webp", "scan.bmp"):
        image.save(folder / name)
    image.save(folder / "scan.tiff", save_all=True, append_images=[picture("Valve 7")], compression="tiff_lzw")


_WRITERS: tuple[Callable[[Path], None], ...] = (
    _write_pdfs,
    _write_docx,
    _write_pptx,
    _write_xlsx,
    _write_open_documents,
    _write_epub,
    _write_images,
)
