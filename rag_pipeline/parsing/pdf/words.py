"""Words with position and style from one page.

PDFium gives the characters of a page in one call; asking it for the position of each character costs more than the
text itself. So the text is split at blanks and only the first and the last character of each word are located; a word
whose ends do not fit together (glued lines on turned pages, vertical text) is located character by character.
"""

import collections
import ctypes
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pypdfium2.raw as pdfium_c

from rag_pipeline.parsing.pdf.characters import CONTROL, LINE_END_HYPHEN, REPLACEMENT, clean_word, is_unspaced
from rag_pipeline.parsing.pdf.geometry import Affine, Box, frame_transform
from rag_pipeline.parsing.pdf.native import (
    address_of,
    get_font,
    get_font_size,
    get_loose_box,
    get_matrix,
    get_render_mode,
    get_text_object,
)

_TOKEN = re.compile(r"[^\s\ufffe\x02]+[\ufffe\x02]?|[\ufffe\x02]")
_BLANK = np.fromiter((chr(code).isspace() for code in range(0x10000)), bool, 0x10000)
"""Which of the characters U+0000 to U+FFFF are white space."""
_HYPHEN_STAND_INS = "\ufffe\x02"
_HYPHEN_CODE = 2
_BOLD_NAME = re.compile("bold|black|heavy|semibd|demi|-bd|,bd", re.IGNORECASE)
_ITALIC_NAME = re.compile("italic|oblique", re.IGNORECASE)
FIELD_FONT = "\0field"
"""Font name of words that are the value of a form field."""
_INVISIBLE = 3
_LEVEL = 4.0
"""Height of the levels in which repeated words are looked for, points."""
_SAME_PLACE = 0.3
"""Words of the same text nearer than this, in font sizes, are one word drawn twice."""
_BOLD_WEIGHT = 600


class Style(NamedTuple):
    """How a run of text is set."""

    size: float
    """Points, as shown."""
    bold: bool
    italic: bool
    font: str
    direction: int
    """In display coordinates: 0, 90, 180 or 270 as in `frame_transform`; -1 for slanted text (watermarks)."""
    invisible: bool
    """Drawn with text render mode 3: the text layer under or over a scan."""


class Word(NamedTuple):
    """Characters between blanks, in the frame of its direction."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    style: Style
    start: int
    """Index of the first character in PDFium's order, which follows the content stream."""
    end: int
    direction: int
    """Frame of the coordinates: that of the style, or 270 for vertical Chinese and Japanese."""


_UNKNOWN_STYLE = Style(10.0, False, False, "", 0, False)


class PageText(NamedTuple):
    """All words of a page."""

    words: list[Word]
    unmapped: int
    """Glyphs without a character."""


def read_words(textpage: ctypes.c_void_p, *, to_display: Affine, width: float, height: float) -> PageText:
    """Read the words of a loaded text page.

    Args:
        textpage: raw handle, used only during the call.
        to_display: from user space to display coordinates.
        width: of the page as shown, points.
        height: of the page as shown, points.
    """
    count = pdfium_c.FPDFText_CountChars(textpage)
    if count <= 0:
        return PageText([], 0)
    text = _characters(textpage, count)
    starts, ends = _tokens(text)
    if not starts:
        return PageText([], 0)
    reader = _WordReader(textpage, to_display, width, height)
    return PageText(reader.read(text, starts, ends), reader.unmapped)


def _characters(textpage: ctypes.c_void_p, count: int) -> str:
    buffer = ctypes.create_string_buffer(2 * (count + 1))
    written = pdfium_c.FPDFText_GetText(textpage, 0, count, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)))
    text = buffer.raw[: max(written - 1, 0) * 2].decode("utf-16-le", "surrogatepass")
    if len(text) == count:
        return text
    codes = (pdfium_c.FPDFText_GetUnicode(textpage, index) for index in range(count))
    return "".join("\ufffe" if code in (0, _HYPHEN_CODE) else chr(min(code, 0x10FFFF)) for code in codes)


def _tokens(text: str) -> tuple[list[int], list[int]]:
    """First characters of the words, and characters after their last ones."""
    if "\x02" in text or (not text.isascii() and ("\ufffe" in text or max(text) > "\uffff")):
        spans = [match.span() for match in _TOKEN.finditer(text)]
        return [start for start, _ in spans], [end for _, end in spans]
    blank = np.ones(len(text) + 2, bool)
    blank[1:-1] = _BLANK[np.frombuffer(text.encode("utf-16-le", "surrogatepass"), np.uint16)]
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    return edges[::2].tolist(), edges[1::2].tolist()


class _WordReader:
    """Locates words; keeps what is the same for all words of a text object."""

    def __init__(self, textpage: ctypes.c_void_p, to_display: Affine, width: float, height: float) -> None:
        self.unmapped = 0
        self._textpage = textpage
        self._to_display = to_display
        self._to_frame = {
            direction: to_display.then(frame_transform(direction, width, height)) for direction in (0, 90, 180, 270)
        }
        self._to_frame[-1] = self._to_frame[0]
        self._box = pdfium_c.FS_RECTF()
        self._address = address_of(textpage)
        self._matrix = pdfium_c.FS_MATRIX()
        self._matrix_address = ctypes.addressof(self._matrix)
        self._styles: dict[int | None, Style] = {}
        self._looks: dict[tuple[object, ...], Style] = {}
        self._fonts: dict[int, tuple[str, bool, bool]] = {}

    def read(self, page_text: str, starts: Sequence[int], ends: Sequence[int]) -> list[Word]:
        """The words that begin and end at these characters, in order."""
        words: list[Word] = []
        styles, count = self._styles, len(starts)
        is_plain = page_text.isascii() and CONTROL.search(page_text) is None
        objects = map(get_text_object, itertools.repeat(self._address, count), starts)
        boxes = self._boxes(starts, ends)
        for start, end, text_object, left, top, right, bottom, is_level in zip(
            starts, ends, objects, *boxes, strict=True
        ):
            style = styles.get(text_object) or self._style(text_object, start)
            token = page_text[start:end]
            text = token if is_plain else self._clean(token, end)
            if is_level and style.direction == 0 and right - left <= 1.6 * style.size * (end - start) + 1:
                if text:
                    words.append(Word(text, left, top, right, bottom, style, start, end, 0))
            else:
                words.extend(self._read_by_character(text if len(text) == end - start else token, start, end, style))
        return words

    def _boxes(self, starts: Sequence[int], ends: Sequence[int]) -> tuple[list[float], ...]:
        """Around first and last characters, in display coordinates.

        Returns:
            Lists of left, top, right, bottom, and of whether the two characters are on one level.
        """
        size = ctypes.sizeof(pdfium_c.FS_RECTF)
        buffer = bytearray(2 * size * len(starts))
        holder = ctypes.c_char.from_buffer(buffer)
        address = ctypes.addressof(holder)
        targets = range(address, address + len(buffer), 2 * size)
        last = np.asarray(ends) - 1
        longer = np.flatnonzero(last > np.asarray(starts))
        textpage = itertools.repeat(self._address)
        # Written as maps: a loop costs as much again as PDFium itself.
        collections.deque(map(get_loose_box, textpage, starts, targets), maxlen=0)
        targets_of_last = (address + size + 2 * size * longer).tolist()
        collections.deque(map(get_loose_box, textpage, last[longer].tolist(), targets_of_last), maxlen=0)
        user = np.frombuffer(buffer, np.float32).reshape(len(starts), 2, 2, 2).astype(float)
        single = last == np.asarray(starts)
        user[single, 1] = user[single, 0]
        # The last axis is x, y; the one before it holds the corners left-top and right-bottom.
        xx, xy, x0, yx, yy, y0 = self._to_display
        x = xx * user[..., 0] + xy * user[..., 1] + x0
        y = yx * user[..., 0] + yy * user[..., 1] + y0
        left, right = np.minimum(x[..., 0], x[..., 1]), np.maximum(x[..., 0], x[..., 1])
        top, bottom = np.minimum(y[..., 0], y[..., 1]), np.maximum(y[..., 0], y[..., 1])
        height = np.minimum(*(bottom - top).T)
        overlap = np.minimum(*bottom.T) - np.maximum(*top.T)
        level = (overlap >= 0.5 * height) & (right[:, 1] >= left[:, 0])
        around = (np.minimum(*left.T), np.minimum(*top.T), np.maximum(*right.T), np.maximum(*bottom.T))
        return (*(edge.tolist() for edge in around), level.tolist())

    def _clean(self, token: str, end: int) -> str:
        if token.isascii() and token.isprintable():
            return token
        if token[-1] in _HYPHEN_STAND_INS:
            if pdfium_c.FPDFText_GetUnicode(self._textpage, end - 1) == _HYPHEN_CODE:
                token = token[:-1] + LINE_END_HYPHEN
            else:
                token = token[:-1] + REPLACEMENT
                self.unmapped += 1
        return clean_word(token)

    def _locate(self, index: int, frame: Affine) -> Box:
        box = self._box
        if not pdfium_c.FPDFText_GetLooseCharBox(self._textpage, index, box):
            return Box(0, 0, 0, 0)
        return frame.box(box.left, box.top, box.right, box.bottom)

    def _read_by_character(self, text: str, start: int, end: int, style: Style) -> Iterator[Word]:
        """Split where the pen jumps: another line, or a gap that PDFium did not turn into a blank."""
        direction = style.direction
        frame = self._to_frame[direction]
        boxes = [self._locate(index, frame) for index in range(start, end)]
        if direction == 0 and _runs_down(text, boxes):
            direction = 270
            frame = self._to_frame[direction]
            boxes = [self._locate(index, frame) for index in range(start, end)]
        begin = 0
        for index in range(1, len(boxes) + 1):
            if index < len(boxes) and _continues(boxes[index - 1], boxes[index], style.size):
                continue
            box = boxes[begin]
            for other in boxes[begin + 1 : index]:
                box = box.union(other)
            piece = clean_word(text[begin:index])
            if piece:
                yield Word(piece, *box, style, start + begin, start + index, direction)
            begin = index

    def _style(self, text_object: int | None, index: int) -> Style:
        style = self._styles[text_object] = self._read_style(text_object, index) if text_object else _UNKNOWN_STYLE
        return style

    def _read_style(self, text_object: int, index: int) -> Style:
        matrix = self._matrix
        get_matrix(self._address, index, self._matrix_address)
        font, font_size = get_font(text_object), get_font_size(self._address, index)
        is_invisible = get_render_mode(text_object) == _INVISIBLE
        key = (font, font_size, is_invisible, matrix.a, matrix.b, matrix.c, matrix.d)
        style = self._looks.get(key)
        if style is None:
            name, bold, italic = self._font(font)
            size = font_size * math.hypot(matrix.c, matrix.d)
            run_x = self._to_display.xx * matrix.a + self._to_display.xy * matrix.b
            run_y = self._to_display.yx * matrix.a + self._to_display.yy * matrix.b
            shown = round(size, 1) if 0.1 <= size <= 10_000 else 10.0
            style = Style(shown, bold, italic, name, _quantize(run_x, run_y), is_invisible)
            self._looks[key] = style
        return style

    def _font(self, address: int | None) -> tuple[str, bool, bool]:
        if not address:
            return "", False, False
        known = self._fonts.get(address)
        if known is None:
            font = ctypes.cast(address, pdfium_c.FPDF_FONT)
            buffer = ctypes.create_string_buffer(256)
            length = pdfium_c.FPDFFont_GetBaseFontName(font, buffer, 256)
            name = buffer.raw[: max(min(length, 256) - 1, 0)].decode("utf-8", "replace")
            bold = _BOLD_NAME.search(name) is not None or pdfium_c.FPDFFont_GetWeight(font) >= _BOLD_WEIGHT
            known = self._fonts[address] = (name.rpartition("+")[2], bold, _ITALIC_NAME.search(name) is not None)
        return known


def _quantize(run_x: float, run_y: float) -> int:
    """Direction of a vector in display coordinates (y downwards); -1 more than 15 degrees off an axis."""
    if abs(run_y) <= 0.27 * abs(run_x):
        return 0 if run_x >= 0 else 180
    if abs(run_x) <= 0.27 * abs(run_y):
        return 90 if run_y < 0 else 270
    return -1


def _runs_down(text: str, boxes: Sequence[Box]) -> bool:
    """Whether the characters stand below each other: vertical writing."""
    down = sum(
        abs(before.left - after.left) < 0.3 * before.width + 1 and after.top >= before.bottom - 0.3 * before.height
        for before, after in itertools.pairwise(boxes)
    )
    unspaced = any(is_unspaced(character) for character in text)
    return unspaced and down > 0.6 * (len(boxes) - 1) and len(boxes) > 1


def _continues(before: Box, after: Box, size: float) -> bool:
    overlap = min(before.bottom, after.bottom) - max(before.top, after.top)
    if overlap < 0.3 * min(before.height, after.height):
        return False
    gap = after.left - before.right
    return -size < gap < 0.5 * size or (before.left <= after.left and gap < 0.5 * size)


def drop_repeated(words: Iterable[Word]) -> list[Word]:
    """Drop words drawn again at the same place: fake bold, shadows, a text layer over visible text."""
    seen: dict[str, dict[int, list[Word]]] = {}
    kept: list[Word] = []
    for word in words:
        level = int(word.top / _LEVEL)
        levels = seen.get(word.text)
        if levels is None:
            seen[word.text] = {level: [word]}
        elif _is_repeated(word, level, levels):
            continue
        else:
            levels.setdefault(level, []).append(word)
        kept.append(word)
    return kept


def _is_repeated(word: Word, level: int, levels: Mapping[int, Sequence[Word]]) -> bool:
    """Whether one of the words with this text, kept by the level of their tops, stands at the same place."""
    limit = _SAME_PLACE * word.style.size
    for near in (level, level - 1, level + 1):
        for other in levels.get(near, ()):
            if (
                abs(other.left - word.left) < limit
                and abs(other.top - word.top) < limit
                and other.direction == word.direction
            ):
                return True
    return False
