import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.analysis import words
from rag_pipeline.core.fusion import RRF_K, reciprocal_rank_fusion, share_heard

RANKINGS = st.dictionaries(
    st.sampled_from(["dense", "bm25", "third"]), st.lists(st.sampled_from("abcdefgh"), max_size=8), max_size=3
)


def test_scores_follow_the_formula() -> None:
    fused = reciprocal_rank_fusion({"dense": ["a", "b"], "bm25": ["b", "c"]})
    assert [entry.id for entry in fused] == ["b", "a", "c"]
    assert fused[0].score == pytest.approx(1 / (RRF_K + 2) + 1 / (RRF_K + 1))
    assert fused[0].ranks == {"dense": 2, "bm25": 1}
    assert fused[2].score == pytest.approx(1 / (RRF_K + 2))


def test_ties_are_broken_by_channel_order_then_id() -> None:
    assert [entry.id for entry in reciprocal_rank_fusion({"dense": ["z"], "bm25": ["a"]})] == ["z", "a"]
    assert [entry.id for entry in reciprocal_rank_fusion({"bm25": ["a"], "dense": ["z"]})] == ["a", "z"]


def test_a_repeated_id_counts_once_at_its_best_rank() -> None:
    (first, second) = reciprocal_rank_fusion({"dense": ["a", "a", "b"]})
    assert first.ranks == {"dense": 1}
    assert second.ranks == {"dense": 2}


def test_nothing_fuses_to_nothing() -> None:
    assert reciprocal_rank_fusion({}) == []
    assert reciprocal_rank_fusion({"dense": []}) == []


@given(RANKINGS)
def test_every_id_comes_once_in_falling_order(rankings: dict[str, list[str]]) -> None:
    fused = reciprocal_rank_fusion(rankings)
    ids = [entry.id for entry in fused]
    assert sorted(ids) == sorted({item for ranking in rankings.values() for item in ranking})
    scores = [entry.score for entry in fused]
    assert scores == sorted(scores, reverse=True)


@given(st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_one_channel_keeps_its_order(ranking: list[str]) -> None:
    assert [entry.id for entry in reciprocal_rank_fusion({"dense": ranking})] == ranking


@given(RANKINGS, st.randoms(use_true_random=False))
def test_scores_do_not_depend_on_the_order_of_channels(rankings: dict[str, list[str]], chance: random.Random) -> None:
    shuffled = list(rankings.items())
    chance.shuffle(shuffled)
    expected = {entry.id: entry.score for entry in reciprocal_rank_fusion(rankings)}
    assert {entry.id: entry.score for entry in reciprocal_rank_fusion(dict(shuffled))} == expected


@given(RANKINGS, st.sampled_from("abcdefgh"))
def test_an_id_that_every_channel_puts_first_wins(rankings: dict[str, list[str]], winner: str) -> None:
    everywhere = {channel: [winner, *ranking] for channel, ranking in rankings.items()}
    fused = reciprocal_rank_fusion(everywhere)
    assert not everywhere or fused[0].id == winner


def test_a_channel_counts_by_its_weight() -> None:
    rankings = {"dense": ["a", "b"], "bm25": ["c", "b"]}
    fused = reciprocal_rank_fusion(rankings, weights={"bm25": 0.5})
    assert {entry.id: entry.score for entry in fused} == pytest.approx(
        {"b": 1 / (RRF_K + 2) + 0.5 / (RRF_K + 2), "a": 1 / (RRF_K + 1), "c": 0.5 / (RRF_K + 1)}
    )
    assert [entry.id for entry in reciprocal_rank_fusion(rankings, weights={"bm25": 0.0})] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("query", "hits", "share"),
    [
        pytest.param("When is the pump serviced?", ["The pump is serviced yearly."], 1.0, id="all words"),
        pytest.param("serviced pumps", ["Service of a pump"], 1.0, id="all words in other forms"),
        pytest.param("Who won Super Bowl 50 in Denver?", ["第 50 届决赛"], 0.0, id="another language"),
        pytest.param("水泵多久保养一次", ["水泵每四千小时保养一次"], 1.0, id="Chinese"),
        pytest.param("pump seal pressure limit", ["The pump has a seal."], 2 / 3, id="half of the words"),
        pytest.param("pump", ["valve", "filter", "fuse", "pump"], 0.0, id="only the best hits are looked at"),
        pytest.param("the of and", ["the of and"], 0.0, id="no words"),
        pytest.param("pump", [], 0.0, id="no hits"),
    ],
)
def test_bm25_heard_as_much_of_the_query_as_its_best_hits_have(query: str, hits: list[str], share: float) -> None:
    assert share_heard(frozenset(words(query)), [words(hit) for hit in hits]) == pytest.approx(share)
