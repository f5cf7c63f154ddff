"""Measures of rankings: nDCG and recall by `pytrec_eval`, hits of spans and pages, and how sure a mean is. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
import regex

from rag_pipeline.query.results import RetrievalResult

RESAMPLES = 2_000
NAMES = {
    "ndcg_cut_10": "ndcg@10",
    "success_1": "hit@1",
    "success_10": "hit@10",
    "recall_10": "recall@10",
    "recall_100": "recall@100",
}
"""Ours by `trec_eval`'s; `success` is whether one of the first is right."""


_INVISIBLE = regex.compile("[\\s\u00ad\u200b-\u200f\u2060\ufeff]+")
"""What `is_blank` calls so; a byte order mark in front of a text does not survive parsing."""


def visible_text(text: str) -> str:
    """A text in the form in which two copies of it are compared: line breaks and invisible characters may differ."""
    return str(_INVISIBLE.sub("", text))


def judged_units(name: str, result: RetrievalResult, *, has_pages: bool) -> list[str]:
    """What a passage of the document of that name counts as: the document, or every page that it stands on."""
    if not has_pages:
        return [name]
    first, last = result.page or 0, result.page_end or result.page or -1
    return [f"{name}#p{page:04d}" for page in range(first, last + 1)]


def ranking_measures(
    rankings: Mapping[str, Sequence[str]], relevant: Mapping[str, Mapping[str, int]]
) -> dict[str, list[float]]:
    """nDCG@10 (linear gain), hit@1, hit@10, recall@10 and recall@100 of each query, in the order of the queries.

    Args:
        rankings: ids by query id, best first, without repetitions.
        relevant: grades over 0 by query id.
    """
    import pytrec_eval

    evaluator = pytrec_eval.RelevanceEvaluator({each: dict(relevant[each]) for each in rankings}, set(NAMES))
    # Scores that fall with the rank: trec_eval sorts by score itself, ties by id.
    scored = {query_id: {item: float(-place) for place, item in enumerate(ids)} for query_id, ids in rankings.items()}
    found = evaluator.evaluate(scored)
    return {name: [found.get(each, {}).get(key, 0.0) for each in rankings] for key, name in NAMES.items()}


def hit_at(flags: Sequence[bool], count: int) -> float:
    """1 if one of the first `count` is right."""
    return float(any(flags[:count]))


def mean(values: Sequence[float]) -> float:
    """0 for no values."""
    return float(np.mean(values)) if len(values) else 0.0


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean; the same for the same values."""
    if not len(values):
        return 0.0, 0.0
    draws = np.random.default_rng(0).choice(np.asarray(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 for none."""
    return float(np.quantile(values, share)) if len(values) else 0.0
