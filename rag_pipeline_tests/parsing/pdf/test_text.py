"""Characters, words and lines: what the text of a page must look like whatever the file does to it."""

import io
import re

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

from rag_pipeline.core.parsed_document import PageState
from rag_pipeline.parsing.pdf.pages import UNSEEN
from rag_pipeline_tests.parsing.pdf.conftest import Parse
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, at, lines, pdf


def tounicode(codes: dict[int, str], *, digits: int = 2) -> str:
    """A stream object; `digits`: hexadecimal ones of a code."""
    entries = "\n".join(f"<{code:0{digits}X}> <{target}>" for code, target in codes.items())
    body = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /T def /CMapType 2 def "
        f"1 begincodespacerange <{'0' * digits}> <{'F' * digits}> endcodespacerange "
        f"{len(codes)} beginbfchar\n{entries}\nendbfchar "
        "endcmap CMapName currentdict /CMap defineresource pop end end"
    )
    return f"<</Length {len(body)}>>\nstream\n{body}\nendstream"


def ligature_pdf(fi: str, fl: str) -> bytes:
    codes = {0x80: fi, 0x81: fl} | {code: f"{code:04X}" for code in range(32, 127)}
    font = (
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 4 0 R"
        "/Encoding<</Type/Encoding/BaseEncoding/WinAnsiEncoding/Differences[128/fi 129/fl]>>>>"
    )
    text = "BT /L1 12 Tf 72 700 Td (The speci\\200cation veri\\200es the work\\201ow.) Tj 0 -20 Td (Plain tail.) Tj ET"
    return pdf(Page(content=text), fonts={"L1": font}, objects=[tounicode(codes)])


def test_ligature_characters_are_spelled_out(parse: Parse) -> None:
    document = parse(ligature_pdf("FB01", "FB02"))
    assert "The specification verifies the workflow." in document.text


def test_glyphs_without_a_character_show_a_mark_and_give_a_warning(parse: Parse) -> None:
    document = parse(ligature_pdf("0000", "0000"))
    assert "speci\ufffdcation veri\ufffdes the work\ufffdow." in document.text
    assert "Plain tail." in document.text
    assert any("3 glyphs without a character" in warning for warning in document.warnings)
    assert not re.search("[\x00-\x08\x0b\x0e-\x1f\ufffe\uffff]", document.text)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(["costs are permit-", "ted under rule nine"], "costs are permitted under rule nine", id="word"),
        pytest.param(["signs the Mini-", "Cons form of the"], "signs the Mini-Cons form of the", id="capital"),
        pytest.param(["a well-known carrier", "is well-", "known here"], "is well-known here", id="known compound"),
    ],
)
def test_words_broken_at_a_line_end_are_joined(parse: Parse, texts: list[str], expected: str) -> None:
    document = parse(pdf(Page(content=lines(72, 700, [*texts, "and a line that is the widest of this paragraph"]))))
    assert expected in " ".join(document.text.split())


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_lines_of_a_turned_page_keep_their_order(parse: Parse, rotation: int) -> None:
    drawn = [at(100, 300, "CHARLIE third line"), at(100, 340, "ALPHA first line"), at(100, 320, "BRAVO second line")]
    document = parse(pdf(Page(content="".join(drawn), extra=f"/Rotate {rotation}")))
    assert document.text.split() == ["ALPHA", "first", "line", "BRAVO", "second", "line", "CHARLIE", "third", "line"]
    [page] = document.pages
    assert page.width is not None
    assert page.height is not None
    assert (page.width, page.height) == ((612, 792) if rotation in {0, 180} else (792, 612))
    assert all(
        block.bbox is not None
        and 0 <= block.bbox.left < block.bbox.right <= page.width
        and 0 <= block.bbox.top < block.bbox.bottom <= page.height
        for block in document.blocks
    )


def test_text_turned_on_an_upright_page_is_read_line_by_line(parse: Parse) -> None:
    turned = "".join(f"BT /F1 12 Tf 0 1 -1 0 {300 + 16 * n} 100 Tm (turned line {n}) Tj ET\n" for n in (2, 0, 1))
    document = parse(pdf(Page(content=turned)))
    assert document.text.split() == ["turned", "line", "0", "turned", "line", "1", "turned", "line", "2"]


def vertical_pdf(columns: dict[float, str], *, more: str = "", has_shapes: bool = True) -> bytes:
    """Columns of vertical text by their place, and the font, which has a square for each character.

    Without shapes the characters have no width, as those have that are in no font.
    """
    characters = sorted(set("".join(columns.values())))
    builder = FontBuilder(1000, isTTF=True)
    names = [".notdef", *(f"square{number}" for number in range(len(characters)))]
    pen = TTGlyphPen(None)
    if has_shapes:
        pen.moveTo((100, 0))
        for point in [(900, 0), (900, 800), (100, 800)]:
            pen.lineTo(point)
        pen.closePath()
    square = pen.glyph()
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 100)))
    builder.setupHorizontalHeader(ascent=880, descent=-120)
    builder.setupPost()
    file = io.BytesIO()
    builder.save(file)
    stored = file.getvalue().hex()
    head = f"<</Length {len(stored)}/Length1 {len(stored) // 2}/Filter/ASCIIHexDecode>>"
    embedded = f"{head}\nstream\n{stored}\nendstream"
    codes = {number: f"{ord(character):04X}" for number, character in enumerate(characters, start=1)}
    font = (
        "<</Type/Font/Subtype/Type0/BaseFont/Squares/Encoding/Identity-V/ToUnicode 4 0 R/DescendantFonts["
        "<</Type/Font/Subtype/CIDFontType2/BaseFont/Squares/DW 1000/CIDToGIDMap/Identity"
        "/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>"
        "/FontDescriptor<</Type/FontDescriptor/FontName/Squares/Flags 4/FontBBox[0 -120 1000 880]/ItalicAngle 0"
        "/Ascent 880/Descent -120/CapHeight 700/StemV 80/FontFile2 5 0 R>>>>]>>"
    )
    drawn = more
    for x, text in columns.items():
        coded = "".join(f"{characters.index(character) + 1:04X}" for character in text)
        drawn += f"BT /V1 12 Tf {x} 700 Td <{coded}> Tj ET\n"
    return pdf(Page(content=drawn), fonts={"V1": font}, objects=[tounicode(codes, digits=4), embedded])


COLUMNS = {280.0: "呼吸しながら", 300.0: "宇宙塵をたべ"}


def test_columns_of_vertical_japanese_follow_from_right_to_left(parse: Parse) -> None:
    document = parse(vertical_pdf(COLUMNS))
    assert "".join(document.text.split()) == "宇宙塵をたべ呼吸しながら"
    assert document.warnings == ()


def test_vertical_text_without_any_font_is_no_empty_page(parse: Parse) -> None:
    nothing = parse(vertical_pdf(COLUMNS, has_shapes=False))
    assert nothing.pages[0].state is PageState.FAILED
    some = parse(vertical_pdf(COLUMNS, more=at(72, 750, "A horizontal line"), has_shapes=False))
    assert (some.text, some.pages[0].state) == ("A horizontal line", PageState.TEXT)
    for document in (nothing, some):
        assert any(UNSEEN in warning for warning in document.warnings)


def test_text_drawn_twice_at_one_place_is_read_once(parse: Parse) -> None:
    twice = at(72, 700, "Total due") + "3 Tr " + at(72.4, 700, "Total due")
    assert parse(pdf(Page(content=twice))).text == "Total due"


def test_the_invisible_text_layer_of_a_scan_is_read(parse: Parse) -> None:
    document = parse(pdf(Page(content="3 Tr " + at(72, 700, "hidden layer of a scan"))))
    assert document.text == "hidden layer of a scan"
    assert document.pages[0].state is PageState.TEXT


def test_ledger_counts_visible_characters(parse: Parse) -> None:
    [page] = parse(pdf(Page(content=at(72, 700, "ab cd")))).pages
    assert (page.number, page.state, page.characters, page.start, page.end) == (1, PageState.TEXT, 4, 0, 5)
