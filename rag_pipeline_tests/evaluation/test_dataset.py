from pathlib import Path

import pytest

from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.evaluation.dataset import Span, read_dataset, write_documents
from rag_pipeline.parsing.registry import parse_file
from rag_pipeline_tests.evaluation.beir import CORPUS, write_set


def test_judged_questions_with_their_answers_are_read(tmp_path: Path) -> None:
    dataset = read_dataset(write_set(tmp_path / "machines"))
    assert dataset.name == "machines"
    assert list(dataset.queries) == ["q1", "q2"]
    assert dataset.relevant == {"q1": {"pump": 1}, "q2": {"valve/2": 1}}
    assert dataset.spans["q1"] == Span(document="pump", start=21, end=37)
    assert not dataset.has_pages


def test_a_few_questions_are_spread_over_the_file(tmp_path: Path) -> None:
    assert list(read_dataset(write_set(tmp_path), most_queries=1).queries) == ["q1"]
    assert len(read_dataset(tmp_path, most_queries=5).queries) == 2


def test_documents_keep_their_text_and_a_title_becomes_a_heading(tmp_path: Path) -> None:
    dataset = read_dataset(write_set(tmp_path / "set"))
    files = write_documents(dataset, tmp_path / "files")
    assert list(files) == [row["_id"] for row in CORPUS]
    parsed = parse_file(ParseRequest(path=files["pump"], file_name=files["pump"].name))
    first = parsed.blocks[0]
    assert (first.type, parsed.text[first.start : first.end]) == ("heading", "Pump P-7")
    assert files["valve/2"].read_text("utf-8") == CORPUS[1]["text"]


def test_files_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    dataset = read_dataset(write_set(tmp_path / "set"))
    files = write_documents(dataset, tmp_path / "files")
    before = {path: path.stat().st_mtime_ns for path in files.values()}
    write_documents(dataset, tmp_path / "files")
    assert {path: path.stat().st_mtime_ns for path in files.values()} == before


@pytest.mark.parametrize("name", ["queries.jsonl", "qrels.tsv"])
def test_a_folder_that_is_no_test_set_is_named(tmp_path: Path, name: str) -> None:
    write_set(tmp_path)
    (tmp_path / name).write_text("neither\tone nor the other\n")
    with pytest.raises(ConfigurationError, match=r"is no test set.*wanted: queries\.jsonl"):
        read_dataset(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere is no test set: .*qrels\.tsv: No such file or directory"):
        read_dataset(tmp_path / "nowhere")
