"""Heading levels, list levels and list numbers of Word paragraphs, from styles.xml and numbering.xml."""

import re
from dataclasses import dataclass

from lxml import etree

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MAX_HEADING_LEVEL = 6
MAX_LIST_LEVELS = 9
MAX_STYLE_DEPTH = 20
"""`basedOn` chains are short; a longer one is a loop."""

# Word writes English names for its own styles in every language; WPS, LibreOffice and converters write local ones.
HEADING_NAME = re.compile(
    r"(?:heading|标题|標題|見出し|제목|überschrift|titre|título|titulo|titolo|заголовок|rubrik|nadpis|kop|overskrift"
    r"|otsikko|nagłówek|başlık|címsor|naslov|titlu|επικεφαλίδα|عنوان|כותרת)\s*([1-9])",
    re.IGNORECASE,
)
TITLE_NAMES = {"title", "标题", "標題", "表題", "제목", "titel", "titre", "título", "titolo", "название", "заглавие"}
CONTENTS_NAME = re.compile(r"(?:toc|目录|目錄|目次|table of figures)\b\s*\d*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParagraphStyle:
    """What a style says about paragraphs that use it, inherited values included."""

    heading_level: int | None = None
    numbering_id: str | None = None
    numbering_level: int | None = None
    is_contents: bool = False
    """Whether it is a line of a table of contents."""
    is_caption: bool = False
    is_code: bool = False


PLAIN = ParagraphStyle()


class Styles:
    """Paragraph styles by id."""

    def __init__(self, root: etree._Element | None) -> None:
        self._elements: dict[str, etree._Element] = {}
        self._known: dict[str, ParagraphStyle] = {}
        self._default = ""
        for style in root.iterfind(f"{W}style") if root is not None else ():
            identifier = style.get(f"{W}styleId", "")
            self._elements[identifier] = style
            if style.get(f"{W}type") == "paragraph" and is_on(style.get(f"{W}default"), missing=False):
                self._default = identifier

    def of(self, paragraph: etree._Element) -> ParagraphStyle:
        """The style of a paragraph with its direct formatting on top."""
        properties = paragraph.find(f"{W}pPr")
        if properties is None:
            return self._by_id(self._default)
        named = properties.find(f"{W}pStyle")
        style = self._by_id(named.get(f"{W}val", "") if named is not None else self._default)
        level = _outline_level(properties)
        numbering = properties.find(f"{W}numPr")
        return ParagraphStyle(
            heading_level=style.heading_level if level is None else (level or None),
            numbering_id=_value(numbering, "numId") or style.numbering_id,
            numbering_level=to_int(_value(numbering, "ilvl"), style.numbering_level or 0),
            is_contents=style.is_contents,
            is_caption=style.is_caption,
            is_code=style.is_code,
        )

    def _by_id(self, identifier: str) -> ParagraphStyle:
        if identifier not in self._known:
            self._known[identifier] = self._resolve(identifier)
        return self._known[identifier]

    def _resolve(self, identifier: str) -> ParagraphStyle:
        level: int | None = None
        numbering_id = numbering_level = None
        names: list[str] = []
        for _ in range(MAX_STYLE_DEPTH):
            style = self._elements.get(identifier)
            if style is None:
                # LibreOffice and python-docx documents without a styles part: the id is the name without blanks.
                names.append(identifier)
                break
            names.append(_value(style, "name") or identifier)
            properties = style.find(f"{W}pPr")
            if level is None:
                level = _outline_level(properties)
            numbering = properties.find(f"{W}numPr") if properties is not None else None
            numbering_id = numbering_id or _value(numbering, "numId")
            numbering_level = numbering_level or _value(numbering, "ilvl")
            identifier = _value(style, "basedOn") or ""
            if not identifier:
                break
        own = names[0].strip().lower()
        is_contents = CONTENTS_NAME.match(own) is not None
        if level is None and not is_contents:
            level = next((found for name in names if (found := _level_by_name(name)) is not None), None)
        return ParagraphStyle(
            heading_level=None if is_contents else (level or None),
            numbering_id=numbering_id,
            numbering_level=to_int(numbering_level, 0),
            is_contents=is_contents,
            is_caption=own in {"caption", "题注", "beschriftung", "légende"},
            is_code="code" in own or own in {"html preformatted", "plain text", "preformatted text"},
        )


class Numbering:
    """Counters of numbered lists; asked once per paragraph in document order."""

    def __init__(self, root: etree._Element | None) -> None:
        self._levels: dict[str, dict[int, etree._Element]] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._lists: dict[str, str] = {}
        self._counters: dict[str, dict[int, int]] = {}
        if root is not None:
            self._read(root)

    def is_list(self, numbering_id: str | None) -> bool:
        """Whether the id names a list; 0 switches the numbering of a style off."""
        return numbering_id is not None and numbering_id != "0" and (numbering_id in self._lists or not self._lists)

    def label(self, numbering_id: str, level: int) -> str:
        """The next number of the list as shown, for example `2.1` or `(a)`; "" for bullets and unknown lists."""
        shared = self._lists.get(numbering_id, numbering_id)
        levels = self._levels.get(numbering_id, {})
        definition = levels.get(level)
        if definition is None:
            return ""
        counters = self._counters.setdefault(shared, {})
        counters[level] = counters.get(level, self._start(numbering_id, level) - 1) + 1
        for deeper in [key for key in counters if key > level]:
            del counters[deeper]
        if (_value(definition, "numFmt") or "decimal") in {"bullet", "none"}:
            return ""

        def number(match: re.Match[str]) -> str:
            wanted = int(match[1]) - 1
            form = _value(levels.get(wanted), "numFmt") or "decimal"
            if definition.find(f"{W}isLgl") is not None:
                form = "decimal"
            return format_number(counters.get(wanted, self._start(numbering_id, wanted)), form)

        return re.sub(r"%([1-9])", number, _value(definition, "lvlText") or "").strip()

    def _start(self, numbering_id: str, level: int) -> int:
        override = self._starts.get((numbering_id, level))
        return override if override is not None else to_int(_value(self._levels[numbering_id].get(level), "start"), 1)

    def _read(self, root: etree._Element) -> None:
        abstract = {element.get(f"{W}abstractNumId", ""): element for element in root.iterfind(f"{W}abstractNum")}
        by_style = {_value(element, "styleLink"): element for element in abstract.values()}
        abstract = {
            key: by_style.get(_value(element, "numStyleLink") or "", element) for key, element in abstract.items()
        }
        for element in root.iterfind(f"{W}num"):
            identifier = element.get(f"{W}numId", "")
            base = _value(element, "abstractNumId") or ""
            levels = {_level_of(level): level for level in _levels(abstract.get(base))}
            shared = base
            for override in element.iterfind(f"{W}lvlOverride"):
                for level in _levels(override):
                    levels[_level_of(level)] = level
                start = _value(override, "startOverride")
                if start is not None:
                    shared = f"{base}/{identifier}"
                    self._starts[identifier, _level_of(override)] = to_int(start, 1)
            self._levels[identifier] = levels
            self._lists[identifier] = shared


def is_on(value: str | None, *, missing: bool = True) -> bool:
    """The value of an on/off attribute; `missing` where it is absent."""
    return missing if value is None else value not in {"0", "false", "off"}


def format_number(number: int, form: str) -> str:
    """A list number in one of Word's number formats; unknown formats come out decimal."""
    match form:
        case "lowerLetter" | "upperLetter":
            letter = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1) if number > 0 else ""
            return letter if form == "lowerLetter" else letter.upper()
        case "lowerRoman" | "upperRoman":
            return _roman(number) if form == "upperRoman" else _roman(number).lower()
        case "decimalZero":
            return f"{number:02d}"
        case "chineseCounting" | "chineseCountingThousand" | "japaneseCounting" | "taiwaneseCountingThousand":
            return _chinese(number)
        case "ideographTraditional":
            return "甲乙丙丁戊己庚辛壬癸"[(number - 1) % 10]
        case _:
            return str(number)


def _roman(number: int) -> str:
    pairs = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"))
    text = ""
    for value, letters in (*pairs, (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while number >= value and len(text) < 30:
            text += letters
            number -= value
    return text


def _chinese(number: int) -> str:
    digits = "〇一二三四五六七八九"
    if not 0 < number < 100:
        return str(number)
    tens, ones = divmod(number, 10)
    head = ("" if tens == 1 else digits[tens]) + "十" if tens else ""
    return head + (digits[ones] if ones else "")


def _level_by_name(name: str) -> int | None:
    name = name.strip().lower()
    match = HEADING_NAME.fullmatch(name)
    if match:
        return min(int(match[1]), MAX_HEADING_LEVEL)
    return 1 if name in TITLE_NAMES else None


def _outline_level(properties: etree._Element | None) -> int | None:
    """1 to 6; 0 for "body text"; None when nothing is said."""
    value = _value(properties, "outlineLvl")
    if value is None:
        return None
    level = to_int(value, 9)
    return min(level + 1, MAX_HEADING_LEVEL) if 0 <= level < 9 else 0


def _levels(parent: etree._Element | None) -> list[etree._Element]:
    return parent.findall(f"{W}lvl") if parent is not None else []


def _level_of(element: etree._Element) -> int:
    return to_int(element.get(f"{W}ilvl"), 0)


def _value(parent: etree._Element | None, child: str) -> str | None:
    element = parent.find(f"{W}{child}") if parent is not None else None
    return element.get(f"{W}val") if element is not None else None


def list_depth(level: int | None) -> int:
    """Depth of a list item from 1, from a level that counts from 0; all formats here have nine levels."""
    return min(max(level or 0, 0), MAX_LIST_LEVELS - 1) + 1


def to_int(text: str | None, default: int) -> int:
    """A number from an attribute, `default` when it is missing or malformed."""
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default
