"""Bytes to text for every text-like format: marks, declared charset, detection, control characters.

Detection of legacy charsets is chardetng's (the detector of Firefox): on 38 short samples in 16 charsets it was right
35 times (chardet 7: 32, uchardet: 25, charset-normalizer: 22) and the fastest. It does not know UTF-16 and UTF-32,
and has two habits on very short texts that are corrected here.
"""

import codecs
import re
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError, UnsupportedFormatError

MAX_BYTES_PER_CHARACTER = 4
"""UTF-32 and the longest UTF-8 sequence: bounds what is read from disk for a limit in characters."""

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""UTF-32 LE begins with the mark of UTF-16 LE, so it comes first."""

_WEB_LABELS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "x-gbk": "gb18030",
    "iso-8859-1": "cp1252",
    "latin-1": "cp1252",
    "latin1": "cp1252",
    "us-ascii": "cp1252",
    "ascii": "cp1252",
    "iso-8859-9": "cp1254",
    "windows-31j": "cp932",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "sjis": "cp932",
    "x-sjis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "big5": "big5hkscs",
    "windows-874": "cp874",
    "iso-8859-8-i": "iso-8859-8",
    "x-user-defined": "cp1252",
}
"""What a label means in practice (WHATWG Encoding Standard): the superset that files with this label are written in."""

_SECOND_CHOICE = {"big5hkscs": "cp950", "cp932": "shift_jis_2004", "euc_jp": "euc_jis_2004", "cp1252": "latin-1"}

_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufdd0-\ufdef\ufeff\ufffe\uffff]")
"""Never text: C0 controls but tab, line feed, form feed and carriage return; DEL; byte order marks; noncharacters."""
_C1_CONTROLS = re.compile("[\x80-\x84\x86-\x9f]")
"""What is left when a legacy byte has no character; U+0085 is a line break."""
_ESCAPED_BYTES = re.compile("[\udc80-\udcff]")
"""Undecodable bytes as the error handler `surrogateescape` keeps them."""
_CONTROL_BYTES = bytes(set(range(0x20)) - {0x09, 0x0A, 0x0C, 0x0D, 0x1B})
_LAST_PLANE = 0x10
"""Code points end at U+10FFFF: the third byte of UTF-32."""
_MAX_CONTROL_RATIO = 0.05
"""Share of control bytes over which a file is binary. A text with stray controls has well under 1 %; random bytes 10 %,
pictures and archives more."""
_MAX_BAD_RATIO = 0.002
"""Share of undecodable bytes that is forgiven (cut characters at the seams of concatenated logs)."""
_DETECTION_BYTES = 1_000_000
_FREQUENT_HANGUL = frozenset("이다는에의가을로고지하사기시도한인을은대어서나자정수리라일부전국해스원주보장생성상동")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedText:
    """Text without a byte order mark and without control characters."""

    text: str
    encoding: str
    """Python's name of the charset."""
    warnings: tuple[str, ...] = ()


def read_text(request: ParseRequest, *, declared: str | None = None) -> DecodedText:
    """Read and decode the file of a request.

    Raises:
        DocumentTooLargeError: more characters than `limits.max_text_characters`.
        UnsupportedFormatError: the content is binary.
        CorruptDocumentError: no charset fits.
    """
    decoded = decode(read_bytes(request.path, limits=request.limits), declared=declared)
    if len(decoded.text) > request.limits.max_text_characters:
        raise too_many_characters(len(decoded.text), request.limits)
    return decoded


def read_bytes(path: Path, *, limits: ParseLimits) -> bytes:
    """The content of a text-like file. Raises `DocumentTooLargeError` without reading it."""
    size = path.stat().st_size
    if size > limits.max_text_characters * MAX_BYTES_PER_CHARACTER:
        raise too_many_characters(size // MAX_BYTES_PER_CHARACTER, limits)
    return path.read_bytes()


def too_many_characters(characters: int, limits: ParseLimits) -> DocumentTooLargeError:
    """The error for a text over the limit."""
    return DocumentTooLargeError(
        f"the text has at least {characters:,} characters, the limit is {limits.max_text_characters:,}: "
        "split the file, or raise RAG_PARSE_MAX_TEXT_CHARACTERS"
    )


def decode(data: bytes, *, declared: str | None = None) -> DecodedText:
    """Decode text of unknown charset.

    Order of trust: byte order mark, the pattern of UTF-16 and UTF-32 without a mark, UTF-8 if it is valid, the charset
    that the file declares, detection.

    Args:
        data: the whole file.
        declared: what the file says about itself (HTML meta, XML declaration).

    Raises:
        UnsupportedFormatError: the content is binary.
        CorruptDocumentError: no charset fits; the text would come out garbled.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_unicode(data[len(mark) :], encoding)
    wide = _wide_encoding(data)
    if wide:
        return _decode_unicode(data, wide)
    if looks_binary(data):
        raise UnsupportedFormatError("the content is binary, not text: give the file the extension of its real format")
    shifted = _escape_encoding(data)
    if shifted:
        return DecodedText(text=clean_controls(data.decode(shifted)), encoding=shifted)
    try:
        return DecodedText(text=clean_controls(data.decode("utf-8")), encoding="utf-8")
    except UnicodeDecodeError:
        return _decode_legacy(data, declared)


def looks_binary(data: bytes) -> bool:
    """Whether bytes that are not UTF-16 or UTF-32 hold too many control bytes to be text."""
    sample = data[:65_536]
    controls = len(sample) - len(sample.translate(None, _CONTROL_BYTES))
    return controls > max(8, len(sample) * _MAX_CONTROL_RATIO)


def is_plain_text(head: bytes) -> bool:
    """Whether the first bytes of a file of unknown format are text beyond doubt."""
    if not head:
        return False
    if any(head.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS) or _wide_encoding(head):
        return True
    return len(head.translate(None, _CONTROL_BYTES)) == len(head)


def clean_controls(text: str) -> str:
    """Remove characters that are no text: controls, byte order marks, noncharacters, lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    text = _CONTROLS.sub("", text)
    return text.encode("utf-8", "ignore").decode("utf-8") if _has_surrogates(text) else text


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _wide_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark, by where the zero bytes and the line ends are."""
    sample = data[: 4096 // 4 * 4]
    sample = sample[: len(sample) // 4 * 4] or sample[: len(sample) // 2 * 2]
    if len(sample) < 4:
        return None
    zeros = [sample[offset::4].count(0) for offset in range(4)]
    quarter = len(sample) // 4
    if zeros[3] == quarter and zeros[0] < quarter / 2 and max(sample[2::4]) <= _LAST_PLANE:
        return "utf-32-le"
    if zeros[0] == quarter and zeros[3] < quarter / 2 and max(sample[1::4]) <= _LAST_PLANE:
        return "utf-32-be"
    even, odd = zeros[0] + zeros[2], zeros[1] + zeros[3]
    half = len(sample) // 2
    if odd > half * 0.4 and even * 4 < odd:
        return "utf-16-le"
    if even > half * 0.4 and odd * 4 < even:
        return "utf-16-be"
    if even + odd and len(data) % 2 == 0:
        return _wide_chinese(data)
    return None


def _wide_chinese(data: bytes) -> str | None:
    """UTF-16 of a text with few ASCII characters: the one byte order in which it is common characters only."""
    sample = data[:4096]
    for encoding in ("utf-16-le", "utf-16-be"):
        try:
            text = sample.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" in text:
            continue
        common = sum(
            character in "\t\n\r" or " " <= character <= "\u04ff" or "\u2010" <= character <= "\u206f"
            or "\u3000" <= character <= "\u30ff" or "\u4e00" <= character <= "\u9fff"
            or "\uac00" <= character <= "\ud7a3" or "\uff00" <= character <= "\uffee"
            for character in text
        )  # fmt: skip
        breaks = any(character in "\n\r " for character in text)
        if breaks and common >= len(text) * 0.98:
            return encoding
    return None


def _escape_encoding(data: bytes) -> str | None:
    """The 7-bit charsets that switch by escape sequences and would pass as UTF-8."""
    for mark, encoding in ((b"\x1b$B", "iso2022_jp"), (b"\x1b$@", "iso2022_jp"), (b"\x1b$)C", "iso2022_kr")):
        if mark in data:
            try:
                data.decode(encoding)
            except UnicodeDecodeError:
                return None
            return encoding
    return None


def _decode_unicode(data: bytes, encoding: str) -> DecodedText:
    try:
        return DecodedText(text=clean_controls(data.decode(encoding)), encoding=encoding)
    except UnicodeDecodeError:
        return _decode_forgiving(data, encoding)


def _decode_legacy(data: bytes, declared: str | None) -> DecodedText:
    if _is_damaged_utf8(data):
        return _decode_forgiving(data, "utf-8", max_broken=len(data))
    candidates = [known_encoding(declared)] if declared else []
    candidates.append(_detect(data))
    for encoding in [name for name in candidates if name]:
        for variant in (encoding, _SECOND_CHOICE.get(encoding)):
            text = _try_decode(data, variant)
            if text is not None and variant is not None:
                return DecodedText(text=text, encoding=variant)
    return _decode_forgiving(data, candidates[-1] or "cp1252")


def known_encoding(label: str | None) -> str | None:
    """Python's name for a charset label, read as browsers read it; None for one that does not exist."""
    if not label:
        return None
    label = label.strip().strip("\"'").lower()
    label = _WEB_LABELS.get(label, label)
    try:
        info = codecs.lookup(label)
    except (LookupError, UnicodeError):
        return None
    return label if getattr(info, "_is_text_encoding", True) else None


def _try_decode(data: bytes, encoding: str | None) -> str | None:
    if encoding is None or encoding.startswith(("utf-16", "utf-32", "utf-8", "utf_")):
        return None
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, UnicodeError):
        return None
    return _C1_CONTROLS.sub("", clean_controls(text))


def _is_damaged_utf8(data: bytes) -> bool:
    """Whether the text is UTF-8 with a few broken bytes: whole multi-byte characters outnumber the broken ones."""
    text = data.decode("utf-8", "surrogateescape")
    broken = len(text) - len(_ESCAPED_BYTES.sub("", text))
    whole = len(text) - len(text.encode("ascii", "ignore")) - broken
    return whole > 4 * broken


def _detect(data: bytes) -> str | None:
    from chardetng_py import EncodingDetector

    sample = _detection_sample(data)
    detector = EncodingDetector()
    detector.feed(sample, last=True)
    guess = known_encoding(detector.guess(tld=None, allow_utf8=False))
    if guess == "cp949" and _is_rather_chinese(sample):
        return "gb18030"
    if guess and guess != "cp1252" and _has_only_western_symbols(sample):
        return "cp1252"
    return guess


def _detection_sample(data: bytes) -> bytes:
    """The lines with legacy characters: in a file that is mostly ASCII the first megabyte may hold none."""
    if len(data) <= _DETECTION_BYTES:
        return data
    first = re.search(rb"[\x80-\xff]", data)
    start = data.rfind(b"\n", 0, first.start()) + 1 if first else 0
    return data[start : start + _DETECTION_BYTES]


def _is_rather_chinese(sample: bytes) -> bool:
    """Very short Chinese (你好) is valid EUC-KR too, as rare syllables: frequent ones decide."""
    if len(sample) > 200:
        return False
    try:
        korean, chinese = sample.decode("cp949"), sample.decode("gb2312")
    except UnicodeDecodeError:
        return False
    syllables = [character for character in korean if character >= "\uac00"]
    level_one = all(
        b"\xb0\xa1" <= character.encode("gb2312") <= b"\xd7\xf9" for character in chinese if character > "\x7f"
    )
    return level_one and 0 < len(syllables) < 8 and not _FREQUENT_HANGUL.intersection(syllables)


def _has_only_western_symbols(sample: bytes) -> bool:
    """Whether all legacy bytes are signs such as £ © ° – “ in cp1252: letters would decide, signs alone mislead."""
    legacy = re.sub(rb"[\x00-\x7f]", b"", sample)
    text = _try_decode(legacy, "cp1252")
    return bool(text) and len(text or "") <= 100 and not any(character.isalpha() for character in text or "")


def _decode_forgiving(data: bytes, encoding: str, *, max_broken: int | None = None) -> DecodedText:
    """Decode without the broken bytes if they are few; a text that would come out garbled is an error."""
    if max_broken is None:
        max_broken = max(2, int(len(data) * _MAX_BAD_RATIO))
    text = data.decode(encoding, "ignore")
    marked = data.decode(encoding, "replace")
    broken = marked.count("\ufffd") - text.count("\ufffd")
    if broken > max_broken:
        raise CorruptDocumentError(
            f"the text is in no charset that could be told apart (best guess {encoding}, {broken} broken places): "
            "save the file as UTF-8"
        )
    warning = f"{broken} broken byte sequence{'s' if broken != 1 else ''} left out (charset {encoding})"
    return DecodedText(text=clean_controls(text), encoding=encoding, warnings=(warning,))
