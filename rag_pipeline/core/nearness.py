"""How near to each other a passage has the words of a question: a ranking of the best candidates, from words alone.

BM25 counts words wherever they stand and a vector blurs a whole passage; the passage that answers has the question's
words in one sentence. Measured beside the two as a third ranking: docs/retrieval.md. Pure.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

CANDIDATES = 30
"""Of the fused ranking, best first, that are looked at."""
WINDOW_PER_WORD = 2
"""Words of the passage that the question's words may be spread over, for each of them; function words do not count."""
SMALLEST_WINDOW = 4
SHORT_QUESTION = 5
"""Different words of a question up to which nearness counts as much as the dense ranking. A longer one describes a
subject, which no sentence has all words of, and it counts in proportion less."""
CROWDED = 2 / 3
"""Share of the candidates that have another one of their document before them, from which nearness counts fully. Where
each is of its own document, as with abstracts, it was measured to tell nothing about which document is right."""


def nearness_weight(asked: frozenset[str], heard: float, documents: Sequence[str]) -> float:
    """How much the ranking counts beside a dense one that counts 1.

    Args:
        asked: words of the question.
        heard: how much of the question BM25 heard, 0 to 1.
        documents: ids of the candidates' documents, one per candidate.
    """
    if not asked or not documents:
        return 0.0
    crowding = 1 - len(set(documents)) / len(documents)
    return heard * min(1.0, SHORT_QUESTION / len(asked)) * min(1.0, crowding / CROWDED)


def nearness_ranking(asked: frozenset[str], passages: Mapping[str, Sequence[str]]) -> list[str]:
    """Ids of the passages with words of the question, those first that have most of them within one window.

    Words weigh by how few of the passages have them; ties keep the order of the passages.

    Args:
        asked: words of the question.
        passages: words in order by id, best candidate first.
    """
    places = {item: [(at, word) for at, word in enumerate(words) if word in asked] for item, words in passages.items()}
    having = Counter(word for found in places.values() for word in {word for _, word in found})
    # The rarity of BM25, within the candidates: what the collection has is not known here.
    rarity = {word: math.log(1 + (len(passages) - count + 0.5) / (count + 0.5)) for word, count in having.items()}
    window = max(SMALLEST_WINDOW, WINDOW_PER_WORD * len(asked))
    scores = {item: _best_window(found, rarity, window) for item, found in places.items() if found}
    return sorted(scores, key=lambda item: -scores[item])


def _best_window(places: Sequence[tuple[int, str]], rarity: Mapping[str, float], window: int) -> float:
    """The largest sum of rarities of different words within `window` words."""
    inside: Counter[str] = Counter()
    best = total = 0.0
    first = 0
    for at, word in places:
        if not inside[word]:
            total += rarity[word]
        inside[word] += 1
        while at - places[first][0] >= window:
            left = places[first][1]
            inside[left] -= 1
            if not inside[left]:
                total -= rarity[left]
            first += 1
        best = max(best, total)
    return round(best, 9)
