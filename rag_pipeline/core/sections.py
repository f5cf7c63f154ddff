"""Sections for small-to-big retrieval: which chunks are read together when one of them is found."""

from collections.abc import Sequence
from itertools import accumulate, groupby

SECTION_MAX_TOKENS = 2_000
"""Two thirds of the answer context of 12,000 characters (about 3,000 tokens), so that one section never fills it."""


def number_sections(
    paths: Sequence[tuple[str, ...]], tokens: Sequence[int], *, limit: int = SECTION_MAX_TOKENS
) -> list[int]:
    """The section number of each chunk, from its heading path and size; numbers rise from 0 and never come back.

    A section is the largest run of chunks under one heading (with its sub-headings) that has at most `limit` tokens;
    different top-level headings are never joined. Text that is longer without another sub-heading is divided evenly.
    """
    sums = [0, *accumulate(tokens)]
    numbers = [0] * len(paths)
    pending = [(0, len(paths), 0)] if paths else []
    next_number = 0
    while pending:
        low, high, depth = pending.pop()
        if depth and sums[high] - sums[low] <= limit:
            numbers[low:high] = [next_number] * (high - low)
            next_number += 1
            continue
        groups = _groups(paths, low, high, depth + 1)
        if len(groups) == 1 and all(len(path) <= depth for path in paths[low:high]):
            for first, last in _even_parts(sums, low, high, limit):
                numbers[first:last] = [next_number] * (last - first)
                next_number += 1
            continue
        pending.extend((first, last, depth + 1) for first, last in reversed(groups))
    return numbers


def _groups(paths: Sequence[tuple[str, ...]], low: int, high: int, depth: int) -> list[tuple[int, int]]:
    groups = []
    first = low
    for _, members in groupby(paths[low:high], key=lambda path: path[:depth]):
        last = first + sum(1 for _ in members)
        groups.append((first, last))
        first = last
    return groups


def _even_parts(sums: Sequence[int], low: int, high: int, limit: int) -> list[tuple[int, int]]:
    total = sums[high] - sums[low]
    share = total / max(-(-total // limit), 1)
    parts = []
    first = low
    for position in range(low + 1, high):
        if sums[position] - sums[first] >= share or sums[position + 1] - sums[first] > limit:
            parts.append((first, position))
            first = position
    parts.append((first, high))
    return parts
