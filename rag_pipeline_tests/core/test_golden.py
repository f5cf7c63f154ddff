import pytest

from rag_pipeline.core.golden import document_of, falls, is_as_good

BEFORE = {"dense": {"ndcg@10": 0.8, "recall@10": 0.9, "hit@1": 0.7}, "hybrid": {"ndcg@10": 0.9, "recall@10": 1.0}}


def changed(leg: str, measure: str, value: float) -> dict[str, dict[str, float]]:
    return {**BEFORE, leg: {**BEFORE[leg], measure: value}}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(BEFORE, [], id="the same"),
        pytest.param(changed("hybrid", "ndcg@10", 0.88), [], id="as much as is allowed"),
        pytest.param(changed("hybrid", "ndcg@10", 0.879), ["hybrid ndcg@10"], id="a little more"),
        pytest.param(changed("dense", "recall@10", 0.5), ["dense recall@10"], id="recall of one leg"),
        pytest.param(changed("dense", "hit@1", 0.0), [], id="a measure that does not count"),
        pytest.param(changed("dense", "ndcg@10", 1.0), [], id="better"),
        pytest.param({"hybrid": {"ndcg@10": 0.9, "recall@10": 1.0}}, [], id="a leg that was not measured"),
    ],
)
def test_falls_are_told_apart_from_noise(now: dict[str, dict[str, float]], expected: list[str]) -> None:
    assert [f"{fall.leg} {fall.measure}" for fall in falls(BEFORE, now, most=0.02)] == expected


def test_only_the_named_legs_are_looked_at() -> None:
    assert falls(BEFORE, changed("dense", "ndcg@10", 0.1), most=0.02, legs=("hybrid",)) == ()


def test_a_fall_says_from_where_to_where() -> None:
    (fall,) = falls(BEFORE, changed("hybrid", "ndcg@10", 0.5), most=0.02)
    assert str(fall) == "hybrid ndcg@10 0.900 -> 0.500 (-0.400)"


def test_a_small_fall_is_allowed_and_yet_not_as_good() -> None:
    now = changed("hybrid", "ndcg@10", 0.895)
    assert falls(BEFORE, now, most=0.02) == ()
    assert not is_as_good(BEFORE, now)
    assert is_as_good(BEFORE, BEFORE)


def test_a_page_is_of_its_document() -> None:
    assert document_of("a#p.pdf#p0003", has_pages=True) == "a#p.pdf"
    assert document_of("a#p0003", has_pages=False) == "a#p0003"
