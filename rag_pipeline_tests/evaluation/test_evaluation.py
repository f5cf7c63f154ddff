"""The evaluation on real servers, with the default embedder."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.schema import migrate
from rag_pipeline.errors import InternalError
from rag_pipeline.evaluation.dataset import read_dataset
from rag_pipeline.evaluation.evaluation import EvaluationMode, Report, differences, evaluate
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.evaluation.beir import CORPUS, write_set
from rag_pipeline_tests.files import pdf

MODES: tuple[EvaluationMode, ...] = ("dense", "bm25", "hybrid")


@pytest.fixture
def system(settings: Settings) -> Iterator[tuple[Services, RagClient]]:
    migrate(settings.require_postgres())
    MinioObjectStore.from_settings(settings).ensure_bucket()
    with Services.from_settings(settings) as services, RagClient(settings) as client:
        yield services, client


def run(system: tuple[Services, RagClient], folder: Path, scratch: Path) -> Report:
    services, client = system
    return evaluate(services, client, read_dataset(folder), scratch=scratch, modes=MODES, progress=lambda *_: None)


def test_a_corpus_is_ingested_once_and_its_questions_are_answered(
    system: tuple[Services, RagClient], tmp_path: Path
) -> None:
    folder = write_set(tmp_path / "machines")
    report = run(system, folder, tmp_path / "files")
    assert (report.dataset, report.documents, report.queries, report.failures) == ("machines", 3, 2, ())
    assert report.documents_per_second is not None
    assert list(report.modes) == list(MODES)
    for mode in report.modes.values():
        assert mode.means["recall@100"] == 1.0
        assert mode.means["span_hit@10"] == 1.0
        assert 0 < mode.p50_milliseconds <= mode.p95_milliseconds
    assert report.modes["bm25"].means["ndcg@10"] == 1.0
    assert report.settings["analyzer"] == "multilingual-1"

    again = run(system, folder, tmp_path / "files")
    assert again.documents_per_second is None
    assert {name: mode.means for name, mode in again.modes.items()} == {
        name: mode.means for name, mode in report.modes.items()
    }


def test_answers_are_found_in_a_text_that_begins_with_a_byte_order_mark(
    system: tuple[Services, RagClient], tmp_path: Path
) -> None:
    corpus = [dict(row) for row in CORPUS]
    corpus[1]["text"] = "\ufeff" + CORPUS[1]["text"]
    folder = write_set(tmp_path / "marked", corpus=corpus)
    assert run(system, folder, tmp_path / "files").modes["bm25"].means["span_hit@1"] == 1.0


def test_a_passage_without_the_whole_answer_is_no_hit(system: tuple[Services, RagClient], tmp_path: Path) -> None:
    corpus = [dict(row) for row in CORPUS]
    corpus[0]["text"] = CORPUS[0]["text"] + "\n" + "Another sentence about the pump. " * 200
    folder = write_set(tmp_path / "long", corpus=corpus)
    rows = [json.loads(line) for line in (folder / "evidence.jsonl").read_text("utf-8").splitlines()]
    rows[0]["end"] = len(corpus[0]["text"])
    (folder / "evidence.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    report = run(system, folder, tmp_path / "files")
    assert report.modes["bm25"].means["recall@10"] == 1.0
    assert report.modes["bm25"].means["span_hit@10"] == 0.5


def test_pages_of_pdf_files_are_judged(system: tuple[Services, RagClient], tmp_path: Path) -> None:
    folder = write_set(tmp_path / "pages")
    (folder / "corpus.jsonl").unlink()
    (folder / "evidence.jsonl").unlink()
    (folder / "pdfs").mkdir()
    (folder / "pdfs" / "PUMP.pdf").write_bytes(pdf(["Nothing to see.", "The pump is serviced every 4000 hours."]))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tPUMP#p0002\t1\n")
    report = run(system, folder, tmp_path / "files")
    assert report.modes["bm25"].means["page_hit@10"] == 1.0
    assert report.misses == {mode: [] for mode in MODES}


def test_files_that_fail_are_named_and_a_set_of_which_nothing_is_left_is_an_error(
    system: tuple[Services, RagClient], tmp_path: Path
) -> None:
    folder = write_set(tmp_path / "damaged")
    (folder / "evidence.jsonl").unlink()
    (folder / "pdfs").mkdir()
    (folder / "pdfs" / "BAD.pdf").write_bytes(b"%PDF-1.4 damaged")
    with pytest.raises(InternalError, match=r"BAD\.pdf"):
        run(system, folder, tmp_path / "files")
    (folder / "pdfs" / "PUMP.pdf").write_bytes(pdf(["The pump is serviced every 4000 hours."]))
    report = run(system, folder, tmp_path / "files")
    assert len(report.failures) == 1
    assert "BAD.pdf" in report.failures[0]


def test_two_reports_are_compared_measure_by_measure(system: tuple[Services, RagClient], tmp_path: Path) -> None:
    report = run(system, write_set(tmp_path / "machines"), tmp_path / "files")
    earlier = json.loads(report.as_json())
    assert all("(+0.0000)" in line for line in differences(earlier, report))
    earlier["modes"]["dense"]["means"]["recall@10"] = 0.25
    assert "dense recall@10: 0.2500 -> 1.0000 (+0.7500)" in differences(earlier, report)
    del earlier["modes"]["bm25"]
    assert not any(line.startswith("bm25") for line in differences(earlier, report))
