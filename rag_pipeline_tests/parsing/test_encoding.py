import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.errors import CorruptDocumentError, UnsupportedFormatError
from rag_pipeline.parsing.encoding import clean_controls, decode, is_plain_text, known_encoding

GERMAN = "Größe – 5 €"
CHINESE = "我们的产品在全国各地都有销售，请联系当地的经销商了解详细情况。\n"
TAIWANESE = "我們的產品在全國各地都有銷售，請聯絡當地的經銷商了解詳細情況。\n"
JAPANESE = "私たちの製品は全国で販売されています。詳細はお近くの販売店にお問い合わせください。\n"
KOREAN = "우리 제품은 전국 각지에서 판매되고 있습니다. 자세한 내용은 가까운 대리점에 문의하십시오.\n"
RUSSIAN = "Привет, как дела? Это обычный русский текст.\n"


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        (GERMAN, "cp1252"),
        ("können", "cp1252"),
        ("Le café est très bon à l'été.", "cp1252"),
        ("He said “hello” – it’s fine.", "cp1252"),
        ("Price: £5, ©2020 5°C", "cp1252"),
        ("Zażółć gęślą jaźń. Proszę bardzo.", "cp1250"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        ("Καλημέρα κόσμε, αυτό είναι ένα κείμενο.", "cp1253"),
        ("Günaydın, nasılsınız? İyi şanslar", "cp1254"),
        (CHINESE, "gb18030"),
        ("姓名,城市\n张伟,上海\n", "gbk"),
        ("张伟,上海\n", "gbk"),
        ("你好", "gbk"),
        ("生僻字㐀与𠮷，镕基。\n", "gb18030"),
        (TAIWANESE, "big5"),
        ("姓名,城市\n陳大文,臺北\n", "big5"),
        (JAPANESE, "cp932"),
        ("名前,年齢\n髙橋淳,35\n", "cp932"),
        ("東京都,大阪府\n", "euc_jp"),
        (JAPANESE, "euc_jp"),
        (JAPANESE, "iso2022_jp"),
        (KOREAN, "cp949"),
        ("이름,도시\n김철수,서울\n", "euc_kr"),
    ],
)
def test_legacy_charset_is_detected(text: str, charset: str) -> None:
    assert decode(text.encode(charset)).text == text


@pytest.mark.parametrize("text", ["a", GERMAN, CHINESE, "hi 😀 there"])
@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_mark_decides_and_is_removed(text: str, charset: str) -> None:
    assert decode(text.encode(charset)).text == text


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text", ["DateTime,Bid\n1,2\n", CHINESE + CHINESE, "检查 ok\n", "カタカナ テスト\n", "이름,도시\n", "hi 😀 there"]
)
def test_wide_unicode_without_a_mark_is_detected(text: str, charset: str) -> None:
    assert decode(text.encode(charset)).text == text


def test_declared_charset_wins_over_detection() -> None:
    assert decode("naïve".encode("iso-8859-7", "ignore") + b"\xe1", declared="iso-8859-7").text.endswith("α")


def test_wrong_declaration_is_overruled_by_valid_utf8() -> None:
    assert decode(CHINESE.encode(), declared="iso-8859-1").text == CHINESE


def test_unknown_declaration_is_ignored() -> None:
    assert decode(CHINESE.encode("gbk"), declared="no-such-charset").text == CHINESE


def test_utf8_with_a_few_broken_bytes_keeps_the_rest_and_warns() -> None:
    data = "日志 line 1\n".encode() * 50 + b"\xff\xfe\x80 broken\n" + "更多\n".encode()
    decoded = decode(data)
    assert decoded.encoding == "utf-8"
    assert "\ufffd" not in decoded.text
    assert decoded.text.endswith(" broken\n更多\n")
    assert "left out" in decoded.warnings[0]


def test_text_cut_inside_a_character_keeps_the_rest() -> None:
    decoded = decode(CHINESE.encode()[:-2])
    assert decoded.text == CHINESE[:-2]
    assert decoded.warnings


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 4, b"\0" * 1000, b"\x01\x02\x03\x04" * 100], ids=["all-bytes", "zeros", "controls"]
)
def test_binary_content_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedFormatError, match="binary"):
        decode(data)


def test_text_in_no_charset_is_corrupt_and_never_garbled() -> None:
    with pytest.raises(CorruptDocumentError, match="UTF-8"):
        decode(b"\xff\xfe" + b"\x00\xd8" * 50)


def test_controls_are_removed_and_text_after_them_is_kept() -> None:
    decoded = decode(b"before\x00nul\x07 bell\x1b[31m\ttab\r\nafter\x0cpage")
    assert decoded.text == "beforenul bell[31m\ttab\r\nafter\x0cpage"


def test_marks_inside_the_text_and_noncharacters_are_removed() -> None:
    assert clean_controls("a\ufeffb\ufffec\ud800d\uffff") == "abcd"


@given(st.text())
def test_utf8_comes_back_without_controls_only(text: str) -> None:
    clean = clean_controls(text)
    assert decode(b"\xef\xbb\xbf" + clean.encode()).text == clean


@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_a_clear_error(data: bytes) -> None:
    try:
        decoded = decode(data)
    except (UnsupportedFormatError, CorruptDocumentError):
        return
    assert clean_controls(decoded.text) == decoded.text


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("GB2312", "gb18030"),
        (' "iso-8859-1" ', "cp1252"),
        ("Shift_JIS", "cp932"),
        ("rot13", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_charset_labels_mean_what_browsers_take_them_for(label: str, name: str | None) -> None:
    assert known_encoding(label) == name


@pytest.mark.parametrize(
    ("head", "expected"),
    [(b"plain text\n", True), (CHINESE.encode("gbk"), True), (b"\x7fELF\x02\x01\x01\x00", False), (b"", False)],
    ids=["ascii", "gbk", "elf", "empty"],
)
def test_plain_text_is_told_from_binary(head: bytes, *, expected: bool) -> None:
    assert is_plain_text(head) is expected
