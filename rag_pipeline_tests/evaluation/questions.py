"""Golden sets for tests: questions about documents that are in a knowledge base, without a corpus of their own."""

import json
from collections.abc import Mapping
from pathlib import Path

from rag_pipeline.core.golden import GoldenSet
from rag_pipeline.evaluation.dataset import read_dataset
from rag_pipeline.evaluation.golden_sets import attach
from rag_pipeline_tests.stages.runner import KB, Runner

WORDS = ("kestrel", "merlin", "osprey", "buzzard", "harrier", "falcon", "eagle", "hobby", "goshawk", "vulture", "kite")


def text_of(word: str) -> str:
    return f"The {word}s were counted at the station."


def write_questions(
    folder: Path, relevant: Mapping[str, str], *, answers: Mapping[str, tuple[str, str]] | None = None
) -> Path:
    """A set without documents: question -> name of its document, question -> (document, answer)."""
    folder.mkdir(parents=True, exist_ok=True)
    questions = list(relevant)
    rows = [json.dumps({"_id": f"q{place}", "text": question}) for place, question in enumerate(questions)]
    (folder / "queries.jsonl").write_text("\n".join(rows), "utf-8")
    judged = [f"q{place}\t{relevant[question]}\t1" for place, question in enumerate(questions)]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]), "utf-8")
    spans = [
        {"qid": f"q{questions.index(question)}", "doc": document, "start": 0, "end": 1, "answer": answer}
        for question, (document, answer) in (answers or {}).items()
    ]
    (folder / "evidence.jsonl").write_text("\n".join(map(json.dumps, spans)), "utf-8")
    return folder


def attached(runner: Runner, folder: Path) -> GoldenSet:
    return attach(runner.services, KB, read_dataset(folder))


def birds(runner: Runner, tmp_path: Path, *, question: str = "were {}s counted") -> GoldenSet:
    """A document for each bird, and a question for each document."""
    documents = [runner.submit(f"{word}.txt", text_of(word)) for word in WORDS]
    assert runner.run(*documents).ready == len(WORDS)
    return attached(runner, write_questions(tmp_path / "birds", {question.format(word): word for word in WORDS}))
