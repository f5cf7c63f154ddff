"""Reciprocal rank fusion: several rankings into one, by rank alone, because scores of channels do not compare.

How much a ranking counts is another matter. BM25 is deaf to a question in another language than the texts, or in other
words, and equal weights then let its accidental hits push out the right ones. Whether it heard the question shows in
what it found: `share_heard` looks how many of the question's words the best hits have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RRF_K = 10
"""Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods",
SIGIR 2009, take 60 for many rankings of 1,000. With two or three, the first ranks may say more: docs/retrieval.md."""
MOST_BM25_WEIGHT = 1.5
"""Of BM25 where it heard the whole question; dense counts 1. Measured: docs/retrieval.md."""
DEAF_BELOW = 0.3
"""Share of the question's words that the best hits have, up to which BM25 counts nothing."""
HEARD_FROM = 0.6
"""The share from which it counts fully."""
HITS_LOOKED_AT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """One item of the fused ranking."""

    id: str
    score: float
    """Sum of weight / (k + rank) over the channels that found it."""
    ranks: Mapping[str, int]
    """1-based rank in each channel that found it."""


def reciprocal_rank_fusion(
    rankings: Mapping[str, Sequence[str]], *, k: int = RRF_K, weights: Mapping[str, float] | None = None
) -> list[Fused]:
    """Fuse rankings of ids, best first; an id that a channel repeats counts at its best rank.

    Ties are broken by the best rank in any channel, then by the channels' order, then by id, so that the same rankings
    give the same result everywhere.

    Args:
        rankings: ids by channel name, best first.
        k: constant of the formula, at least 0.
        weights: by channel name, at least 0; channels without one count 1.
    """
    ranks: dict[str, dict[str, int]] = {}
    for channel, ids in rankings.items():
        for rank, item in enumerate(dict.fromkeys(ids), start=1):
            ranks.setdefault(item, {})[channel] = rank
    order = {channel: place for place, channel in enumerate(rankings)}
    weight = {channel: 1.0 if weights is None else weights.get(channel, 1.0) for channel in rankings}
    fused = [
        Fused(id=item, score=sum(sorted(weight[channel] / (k + rank) for channel, rank in found.items())), ranks=found)
        for item, found in ranks.items()
    ]

    def sort_key(entry: Fused) -> tuple[float, int, int, str]:
        best_rank, best_channel = min((rank, order[channel]) for channel, rank in entry.ranks.items())
        return -entry.score, best_rank, best_channel, entry.id

    return sorted(fused, key=sort_key)


def share_heard(asked: frozenset[str], hits: Sequence[Sequence[str]]) -> float:
    """How much of a question BM25 heard, by how many of its words its best hits have.

    Args:
        asked: words of the question.
        hits: words of BM25's hits, best first; `HITS_LOOKED_AT` are read.

    Returns:
        0 (deaf) to 1; BM25's ranking counts `MOST_BM25_WEIGHT` times as much.
    """
    if not asked:
        return 0.0
    share = max((len(asked.intersection(hit)) / len(asked) for hit in hits[:HITS_LOOKED_AT]), default=0.0)
    return min(1.0, max(0.0, (share - DEAF_BELOW) / (HEARD_FROM - DEAF_BELOW)))
