"""Sentence spans of a text, with exact offsets; and smaller spans where a sentence is too long for a chunk."""

from collections.abc import Iterator

import regex

from rag_pipeline.core.graphemes import ceil_boundary, floor_boundary, is_boundary
from rag_pipeline.core.tokens import TokenCounter

Span = tuple[int, int]
"""Start and end, in characters of the text."""

_CLOSERS = r"[\"'”’»›)\]}）」』】》〉〕］｝＂＇]*"
_END = regex.compile(
    rf"(?P<wide>[.!?]*[。！？；｡।॥؟۔][.!?。！？；｡।॥؟۔]*{_CLOSERS})"
    rf"|(?P<narrow>[.!?…]+{_CLOSERS})(?=\s|[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}])"
    r"|(?P<blank>\n[^\S\n]*\n)"
)
_LAST_WORD = regex.compile(r"[^\s(\[{\"'“‘«]+$")
_VISIBLE = regex.compile(r"\S")
_INITIALS = regex.compile(r"\p{Lu}|\p{L}{1,2}(?:\.\p{L}{1,2})+")
"""What stands before the last point of "J. Smith", "e.g.", "U.S.", "z.B."."""

# fmt: off
_BEFORE_A_NAME = frozenset(
    {
        "abs", "approx", "art", "bd", "bzw", "ca", "capt", "cf", "col", "dr", "eq", "eqs", "fig", "figs", "fr",
        "gen", "gov", "hon", "hr", "incl", "lt", "messrs", "mlle", "mme", "mr", "mrs", "ms", "nr", "prof", "ref",
        "refs", "rep", "resp", "rev", "sen", "sgt", "sr", "sra", "st", "tel", "viz", "vs",
    }
)
"""Abbreviations after which a capital letter or a digit goes on with the sentence."""
_BEFORE_A_NUMBER = frozenset(
    {
        "al", "apr", "aug", "ch", "dec", "ed", "eds", "est", "feb", "jan", "jul", "jun", "mar", "no", "nos", "nov",
        "oct", "p", "para", "pp", "sec", "sect", "sep", "sept", "vol", "vols",
    }
)
# fmt: on
"""Abbreviations that go on only with a digit or a bracket; otherwise the word may well end the sentence ("no.")."""

_BREAKS = (
    regex.compile(r"\n"),
    regex.compile(r"[,;:|，、：—](?=\s|[^\x00-\x7f])"),
    regex.compile(r"\s"),
)
"""Where a sentence that is too long is cut, best first."""


def sentence_spans(text: str, start: int, end: int) -> list[Span]:
    """Sentences in `text[start:end]`: in order, without white space around them, all visible characters covered.

    A sentence ends at 。！？； and their like with the quotes and brackets that follow, at . ! ? before white space
    (not in "e.g.", "Dr. Who", "J. Smith", "3. Third item", and not before a small letter), and at a blank line. A
    decimal or a version number has no white space after its point, so it stays whole.
    """
    spans: list[Span] = []
    begin = start
    for match in _END.finditer(text, start, end):
        if match.lastgroup == "narrow" and not _ends_sentence(text, begin, match.start(), match.end(), end):
            continue
        _add_span(spans, text, begin, match.end())
        begin = match.end()
    _add_span(spans, text, begin, end)
    return spans


def split_long(text: str, span: Span, *, budget: int, count_tokens: TokenCounter) -> Iterator[Span]:
    """Parts of a span with at most `budget` tokens each, cut at line ends, clause marks or spaces where there are any.

    Where there are none, cuts lie between grapheme clusters. Only a cluster that alone is over the budget is torn,
    and only a single character can exceed it. Linear: every character is counted about twice.
    """
    start, end = span
    characters_per_token = 4.0
    while start < end:
        length, tokens = _longest(text, start, end, budget, characters_per_token, count_tokens)
        characters_per_token = max(length / max(tokens, 1), 0.25)
        stop = start + length
        if stop < end:
            stop = _best_break(text, start, stop, budget, count_tokens)
        left, right = trimmed(text, start, stop)
        if left < right:
            yield left, right
        start = stop


def trimmed(text: str, begin: int, end: int) -> Span:
    """The span `[begin, end)` without the white space around it; of no length if there is nothing else.

    White space that a combining mark stands on is kept: the two are one cluster.
    """
    piece = text[begin:end]
    left = begin + len(piece) - len(piece.lstrip())
    right = max(left, begin + len(piece.rstrip()))
    if not is_boundary(text, left, lowest=begin):
        left = floor_boundary(text, left, lowest=begin)
    if not is_boundary(text, right, lowest=left):
        right = min(ceil_boundary(text, right, lowest=left), end)
    return left, right


def _ends_sentence(text: str, begin: int, mark: int, after: int, end: int) -> bool:
    following = _VISIBLE.search(text, after, end)
    if following is None:
        return True
    next_character = following.group()
    if next_character.islower():
        return False
    if text[mark] != "." or after - mark > 1:
        return True
    word = _LAST_WORD.search(text[max(begin, mark - 24) : mark])
    if word is None:
        return True
    return not _goes_on(word.group(), next_character, at_begin=not text[begin : mark - len(word.group())].strip())


def _goes_on(word: str, next_character: str, *, at_begin: bool) -> bool:
    if at_begin and ((word.isdigit() and len(word) <= 3) or (word.isalpha() and len(word) == 1)):
        return True
    if _INITIALS.fullmatch(word):
        return True
    folded = word.casefold()
    if folded in _BEFORE_A_NAME:
        return True
    return folded in _BEFORE_A_NUMBER and (next_character.isdigit() or next_character in "([")


def _longest(
    text: str, start: int, end: int, budget: int, characters_per_token: float, count_tokens: TokenCounter
) -> Span:
    """Length in characters of a long prefix with at most `budget` tokens (at least 1 character), and its tokens."""
    length = min(max(int(budget * characters_per_token), 1), end - start)
    tokens = count_tokens(text[start : start + length])
    while tokens * 2 < budget and length < end - start:
        length = min(length * 2, end - start)
        tokens = count_tokens(text[start : start + length])
    while tokens > budget and length > 1:
        length = max(min(length - 1, length * budget // tokens), 1)
        tokens = count_tokens(text[start : start + length])
    return length, tokens


def _best_break(text: str, start: int, stop: int, budget: int, count_tokens: TokenCounter) -> int:
    middle = start + (stop - start) // 2
    for pattern in _BREAKS:
        ends = [found.end() for found in pattern.finditer(text, middle, stop)]
        boundary = floor_boundary(text, ends[-1], lowest=start) if ends else start
        if boundary > start:
            return boundary
    boundary = floor_boundary(text, stop, lowest=start)
    if boundary > start:
        return boundary
    whole = ceil_boundary(text, stop)
    return whole if count_tokens(text[start:whole]) <= budget else stop


def _add_span(spans: list[Span], text: str, begin: int, end: int) -> None:
    left, right = trimmed(text, begin, end)
    if left < right:
        spans.append((left, right))
