from datetime import UTC, datetime

from rag_pipeline.core.answers import Turn
from rag_pipeline.core.context import Context
from rag_pipeline.query.prompts import answer_messages


def turn(position: int, answer: str) -> Turn:
    return Turn(
        position=position,
        question=f"Question {position}?",
        answer=answer,
        kind="generated",
        citations=(),
        notes=(),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_the_model_hears_the_last_answers_that_are_still_there() -> None:
    earlier = [turn(position, "" if position in {1, 3} else f"Answer {position}.") for position in range(6)]
    messages = answer_messages("And now?", Context(text="", sources=()), earlier)
    assert [message.content for message in messages[1:-1]] == [
        text for position in (2, 4, 5) for text in (f"Question {position}?", f"Answer {position}.")
    ]
