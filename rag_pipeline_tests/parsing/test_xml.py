from pathlib import Path

import pytest

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline_tests.parsing.documents import headings, only_block, outline, parse_bytes, texts

COUNTRIES = """<?xml version="1.0" encoding="UTF-8"?>
<factbook>
  <country code="us"><name>United States</name><sport>Baseball</sport></country>
  <country><name>Trinidad &amp; Tobago</name><area unit="km2">5131</area>
    <capital><name>Port of Spain</name></capital></country>
</factbook>"""


def test_elements_without_prose_are_records_under_their_path(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, COUNTRIES, "a.xml")
    assert outline(document) == [
        ("record", "factbook > country\ncode: us\nname: United States\nsport: Baseball"),
        ("record", "factbook > country\nname: Trinidad & Tobago\narea: 5131 (unit: km2)\ncapital.name: Port of Spain"),
    ]
    assert [block.metadata["xml_path"] for block in document.blocks] == ["/factbook/country[1]", "/factbook/country[2]"]


def test_titled_sections_are_headings_and_prose_keeps_its_sentences(tmp_path: Path) -> None:
    source = (
        "<article><title>Mice</title><sec><title>Methods</title><p>We <i>used</i> H<sub>2</sub>O.</p>"
        "<sec><title>Deep</title><p>Inner text.</p></sec></sec><sec><title>Results</title><p>None.</p></sec></article>"
    )
    document = parse_bytes(tmp_path, source, "a.xml")
    assert headings(document) == ["Mice", "Methods", "Deep", "Results"]
    assert texts(document, BlockType.PARAGRAPH) == ["We used H2O.", "Inner text.", "None."]
    assert document.blocks[4].heading_path == ("Mice", "Methods", "Deep")
    assert document.blocks[-1].heading_path == ("Mice", "Results")


def test_tables_are_rows(tmp_path: Path) -> None:
    source = (
        "<doc><p>x</p><table><tr><th rowspan='2'>N</th><th>A</th></tr><tr><td>1</td></tr></table>"
        "<tgroup><row><entry>c</entry><entry>d</entry></row></tgroup></doc>"
    )
    document = parse_bytes(tmp_path, source, "a.xml")
    assert [block.rows for block in document.blocks if block.type is BlockType.TABLE] == [
        (("N", "A"), ("N", "1")),
        (("c", "d"),),
    ]


def test_namespaces_comments_and_character_data(tmp_path: Path) -> None:
    source = '<a:r xmlns:a="urn:x"><!-- no --><a:v a:k="1"><![CDATA[5 < 6]]></a:v><a:w/></a:r>'
    assert parse_bytes(tmp_path, source, "a.xml").text == "r\nv: 5 < 6 (k: 1)"


def test_large_element_is_divided_and_loses_nothing(tmp_path: Path) -> None:
    source = "<r>" + "".join(f"<k{n}>value {n} {'x' * 90}</k{n}>" for n in range(60)) + "</r>"
    document = parse_bytes(tmp_path, source, "a.xml")
    assert all(f"k{n}: value {n} " in document.text for n in range(60))


@pytest.mark.parametrize(
    ("declared", "charset"),
    [("GB2312", "gb2312"), ("UTF-8", "utf-16"), ("Shift_JIS", "shift_jis"), ("utf-8", "utf-8-sig")],
)
def test_charset_of_the_declaration_or_the_mark(tmp_path: Path, declared: str, charset: str) -> None:
    content = f'<?xml version="1.0" encoding="{declared}"?><n><t>春日 公告</t></n>'.encode(charset)
    assert only_block(parse_bytes(tmp_path, content, "a.xml"), BlockType.RECORD).metadata == {"xml_path": "/n"}
    assert "春日 公告" in parse_bytes(tmp_path, content, "a.xml").text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("<root><a>ok</a><b>not closed</root>", "line 1, column 31"),
        ("words", "line 1"),
        (
            '<!DOCTYPE l [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><l>&b;</l>',
            "declares entities",
        ),
        ('<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><r>&x;</r>', "declares entities"),
        ('<!DOCTYPE r [<!ENTITY % x SYSTEM "http://127.0.0.1:9/x"> %x;]><r/>', "declares entities"),
    ],
    ids=["not-closed", "no-element", "expansion", "local-file", "parameter-entity"],
)
def test_bad_xml_is_corrupt(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(CorruptDocumentError, match=message):
        parse_bytes(tmp_path, source, "a.xml")


def test_document_type_without_entities_is_allowed(tmp_path: Path) -> None:
    source = '<!DOCTYPE patent SYSTEM "patent.dtd" []><patent><no>5</no></patent>'
    assert parse_bytes(tmp_path, source, "a.xml").text == "patent\nno: 5"


def test_deep_nesting_is_harmless(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "<a>" * 20_000 + "core" + "</a>" * 20_000, "a.xml")
    assert "core" in document.text


def test_xml_without_text_has_no_content(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "<a><b/></a>", "a.xml")
    assert not document.has_content
    assert document.warnings
