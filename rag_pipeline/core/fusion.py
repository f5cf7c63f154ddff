"""Reciprocal rank fusion: several rankings into one, by rank alone, because scores of channels do not compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RRF_K = 60
"""Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods",
SIGIR 2009: the constant of their experiments; it keeps the first ranks of one channel from deciding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """One item of the fused ranking."""

    id: str
    score: float
    """Sum of 1 / (k + rank) over the channels that found it."""
    ranks: Mapping[str, int]
    """1-based rank in each channel that found it."""


def reciprocal_rank_fusion(rankings: Mapping[str, Sequence[str]], *, k: int = RRF_K) -> list[Fused]:
    """Fuse rankings of ids, best first; an id that a channel repeats counts at its best rank.

    Ties are broken by the best rank in any channel, then by the channels' order, then by id, so that the same rankings
    give the same result everywhere.

    Args:
        rankings: ids by channel name, best first.
        k: constant of the formula, at least 0.
    """
    ranks: dict[str, dict[str, int]] = {}
    for channel, ids in rankings.items():
        for rank, item in enumerate(dict.fromkeys(ids), start=1):
            ranks.setdefault(item, {})[channel] = rank
    order = {channel: place for place, channel in enumerate(rankings)}
    fused = [
        Fused(id=item, score=sum(1.0 / (k + rank) for rank in sorted(found.values())), ranks=found)
        for item, found in ranks.items()
    ]

    def sort_key(entry: Fused) -> tuple[float, int, int, str]:
        best_rank, best_channel = min((rank, order[channel]) for channel, rank in entry.ranks.items())
        return -entry.score, best_rank, best_channel, entry.id

    return sorted(fused, key=sort_key)
