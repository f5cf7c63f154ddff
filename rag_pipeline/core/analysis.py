"""Text to the words that BM25 counts: one function for rows and queries, so that they meet on every Milvus.

Width, case and compatibility forms are folded (NFKC), Chinese is segmented by `rjieba`, words are stemmed by Snowball.
The result is written to a field that Milvus's `standard` tokenizer splits at everything that is not a letter or a digit
(Milvus Lite also keeps `_`), so words hold nothing else.
"""

import threading
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import regex

from rag_pipeline.core.languages import FUNCTION_WORDS, Script, language_of_words, script_runs

if TYPE_CHECKING:
    from Stemmer import Stemmer

ANALYSIS_VERSION = 1
"""Raised when any text gives other words: queries would no longer match the rows written before."""
ANALYZER_PREFIX = "multilingual-"
ANALYZER = f"{ANALYZER_PREFIX}{ANALYSIS_VERSION}"
"""The analyzer's name in settings, generations and fingerprints."""
WORD_CHARACTERS = 64
"""Longer words (keys, base64) are cut: nobody types them, and the index keeps every term."""

_SOFT_HYPHEN = "\u00ad"
_CONTRACTION = regex.compile(r"(?<=\p{L})['’](?:s|t|re|ll|ve|d|m)(?![\p{L}\p{N}])")
_COMPOUND = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:[-‐‑–._/@:&,·][\p{L}\p{M}\p{N}]+)*(?:\+\+|#)?")
_DECIMAL_POINT = regex.compile(r"(?<=\d)\.(?=\d)")
_PART = regex.compile(r"[\p{L}\p{M}\p{N}]+")
_STEMMED_SCRIPTS: Mapping[Script, str] = {
    "cyrillic": "russian",
    "greek": "greek",
    "arabic": "arabic",
    "devanagari": "hindi",
    "armenian": "armenian",
    "tamil": "tamil",
}
_STEMMER_LOCK = threading.Lock()
"""A Stemmer must not be used by two threads at once (PyStemmer's README)."""


def words(text: str) -> list[str]:
    """What BM25 counts of a passage or a query, in order, with repetitions.

    Function words are left out: they say nothing about the subject, and Milvus Lite walks through every row that has
    one of the query's words. Written in capitals (WHO, IT) they are names and stay.
    """
    composed = _CONTRACTION.sub("", unicodedata.normalize("NFKC", text.replace(_SOFT_HYPHEN, "")))
    compounds = [(compound, _PART.findall(compound)) for compound in _COMPOUND.findall(composed)]
    told = language_of_words(part.casefold() for _, parts in compounds for part in parts) or "english"
    function_words = FUNCTION_WORDS[told]
    found: list[str] = []
    for compound, parts in compounds:
        for part in parts:
            folded = part.casefold()
            if folded in function_words and not (len(part) > 1 and part.isupper()):
                continue
            if folded.isascii():
                found += _forms(folded[:WORD_CHARACTERS], told)
            else:
                found += _mixed(folded, told)
        if len(compound) > len(parts[0]) and (joined := _joined(compound.casefold(), parts[-1].casefold())):
            found.append(joined)
    return found


def _mixed(part: str, told: str) -> Iterator[str]:
    """Words of a run of letters and digits that may be of several scripts."""
    for script, run in script_runs(part):
        if script == "han":
            yield from (_letters(word) for word in _segmented(run) if word not in FUNCTION_WORDS["chinese"])
        elif script in {"kana", "hangul", "other"}:
            # Written without spaces, or with particles joined to the words.
            yield from (_letters(run[at : at + 2]) for at in range(max(1, len(run) - 1)))
        elif script != "cyrillic" or run not in FUNCTION_WORDS["russian"]:
            yield from _forms(run[:WORD_CHARACTERS], _STEMMED_SCRIPTS.get(script, told))


def _segmented(run: str) -> list[str]:
    """Dictionary words of a run of Chinese characters, the shorter ones inside long ones as well."""
    import rjieba

    return list(rjieba.cut_for_search(run, False))


@lru_cache(maxsize=65_536)
def _forms(word: str, language: str) -> tuple[str, ...]:
    """The stem by the language and, for languages other than English in Latin script, by English if it differs.

    The language of a query of a few words is often not told; the English stem then still meets the row's same form.
    """
    if any(character.isdigit() for character in word):
        return (_letters(word),)
    if language in _STEMMED_SCRIPTS.values():
        return (_letters(_stem(word, language)),)
    stems = {_stem(_without_accents(word), "english")}
    if language != "english":
        stems.add(_without_accents(_stem(word, language)))
    return tuple(sorted(map(_letters, stems)))


def _stem(word: str, language: str) -> str:
    with _STEMMER_LOCK:
        return str(_stemmer(language).stemWord(word))


@cache
def _stemmer(language: str) -> "Stemmer":
    from Stemmer import Stemmer

    return Stemmer(language)


def _without_accents(word: str) -> str:
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


def _letters(word: str) -> str:
    """The word without marks: tokenizers split there."""
    return word if word.isalnum() else "".join(c if c.isalnum() else f"{ord(c):x}" for c in word)


def _joined(compound: str, last: str) -> str:
    """A name like E-4711, R&D, v1.2.3 or C++ as one word, whichever way it is written; "" for other compounds."""
    if not compound.isascii():
        return ""
    if compound.endswith(("++", "#")):
        return (last + ("plusplus" if compound.endswith("+") else "sharp"))[-WORD_CHARACTERS:]
    if not any(len(part) == 1 or not part.isalpha() for part in _PART.findall(compound)):
        return ""
    return "".join(_PART.findall(_DECIMAL_POINT.sub("d", compound)))[:WORD_CHARACTERS]
