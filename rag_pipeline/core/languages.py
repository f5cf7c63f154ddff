"""Which language a text is written in, told by its script and its function words. Pure, no model.

Good enough to choose a stemmer, to leave out words that say nothing, and to see that a question and the texts it is
asked of have no words in common; short or mixed texts are often not told, and nothing may depend on that.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, cast

import regex

Script = Literal[
    "latin",
    "han",
    "kana",
    "hangul",
    "cyrillic",
    "greek",
    "arabic",
    "hebrew",
    "devanagari",
    "armenian",
    "tamil",
    "other",
    "digits",
]

_LETTERS: Mapping[Script, str] = {
    "latin": r"\p{Latin}",
    "han": r"\p{Han}",
    "kana": r"\p{Hiragana}\p{Katakana}ー",
    "hangul": r"\p{Hangul}",
    "cyrillic": r"\p{Cyrillic}",
    "greek": r"\p{Greek}",
    "arabic": r"\p{Arabic}",
    "hebrew": r"\p{Hebrew}",
    "devanagari": r"\p{Devanagari}",
    "armenian": r"\p{Armenian}",
    "tamil": r"\p{Tamil}",
    "digits": r"\p{N}",
}
_RUN = regex.compile(
    "|".join(f"(?P<{script}>[{letters}][{letters}\\p{{M}}]*)" for script, letters in _LETTERS.items())
    + r"|(?P<other>(?:(?!["
    + "".join(_LETTERS.values())
    + r"])[\p{L}\p{M}])+)"
)

FUNCTION_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "english": """
            a an and any are as at be been being but by can could did do does doing done for from had has have
            having he her here hers him his how i if in into is it its itself me more most my no nor not of on
            or other our ours out over own shall she should so some such than that the their theirs them
            themselves then there these they this those through to too under until up us very was we were what
            when where which while who whom whose why will with would you your yours
        """,
        "german": """
            der die das den dem des ein eine einen einem einer eines und oder aber nicht ist sind war waren wird
            werden wurde wurden hat haben hatte mit von vom zu zum zur auf aus bei für im in an am als auch es
            er sie wir ich sich nach über um durch wie was wer wo wann welche welcher welches dass kann
        """,
        "french": """
            le la les un une des du de et ou où mais ne pas est sont était étaient été être avec dans pour par
            sur sous au aux en ce cet cette ces que qui quoi quel quelle quels quelles dont il elle ils elles
            nous vous je se son sa ses leur leurs plus comme comment pourquoi quand
        """,
        "spanish": """
            el la los las un una unos unas de del y o pero no es son era eran fue fueron ser con en para por
            sobre al a que qué quién cuál cuáles cuándo dónde cómo se su sus lo le les este esta estos estas
            como más ha han
        """,
        "italian": """
            il lo la i gli le un uno una di del della dei degli delle e o ma non è sono era erano essere con in
            nel nella per da dal dalla su sul sulla al alla che chi cosa quale quali quando dove come si suo sua
            loro più ha hanno
        """,
        "portuguese": """
            o a os as um uma uns umas de do da dos das e ou mas não é são era eram foi foram ser com em no na
            nos nas para por pelo pela ao à que quem qual quais quando onde como se seu sua seus suas mais ele
            ela
        """,
        "dutch": """
            de het een en of maar niet is zijn was waren wordt worden werd met van voor op aan bij in uit naar
            door over als ook dat die dit deze wat wie waar wanneer hoe welke er hij zij wij ze heeft hebben te
            om
        """,
        "swedish": """
            en ett den det de och eller men inte är var vara blir blev med av från för på i till om som att vad
            vem var när hur vilken vilka han hon vi har hade kan ska
        """,
        "russian": """
            и в во не что он на я с со как а то все она так его но да ты к у же вы за бы по ее мне было вот от
            меня о из ему когда ли если или ни быть был для это где кто какой какая какие чем
        """,
        "chinese": """
            的 了 和 与 及 是 在 于 有 被 把 对 从 为 以 也 都 而 之 其 吗 呢 吧 啊 么 什么 哪 哪些 哪个
            谁 怎么 如何 请问
        """,
    }.items()
}
"""The commonest words without a meaning of their own, lower case."""

_SCRIPT_TELLS = frozenset({"chinese", "russian"})
_FEWEST = 2
"""Function words that tell a language: one alone may be a word of another ("war", "die")."""
_LANGUAGES_OF: Mapping[str, tuple[str, ...]] = {
    word: tuple(language for language, words in FUNCTION_WORDS.items() if word in words)
    for word in frozenset[str]().union(*(FUNCTION_WORDS[name] for name in FUNCTION_WORDS.keys() - _SCRIPT_TELLS))
}
_BY_SCRIPT: Mapping[Script, str] = {
    "han": "chinese",
    "kana": "japanese",
    "hangul": "korean",
    "cyrillic": "russian",
    "greek": "greek",
    "arabic": "arabic",
    "hebrew": "hebrew",
    "devanagari": "hindi",
    "armenian": "armenian",
    "tamil": "tamil",
}


def script_runs(text: str) -> Iterator[tuple[Script, str]]:
    """The runs of letters of one script, with their marks, and of digits, in order."""
    for match in _RUN.finditer(text):
        yield cast(Script, match.lastgroup), match.group()


def main_script(text: str) -> Script | None:
    """The script of most of the text, None without letters; syllables and words of one character weigh two letters."""
    weights: Counter[Script] = Counter()
    for script, run in script_runs(text):
        weights[script] += len(run) * (2 if script in {"han", "kana", "hangul"} else 1)
    del weights["digits"]
    if weights["kana"]:
        # Japanese mixes both; Chinese has no kana.
        weights["kana"] += weights.pop("han", 0)
    return weights.most_common(1)[0][0] if weights else None


def language_of_words(words: Iterable[str]) -> str | None:
    """The language in Latin script with the most function words among lower-case words; None if it is not clear."""
    counts = Counter(language for word in words for language in _LANGUAGES_OF.get(word, ()))
    ranked = [*counts.most_common(2), ("", 0), ("", 0)]
    (best, most), (_, next_most) = ranked[0], ranked[1]
    return best if most >= _FEWEST and most > next_most else None


def language(text: str) -> str | None:
    """The language in English ("chinese"), None where it cannot be told."""
    script = main_script(text)
    if script == "latin":
        return language_of_words(regex.findall(r"\p{L}+", text.casefold()))
    return _BY_SCRIPT.get(script) if script else None
