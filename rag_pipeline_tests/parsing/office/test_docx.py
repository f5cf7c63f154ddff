from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from rag_pipeline.core.parsed_document import BlockType, ParsedDocument
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.parsing.office.docx import DocxParser
from rag_pipeline_tests.parsing.office.packages import NAMESPACES, cell, paragraph, run, table, write_docx


def parse(request: ParseRequest) -> ParsedDocument:
    return DocxParser().parse(request)


def texts(document: ParsedDocument, type: BlockType | None = None) -> list[str]:
    return [document.block_text(block) for block in document.blocks if type in {None, block.type}]


def style(id: str, name: str, properties: str = "", based_on: str = "") -> str:
    base = f'<w:basedOn w:val="{based_on}"/>' if based_on else ""
    return (
        f'<w:style w:type="paragraph" w:styleId="{id}"><w:name w:val="{name}"/>{base}'
        f"<w:pPr>{properties}</w:pPr></w:style>"
    )


def styles(*items: str) -> dict[str, str]:
    return {"styles.xml": f"<w:styles {NAMESPACES}>{''.join(items)}</w:styles>"}


STYLES_LINK = ("rS", "styles", "styles.xml")


@pytest.mark.parametrize(
    ("definition", "level"),
    [
        pytest.param(style("berschrift2", "heading 2"), 2, id="local-style-id"),
        pytest.param(style("a", "标题 3"), 3, id="chinese-name"),
        pytest.param(style("a", "Überschrift 1"), 1, id="german-name"),
        pytest.param(style("a", "Clause", '<w:outlineLvl w:val="1"/>'), 2, id="outline-level"),
        pytest.param(style("b", "heading 4") + style("a", "House style", based_on="b"), 4, id="based-on"),
        pytest.param(style("a", "heading 9"), 6, id="deeper-than-six"),
        pytest.param(style("a", "Title"), 1, id="title"),
    ],
)
def test_heading_styles_in_any_language_become_headings(tmp_path: Path, definition: str, level: int) -> None:
    identifier = "a" if 'styleId="a"' in definition else "berschrift2"
    body = paragraph("Scope", style=identifier) + paragraph("Text below")
    document = parse(write_docx(tmp_path, body, parts=styles(definition), links=(STYLES_LINK,)))

    heading, below = document.blocks
    assert (heading.type, heading.level) == (BlockType.HEADING, level)
    assert below.heading_path == ("Scope",)


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(style("a", "toc 1", '<w:outlineLvl w:val="0"/>'), id="table-of-contents"),
        pytest.param(style("a", "heading 1", '<w:outlineLvl w:val="9"/>'), id="body-text-outline-level"),
        pytest.param(style("a", "a", based_on="a"), id="style-based-on-itself"),
    ],
)
def test_other_styles_stay_paragraphs(tmp_path: Path, definition: str) -> None:
    document = parse(
        write_docx(tmp_path, paragraph("Scope 3", style="a"), parts=styles(definition), links=(STYLES_LINK,))
    )
    assert [block.type for block in document.blocks] == [BlockType.PARAGRAPH]


def test_a_whole_paragraph_in_a_heading_style_is_no_heading(tmp_path: Path) -> None:
    document = parse(write_docx(tmp_path, paragraph("word " * 80, style="Heading1")))
    assert document.blocks[0].type is BlockType.PARAGRAPH


def test_tracked_changes_are_read_as_accepted(tmp_path: Path) -> None:
    by = 'w:id="1" w:author="x"'
    deleted = '<w:r><w:delText xml:space="preserve">30 days</w:delText></w:r>'
    body = (
        f"<w:p>{run('Answer within ')}<w:del {by}>{deleted}</w:del><w:ins {by}>{run('90 days')}</w:ins></w:p>"
        f"<w:p><w:moveFrom {by}>{run('Moved clause')}</w:moveFrom></w:p>"
        f"<w:p><w:moveTo {by}>{run('Moved clause')}</w:moveTo></w:p>"
        f"<w:p><w:pPr><w:rPr><w:del {by}/></w:rPr></w:pPr>{run('First half, ')}</w:p>"
        + paragraph("second half")
        + f"<w:tbl><w:tr><w:trPr><w:del {by}/></w:trPr>{cell('gone')}{cell('gone')}</w:tr>"
        f"<w:tr>{cell('kept')}{cell('too')}</w:tr></w:tbl>"
    )
    assert texts(parse(write_docx(tmp_path, body))) == [
        "Answer within 90 days",
        "Moved clause",
        "First half, second half",
        "| kept | too |\n| --- | --- |",
    ]


def test_field_codes_are_dropped_and_their_results_kept(tmp_path: Path) -> None:
    def mark(kind: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'

    def code(text: str) -> str:
        return f"<w:r><w:instrText>{text}</w:instrText></w:r>"

    nested = mark("begin") + code("PAGE") + mark("separate") + run("7") + mark("end")
    body = (
        f"<w:p>{run('See ')}{mark('begin')}{code('IF ')}{nested}{mark('separate')}{run('clause 4')}</w:p>"
        f"<w:p>{run('and 5')}{mark('end')}{run('.')}</w:p>"
        f'<w:p><w:fldSimple w:instr="AUTHOR">{run("Ada")}</w:fldSimple>'
        f'<w:hyperlink r:id="x">{run(" wrote this")}</w:hyperlink></w:p>'
    )
    assert texts(parse(write_docx(tmp_path, body))) == ["See clause 4", "and 5.", "Ada wrote this"]


def test_a_field_that_never_ends_hides_nothing(tmp_path: Path) -> None:
    body = f'<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r>{run("visible")}</w:p>' + paragraph("after")
    assert texts(parse(write_docx(tmp_path, body))) == ["visible", "after"]


def test_a_text_box_stored_in_two_versions_is_read_once(tmp_path: Path) -> None:
    box = f"<w:txbxContent>{paragraph('Inside the box')}</w:txbxContent>"
    body = (
        f"<w:p>{run('Outside')}<w:r><mc:AlternateContent>"
        f'<mc:Choice Requires="wps"><w:drawing><wps:txbx>{box}</wps:txbx></w:drawing></mc:Choice>'
        f"<mc:Fallback><w:pict><v:textbox>{box}</v:textbox></w:pict></mc:Fallback>"
        "</mc:AlternateContent></w:r></w:p>"
    )
    assert texts(parse(write_docx(tmp_path, body))) == ["Outside", "Inside the box"]


def test_content_controls_are_read_and_empty_ones_are_not(tmp_path: Path) -> None:
    body = (
        f"<w:sdt><w:sdtContent>{paragraph('In a block control')}</w:sdtContent></w:sdt>"
        f"<w:p>{run('In a ')}<w:sdt><w:sdtContent>{run('run control')}</w:sdtContent></w:sdt></w:p>"
        f"<w:p>{run('Name:')}<w:sdt><w:sdtPr><w:showingPlcHdr/></w:sdtPr><w:sdtContent>{run('Click here')}"
        "</w:sdtContent></w:sdt></w:p>"
    )
    assert texts(parse(write_docx(tmp_path, body))) == ["In a block control", "In a run control", "Name:"]


def test_special_characters_inside_runs(tmp_path: Path) -> None:
    body = (
        "<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>co</w:t><w:softHyphen/><w:t>op</w:t><w:noBreakHyphen/>"
        '<w:sym w:font="Symbol" w:char="F061"/><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>'
        "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>"
        "<m:oMath><m:f><m:num><m:r><m:t>x</m:t></m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f></m:oMath></w:p>"
    )
    document = parse(write_docx(tmp_path, body))
    assert texts(document) == ["a\tb\ncoop-α☑(x)/(2)"]
    assert document.warnings == ("text formatted as hidden was left out",)


NUMBERING = f"""<w:numbering {NAMESPACES}>
<w:abstractNum w:abstractNumId="0">
<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>
<w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%1.%2)"/></w:lvl>
</w:abstractNum>
<w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/><w:lvlText w:val="-"/></w:lvl>
</w:abstractNum>
<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>
<w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num>
<w:num w:numId="3"><w:abstractNumId w:val="0"/>
<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride></w:num>
</w:numbering>"""


def numbered(text: str, list_id: int, level: int = 0) -> str:
    properties = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list_id}"/></w:numPr>'
    return paragraph(text, properties=properties)


def test_list_items_carry_their_number_and_level(tmp_path: Path) -> None:
    body = (
        numbered("one", 1)
        + numbered("sub", 1, 1)
        + numbered("sub", 1, 1)
        + numbered("two", 1)
        + numbered("sub", 1, 1)
        + numbered("bullet", 2)
        + numbered("restarted", 3)
        + numbered("plain", 0)
    )
    document = parse(
        write_docx(tmp_path, body, parts={"numbering.xml": NUMBERING}, links=(("n", "numbering", "numbering.xml"),))
    )
    assert texts(document, BlockType.LIST_ITEM) == [
        "1. one",
        "1.a) sub",
        "1.b) sub",
        "2. two",
        "2.a) sub",
        "bullet",
        "5. restarted",
    ]
    assert [block.level for block in document.blocks] == [1, 2, 2, 1, 2, 1, 1, None]
    assert texts(document, BlockType.PARAGRAPH) == ["plain"]


def test_merged_cells_label_every_row_and_head_every_column(tmp_path: Path) -> None:
    start, go_on, wide = '<w:vMerge w:val="restart"/>', "<w:vMerge/>", '<w:gridSpan w:val="2"/>'
    body = table(
        cell("Region") + cell("Quarter", properties=wide),
        cell("North", properties=start) + cell("Q1") + cell("10"),
        cell("", properties=go_on) + cell("Q2") + cell("20"),
        cell("South") + cell("closed", properties=wide),
    )
    (block,) = parse(write_docx(tmp_path, body)).blocks
    assert block.rows == (
        ("Region", "Quarter", "Quarter"),
        ("North", "Q1", "10"),
        ("North", "Q2", "20"),
        ("South", "closed", ""),
    )


def test_a_nested_table_stays_inside_its_cell(tmp_path: Path) -> None:
    inner = paragraph("sizes:") + table(cell("S") + cell("M"), cell("1") + cell("2")) + paragraph("")
    body = table(cell("a") + cell("b"), cell("c") + cell(inner))
    (block,) = parse(write_docx(tmp_path, body)).blocks
    assert block.rows == (("a", "b"), ("c", "sizes:\nS, M\n1, 2"))


def test_a_layout_table_is_read_as_its_content(tmp_path: Path) -> None:
    body = table(cell(paragraph("Left", style="Heading1") + table(cell("x") + cell("y"))) + cell("Right"))
    document = parse(write_docx(tmp_path, body))
    assert [block.type for block in document.blocks] == [BlockType.HEADING, BlockType.TABLE, BlockType.PARAGRAPH]


def test_notes_and_comments_follow_the_paragraph_that_refers_to_them(tmp_path: Path) -> None:
    footnotes = (
        f"<w:footnotes {NAMESPACES}><w:footnote w:id='0' w:type='separator'>{paragraph('---')}</w:footnote>"
        f"<w:footnote w:id='2'>{paragraph('Audited figures.')}</w:footnote></w:footnotes>"
    )
    comments = (
        f"<w:comments {NAMESPACES}><w:comment w:id='7' w:author='Ada'>{paragraph('Check!')}</w:comment></w:comments>"
    )
    body = (
        f"<w:p>{run('Revenue')}<w:r><w:footnoteReference w:id='2'/></w:r>{run(' rose.')}"
        "<w:r><w:commentReference w:id='7'/></w:r></w:p>" + paragraph("Next")
    )
    document = parse(
        write_docx(
            tmp_path,
            body,
            parts={"footnotes.xml": footnotes, "comments.xml": comments},
            links=(("f", "footnotes", "footnotes.xml"), ("c", "comments", "comments.xml")),
        )
    )
    assert texts(document) == ["Revenue rose.", "Audited figures.", "Check!", "Next"]
    assert [block.type for block in document.blocks[1:3]] == [BlockType.FOOTNOTE, BlockType.ANNOTATION]
    assert document.blocks[2].metadata == {"author": "Ada"}


def test_headers_and_footers_come_once_and_page_numbers_not_at_all(tmp_path: Path) -> None:
    section = (
        '<w:sectPr><w:headerReference w:type="default" r:id="h"/><w:headerReference w:type="first" r:id="h2"/>'
        '<w:footerReference w:type="default" r:id="f"/></w:sectPr>'
    )
    header = f"<w:hdr {NAMESPACES}>{paragraph('Confidential')}</w:hdr>"
    footer = f"<w:ftr {NAMESPACES}>{paragraph('- 1 -')}</w:ftr>"
    document = parse(
        write_docx(
            tmp_path,
            paragraph("Body") + section,
            parts={"header1.xml": header, "header2.xml": header, "footer1.xml": footer},
            links=(("h", "header", "header1.xml"), ("h2", "header", "header2.xml"), ("f", "footer", "footer1.xml")),
        )
    )
    assert [(block.type, document.block_text(block)) for block in document.blocks] == [
        (BlockType.PAGE_HEADER, "Confidential"),
        (BlockType.PARAGRAPH, "Body"),
    ]


def test_a_picture_is_kept_once_with_its_alternative_text(tmp_path: Path) -> None:
    picture = BytesIO()
    Image.new("RGB", (3, 2)).save(picture, "PNG")
    picture_xml = '<wp:docPr id="1" name="P" descr="A red bridge"/><a:blip r:embed="p"/>'
    drawing = f"<w:p><w:r><w:drawing>{picture_xml}</w:drawing></w:r></w:p>"
    document = parse(
        write_docx(
            tmp_path,
            drawing * 2,
            parts={"media/p.png": picture.getvalue()},
            links=(("p", "image", "media/p.png"), ("gone", "image", "NULL")),
        )
    )
    (image,) = document.images
    assert (image.media_type, image.width, image.height, image.description) == ("image/png", 3, 2, "A red bridge")
    assert texts(document, BlockType.IMAGE) == ["A red bridge"]


def test_chart_data_becomes_a_table(tmp_path: Path) -> None:
    chart = (
        f"<c:chartSpace {NAMESPACES}><c:chart><c:title><a:p><a:r><a:t>Sales</a:t></a:r></a:p></c:title><c:ser>"
        '<c:tx><c:strRef><c:strCache><c:pt idx="0"><c:v>2024</c:v></c:pt></c:strCache></c:strRef></c:tx>'
        '<c:cat><c:strRef><c:strCache><c:pt idx="0"><c:v>North</c:v></c:pt></c:strCache></c:strRef></c:cat>'
        '<c:val><c:numRef><c:numCache><c:pt idx="0"><c:v>12.5</c:v></c:pt></c:numCache></c:numRef></c:val>'
        "</c:ser></c:chart></c:chartSpace>"
    )
    body = '<w:p><w:r><w:drawing><c:chart r:id="c"/></w:drawing></w:r></w:p>'
    document = parse(write_docx(tmp_path, body, parts={"charts/c.xml": chart}, links=(("c", "chart", "charts/c.xml"),)))
    assert texts(document, BlockType.CAPTION) == ["Sales"]
    assert document.blocks[-1].rows == (("", "2024"), ("North", "12.5"))


def test_a_document_without_text_has_no_content_and_says_so(tmp_path: Path) -> None:
    document = parse(write_docx(tmp_path, "<w:p/>"))
    assert not document.has_content
    assert document.warnings == ("the document holds no text",)


def test_strict_documents_are_read(tmp_path: Path) -> None:
    strict = "http://purl.oclc.org/ooxml/wordprocessingml/main"
    body = f'<w:document xmlns:w="{strict}"><w:body>{paragraph("Strict text")}</w:body></w:document>'
    request = write_docx(tmp_path, "", parts={"document.xml": body})
    assert texts(parse(request)) == ["Strict text"]


def test_list_levels_out_of_range_stay_in_range(tmp_path: Path) -> None:
    body = numbered("far", 2, 99_999_999_999) + numbered("negative", 2, -3)
    links = (("n", "numbering", "numbering.xml"),)
    document = parse(write_docx(tmp_path, body, parts={"numbering.xml": NUMBERING}, links=links))
    assert [block.level for block in document.blocks] == [9, 1]
