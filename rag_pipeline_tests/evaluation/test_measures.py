import math

import pytest

from rag_pipeline.evaluation.measures import hit_at, interval, mean, percentile, ranking_measures


def test_rankings_are_measured_by_rank() -> None:
    rankings = {"q1": ["x", "a", "y"], "q2": ["b"], "q3": [], "q4": [f"x{n}" for n in range(10)] + ["d"]}
    relevant = {"q1": {"a": 1, "z": 1}, "q2": {"b": 2}, "q3": {"c": 1}, "q4": {"d": 1}}
    found = ranking_measures(rankings, relevant)
    ideal = 1 + 1 / math.log2(3)
    assert found["ndcg@10"] == pytest.approx([(1 / math.log2(3)) / ideal, 1.0, 0.0, 0.0])
    assert found["hit@1"] == [0.0, 1.0, 0.0, 0.0]
    assert found["hit@10"] == [1.0, 1.0, 0.0, 0.0]
    assert found["recall@10"] == pytest.approx([0.5, 1.0, 0.0, 0.0])
    assert found["recall@100"] == pytest.approx([0.5, 1.0, 0.0, 1.0])


def test_a_hit_counts_within_the_first_ones() -> None:
    assert hit_at([False, True], 2) == 1.0
    assert hit_at([False, True], 1) == 0.0
    assert hit_at([], 10) == 0.0


def test_the_interval_holds_the_mean_and_is_the_same_each_time() -> None:
    values = [0.0, 1.0] * 50
    low, high = interval(values)
    assert low < mean(values) < high
    assert interval(values) == (low, high)
    assert high - low == pytest.approx(4 * 0.5 / 10, rel=0.2)
    assert interval([]) == (0.0, 0.0)


def test_percentiles() -> None:
    assert percentile([float(number) for number in range(101)], 0.95) == pytest.approx(95.0)
    assert percentile([], 0.5) == 0.0
