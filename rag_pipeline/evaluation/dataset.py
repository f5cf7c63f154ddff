"""A retrieval test set in the BEIR layout: a folder with `queries.jsonl`, `qrels.tsv` and documents.

Documents are the lines of `corpus.jsonl` (`_id`, `title`, `text`), which are written as files, or the files of `pdfs/`,
judged page by page under the id `NAME#pNNNN`. `evidence.jsonl` says where the answers are: a span of characters of a
document's text (`start`, `end`), or a page.
"""

import hashlib
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_pipeline.errors import ConfigurationError

TITLE_SEARCHED = 300
"""A title that these first characters of the text have is not put in front again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where an answer stands in the text of a document, in characters."""

    document: str
    start: int
    end: int
    text: str | None = None
    """What stands there, where the file says it (`answer`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Questions with their right answers."""

    name: str
    folder: Path
    queries: Mapping[str, str]
    """Text by id, judged ones only, in the order of the file."""
    relevant: Mapping[str, Mapping[str, int]]
    """Grades of the relevant documents (or pages) by query id."""
    spans: Mapping[str, Span]
    """Answers by query id; empty without `evidence.jsonl` or where it has pages."""

    @property
    def has_pages(self) -> bool:
        """Whether the judged unit is a page of a PDF."""
        return (self.folder / "pdfs").is_dir()


def read_dataset(folder: Path, *, most_queries: int | None = None) -> Dataset:
    """Read the questions.

    Args:
        folder: in the BEIR layout.
        most_queries: that many, spread evenly over the file; None: all.

    Raises:
        ConfigurationError: a file is missing or has another layout.
    """
    try:
        relevant = _relevant(folder / "qrels.tsv")
        queries = {row["_id"]: row["text"] for row in _rows(folder / "queries.jsonl") if relevant.get(row["_id"])}
        evidence = folder / "evidence.jsonl"
        spans = {
            row["qid"]: Span(document=row["doc"], start=row["start"], end=row["end"], text=row.get("answer"))
            for row in (_rows(evidence) if evidence.is_file() else ())
            if "start" in row
        }
    except OSError as error:
        raise _no_test_set(folder, f"{error.filename}: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise _no_test_set(folder, repr(error)) from error
    if not queries:
        raise _no_test_set(folder, "no question is judged")
    chosen = list(queries)
    if most_queries is not None and most_queries < len(chosen):
        chosen = [chosen[place * len(chosen) // most_queries] for place in range(most_queries)]
    return Dataset(
        name=folder.resolve().name,
        folder=folder,
        queries={query_id: queries[query_id] for query_id in chosen},
        relevant={query_id: relevant[query_id] for query_id in chosen},
        spans={query_id: spans[query_id] for query_id in chosen if query_id in spans},
    )


def _no_test_set(folder: Path, reason: str) -> ConfigurationError:
    wanted = "queries.jsonl, qrels.tsv, and corpus.jsonl or pdfs/"
    return ConfigurationError(f"{folder} is no test set: {reason} (wanted: {wanted})")


def write_documents(dataset: Dataset, target: Path) -> dict[str, Path]:
    """The documents as files, by id: the PDFs themselves, or the corpus written to `target`.

    A text with a title becomes HTML with a heading, so that the title goes the way of every heading; others are plain
    text. Files that are there already are not written again.
    """
    if dataset.has_pages:
        return {path.stem: path for path in sorted((dataset.folder / "pdfs").glob("*.pdf"))}
    target.mkdir(parents=True, exist_ok=True)
    written = {}
    for row in _rows(dataset.folder / "corpus.jsonl"):
        title, text = (row.get("title") or "").strip(), row["text"]
        has_heading = bool(title) and title not in text[:TITLE_SEARCHED]
        # Ids may hold anything; the name says which document it is and differs where they do.
        name = f"{_letters(row['_id'])}-{hashlib.sha256(row['_id'].encode()).hexdigest()[:8]}"
        path = target / f"{name}{'.html' if has_heading else '.txt'}"
        if not path.exists():
            path.write_text(_page(title, text) if has_heading else text, "utf-8")
        written[row["_id"]] = path
    return written


def texts(dataset: Dataset, ids: Sequence[str]) -> dict[str, str]:
    """The texts of corpus documents."""
    wanted = set(ids)
    return {row["_id"]: row["text"] for row in _rows(dataset.folder / "corpus.jsonl") if row["_id"] in wanted}


def _page(title: str, text: str) -> str:
    paragraphs = "".join(f"<p>{html.escape(line)}</p>\n" for line in text.splitlines() if line.strip())
    return f'<!doctype html><meta charset="utf-8"><h1>{html.escape(title)}</h1>\n{paragraphs}'


def _letters(text: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in text)[:60]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _relevant(path: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in path.read_text("utf-8").splitlines()[1:]:
        query_id, document_id, grade = line.split("\t")
        if int(grade) > 0:
            found.setdefault(query_id, {})[document_id] = int(grade)
    return found
