import pytest

from rag_pipeline.core.analysis import words
from rag_pipeline.core.nearness import SHORT_QUESTION, nearness_ranking, nearness_weight

FAR = "the pump " + "has many parts of steel " * 10 + "and is serviced"


def ranking(question: str, passages: dict[str, str]) -> list[str]:
    return nearness_ranking(frozenset(words(question)), {item: words(text) for item, text in passages.items()})


@pytest.mark.parametrize(
    ("question", "passages", "expected"),
    [
        pytest.param("pump service", {"far": FAR, "near": "serviced pumps"}, ["near", "far"], id="near before far"),
        pytest.param(
            "pump service interval",
            {"one": "the pump, the pump and the pump", "two": "pump interval"},
            ["two", "one"],
            id="different words count, not repeated ones",
        ),
        pytest.param(
            "pump seal",
            {"a": "a pump", "b": "a pump", "c": "a pump", "seal": "a seal"},
            ["seal", "a", "b", "c"],
            id="a word that few passages have counts more",
        ),
        pytest.param("pump", {"b": "pump", "a": "pump"}, ["b", "a"], id="ties keep the order"),
        pytest.param("pump", {"a": "valve"}, [], id="a passage without any word is left out"),
        pytest.param(
            "水泵保养", {"b": "水泵" + "钢铁零件很多" * 10 + "保养", "a": "保养水泵"}, ["a", "b"], id="Chinese"
        ),
        pytest.param("pump", {}, [], id="no passages"),
    ],
)
def test_passages_with_the_words_of_the_question_side_by_side_come_first(
    question: str, passages: dict[str, str], expected: list[str]
) -> None:
    assert ranking(question, passages) == expected


def test_a_window_moves_on_past_the_words_it_has_left() -> None:
    spread = "pump " + "steel " * 20 + "pump " + "steel " * 20 + "seal"
    assert ranking("pump seal", {"spread": spread, "together": "steel pump steel seal"}) == ["together", "spread"]


ONE_DOCUMENT = ["doc"] * 30


def test_nearness_counts_less_for_long_questions_and_for_deaf_ones() -> None:
    short, long = (frozenset(map(str, range(count))) for count in (SHORT_QUESTION, 2 * SHORT_QUESTION))
    assert nearness_weight(short, 1.0, ONE_DOCUMENT) == 1.0
    assert nearness_weight(short, 0.25, ONE_DOCUMENT) == 0.25
    assert nearness_weight(long, 1.0, ONE_DOCUMENT) == pytest.approx(0.5)
    assert nearness_weight(long, 0.0, ONE_DOCUMENT) == 0.0
    assert nearness_weight(frozenset(), 1.0, ONE_DOCUMENT) == 0.0


@pytest.mark.parametrize(
    ("documents", "weight"),
    [
        pytest.param(["a", "a", "a"], 1.0, id="one document"),
        pytest.param(["a", "a", "b", "b"], 0.75, id="two of each"),
        pytest.param(["a", "b", "c"], 0.0, id="each its own"),
        pytest.param([], 0.0, id="none"),
    ],
)
def test_nearness_chooses_among_passages_of_the_same_documents(documents: list[str], weight: float) -> None:
    assert nearness_weight(frozenset({"pump"}), 1.0, documents) == pytest.approx(weight)
