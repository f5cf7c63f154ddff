"""The value that `ask` returns."""

from dataclasses import dataclass

from rag_pipeline.core.answers import AnswerKind, Citation
from rag_pipeline.query.results import RetrievalResult, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer with everything that shows where it comes from."""

    text: str
    """Markdown; `[source N](citation://N)` refers to the citation with that number, and to nothing else."""
    kind: AnswerKind
    citations: tuple[Citation, ...]
    """The passages that were in the context, by number; made from the results, never from the model's text."""
    results: tuple[RetrievalResult, ...]
    trace: Trace
    notes: tuple[str, ...] = ()
    """What was taken out of the answer, or is doubtful about it, for people."""
    conversation_id: str | None = None
