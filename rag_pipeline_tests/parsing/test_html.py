from pathlib import Path

import pytest

from rag_pipeline.core.parsed_document import BlockType
from rag_pipeline.parsing.html import strip_markup
from rag_pipeline_tests.parsing.documents import headings, only_block, outline, parse_bytes, texts


def page(body: str, head: str = "") -> str:
    return f"<!DOCTYPE html><html lang='de'><head><title>T &amp; t</title>{head}</head><body>{body}</body></html>"


def test_words_of_blocks_are_apart_and_of_inline_elements_together(tmp_path: Path) -> None:
    source = page("<div>one<p>two<b>thr</b>ee&nbsp;four</p>five</div><p>a<br>b</p>H<sub>2</sub>O")
    assert outline(parse_bytes(tmp_path, source, "a.html")) == [
        ("paragraph", "one"),
        ("paragraph", "twothree four"),
        ("paragraph", "five"),
        ("paragraph", "a\nb"),
        ("paragraph", "H2O"),
    ]


def test_neighbouring_links_are_apart(tmp_path: Path) -> None:
    source = page("<p><a href='/a'>Docs</a><a href='/b'>Blog</a></p>")
    assert parse_bytes(tmp_path, source, "a.html").text == "Docs Blog"


def test_what_no_reader_sees_is_left_out(tmp_path: Path) -> None:
    source = page(
        "<script>s1</script><style>s2</style><template>s3</template><noscript>s4</noscript><!-- s5 -->"
        "<p hidden>s6</p><div style='color:red; display : none'>s7</div><input type=hidden value=s8>"
        "<svg><text>s9</text></svg><span style='visibility:hidden'>s10</span>seen"
    )
    assert parse_bytes(tmp_path, source, "a.html").text == "seen"


def test_headings_make_the_path_and_lists_have_levels(tmp_path: Path) -> None:
    source = page(
        "<h1>A<br>B</h1><h3> C </h3><ul><li>x<ul><li>y</li></ul>tail</li></ul><ol start=3><li>c<li>d<li value=9>e</ol>"
    )
    document = parse_bytes(tmp_path, source, "a.html")
    assert headings(document) == ["A B", "C"]
    assert document.blocks[-1].heading_path == ("A B", "C")
    items = [(block.level, document.block_text(block)) for block in document.blocks[2:]]
    assert items == [(1, "- x"), (2, "- y"), (1, "tail"), (1, "3. c"), (1, "4. d"), (1, "9. e")]


def test_table_with_merged_cells_has_full_rows(tmp_path: Path) -> None:
    source = page(
        "<table><caption>Sales</caption><thead><tr><th rowspan=2>Name<th colspan=2>Year</tr><tr><th>Q1<th>Q2"
        "</tr></thead><tr><td>North<td>1<td>2|x<tr hidden><td>no<td>no<td>no</table>"
    )
    document = parse_bytes(tmp_path, source, "a.html")
    assert texts(document, BlockType.CAPTION) == ["Sales"]
    block = only_block(document, BlockType.TABLE)
    assert block.rows == (("Name", "Year", "Year"), ("Name", "Q1", "Q2"), ("North", "1", "2|x"))
    assert document.block_text(block).splitlines()[-1] == "| North | 1 | 2\\|x |"


def test_nested_tables_are_tables_of_their_own(tmp_path: Path) -> None:
    inner = "<table><tr><td>I<td>II<tr><td>III<td>IV</table>"
    document = parse_bytes(tmp_path, page(f"<table><tr><td>A<td>B<tr><td>{inner}<td>C</table>"), "a.html")
    rows = [block.rows for block in document.blocks]
    assert rows == [(("A", "B"), ("", "C")), (("I", "II"), ("III", "IV"))]
    assert document.text.count("III") == 1


def test_table_that_arranges_the_page_is_read_as_blocks(tmp_path: Path) -> None:
    body = "".join(f"<p>{'long text ' * 20}{number}</p>" for number in range(3))
    source = page(
        f"<table><tr><td><h2>Menu</h2></td><td>{body}</td></tr></table><table><tr><td>one cell</td></tr></table>"
    )
    document = parse_bytes(tmp_path, source, "a.html")
    assert headings(document) == ["Menu"]
    assert len(texts(document, BlockType.PARAGRAPH)) == 4
    assert texts(document, BlockType.TABLE) == []


def test_links_are_absolute_where_the_base_is_known(tmp_path: Path) -> None:
    body = "<p><a href='b?c=1'>x</a> <a href='/d'>y</a> <a href='#frag'>z</a> <a href='javascript:f()'>w</a></p>"
    known = parse_bytes(tmp_path, page(body, "<base href='https://x.org/a/'>"), "a.html")
    assert known.blocks[0].metadata["href"] == "https://x.org/a/b?c=1 https://x.org/d"
    canonical = parse_bytes(tmp_path, page(body, "<link rel=canonical href='https://y.org/q'>"), "a.html")
    assert canonical.blocks[0].metadata["href"] == "https://y.org/b?c=1 https://y.org/d"
    unknown = parse_bytes(tmp_path, page(body), "a.html")
    assert unknown.blocks[0].metadata["href"] == "b?c=1 /d"


def test_preformatted_code_keeps_its_lines_and_language(tmp_path: Path) -> None:
    source = page("<pre><code class='language-python'>def f():\n    return 1 &lt; 2\n</code></pre>")
    document = parse_bytes(tmp_path, source, "a.html")
    block = only_block(document, BlockType.CODE)
    assert document.block_text(block) == "def f():\n    return 1 < 2"
    assert block.metadata == {"language": "python"}


def test_menus_are_page_headers_and_no_headings(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, page("<nav><h2>Menu</h2><ul><li>Home</ul></nav><h1>Real</h1><p>t"), "a.html")
    assert outline(document) == [
        ("page_header", "Menu"),
        ("page_header", "Home"),
        ("heading", "Real"),
        ("paragraph", "t"),
    ]


def test_metadata_of_the_page(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, page("x", "<meta name=author content=' A  B '><meta name=x content=y>"), "a.html")
    assert document.metadata == {
        "encoding": "utf-8",
        "title": "T & t",
        "language": "de",
        "author": "A B",
        "ladder_step": "text",
    }


@pytest.mark.parametrize(
    ("declaration", "charset"),
    [
        ("<meta charset=gb2312>", "gb18030"),
        ("<meta http-equiv='Content-Type' content='text/html; charset=Shift_JIS'>", "cp932"),
        ("", "cp932"),
        ("<meta charset=utf-8>", "utf-16"),
    ],
    ids=["gb2312", "content-type", "undeclared", "wrong-with-mark"],
)
def test_charset_of_the_page(tmp_path: Path, declaration: str, charset: str) -> None:
    text = "高橋さんは東京の図書館で働いています" if charset == "cp932" else "你好，世界"
    document = parse_bytes(tmp_path, f"<html><head>{declaration}</head><p>{text}</p>".encode(charset), "a.html")
    assert document.text == text


@pytest.mark.parametrize(
    "body",
    [
        "<div>" * 30_000 + "deep" + "</div>" * 30_000 + "END",
        "<table><tr><td>a<td>" * 3_000 + "END",
        "<b>" * 9_000 + "END",
    ],
    ids=["containers", "tables", "inline"],
)
def test_deep_nesting_loses_no_text(tmp_path: Path, body: str) -> None:
    document = parse_bytes(tmp_path, page(body), "a.html")
    assert "END" in document.text
    assert "nested too deeply" in document.warnings[0]


def test_huge_spans_are_bounded(tmp_path: Path) -> None:
    source = page("<table><tr><td rowspan=99999 colspan=99999>x<td>y<tr><td>END<td>z</table>")
    document = parse_bytes(tmp_path, source, "a.html")
    assert "END" in document.text
    assert len(document.text) < 20_000


@pytest.mark.parametrize("source", ["<!-- only -->", "<html><head><title>t</title></head><body> </body></html>"])
def test_page_without_visible_text_has_no_content(tmp_path: Path, source: str) -> None:
    document = parse_bytes(tmp_path, source, "a.html")
    assert not document.has_content
    assert "no visible text" in document.warnings[0]


def test_text_without_tags_is_a_paragraph(tmp_path: Path) -> None:
    assert outline(parse_bytes(tmp_path, "just text & more <3", "a.html")) == [("paragraph", "just text & more <3")]


def test_xml_declaration_of_xhtml_is_no_obstacle(tmp_path: Path) -> None:
    source = '<?xml version="1.0" encoding="UTF-8"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><body><p>ok</p></body></html>'
    assert parse_bytes(tmp_path, source, "a.xhtml").text == "ok"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a<b>b</b><!-- c --><SCRIPT x=1>d<e></SCRIPT >f &lt;", "abf &lt;"),
        ("a<!-- never closed", "a"),
        ("a<style>never closed", "a"),
        ("1 < 2 <3", "1 < 2 <3"),
    ],
)
def test_markup_is_stripped(source: str, text: str) -> None:
    assert strip_markup(source) == text
