import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rag_pipeline.cli import questions
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline_tests.model_server import ModelServer
from rag_pipeline_tests.query.library import LIBRARY, OTHER, Library

ESCAPE = "\x1b"


@pytest.fixture
def models() -> Iterator[ModelServer]:
    with ModelServer(answer=f"It is {ESCAPE}400 euro per year [source 1]. Not [source 77].") as server:
        yield server


def environment(library: Library, models: ModelServer | None = None) -> dict[str, str]:
    """What a user's shell would have set."""
    settings = library.settings
    if models is not None:
        settings = settings.model_copy(update={"chat_url": models.url, "chat_model": "m"})
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAG_")}
    return {**kept, **settings.as_environment(), "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}


def rag_pipeline(
    arguments: Sequence[str], env: Mapping[str, str], folder: Path, *, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rag_pipeline.cli.main", *arguments],
        env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_ask_shows_the_answer_and_then_its_sources(library: Library, models: ModelServer, tmp_path: Path) -> None:
    arguments = ["ask", "What is the deposit?", "--kb", LIBRARY, "--document", "pump.pdf"]
    printed = rag_pipeline(arguments, environment(library, models), tmp_path).stdout
    assert printed.startswith("It is 400 euro per year [1]. Not .\n\nSources\n[1] pump.pdf, pages 1-3\n")
    assert "note taken out of the answer: [source 77]" in printed
    answer = json.loads(rag_pipeline([*arguments, "--json"], environment(library, models), tmp_path).stdout)
    assert answer["kind"] == "generated"
    assert answer["citations"][0]["source_path"] == "pump.pdf"


def test_ask_streams_tokens_as_they_come(library: Library, models: ModelServer, tmp_path: Path) -> None:
    models.hang_after = 4
    process = subprocess.Popen(
        [sys.executable, "-m", "rag_pipeline.cli.main", "ask", "deposit?", "--kb", LIBRARY, "--stream"],
        env={**environment(library, models), "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        seen = b""
        while b"400" not in seen:
            piece = process.stdout.read(1)
            assert piece, "the process has ended"
            seen += piece
        assert not models.client_gone.is_set(), "the model has not finished"
        models.stopping.set()
        rest = process.stdout.read()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert b"Sources" in rest
    assert b"without answer" in rest, "the stream broke off, and the user is told"


def test_pieces_of_an_answer_are_lines_for_scripts(library: Library, models: ModelServer, tmp_path: Path) -> None:
    arguments = ["ask", "What is the deposit?", "--kb", LIBRARY, "--document", "pump.pdf", "--stream", "--json"]
    printed = rag_pipeline(arguments, environment(library, models), tmp_path).stdout
    *pieces, answer = map(json.loads, printed.splitlines())
    assert len(pieces) > 3
    assert "".join(piece["piece"] for piece in pieces) == answer["text"]
    assert answer["citations"][0]["source_path"] == "pump.pdf"


def test_without_a_chat_model_ask_says_what_it_shows(library: Library, tmp_path: Path) -> None:
    arguments = ["ask", "How often is the wiper blade replaced?", "--kb", LIBRARY, "--document", "pump.pdf"]
    printed = rag_pipeline(arguments, environment(library), tmp_path).stdout
    assert "every 75 days. [1]" in printed
    assert "sentences of the sources, word for word" in printed


def test_a_conversation_from_the_command_line(library: Library, models: ModelServer, tmp_path: Path) -> None:
    env = environment(library, models)
    arguments = ["ask", "What is the deposit?", "--kb", LIBRARY, "--json", "--conversation"]
    first = json.loads(rag_pipeline([*arguments, "new"], env, tmp_path).stdout)
    second = json.loads(rag_pipeline([*arguments, first["conversation_id"]], env, tmp_path).stdout)
    assert second["conversation_id"] == first["conversation_id"]
    assert [message["role"] for message in models.chats[-1]["messages"]] == ["system", "user", "assistant", "user"]


def test_search_with_filters_and_trace(library: Library, tmp_path: Path) -> None:
    arguments = ["search", "deposit", "--kb", LIBRARY, "--json", "--trace", "--filter", "name=lease.md"]
    *results, trace = map(json.loads, rag_pipeline(arguments, environment(library), tmp_path).stdout.splitlines())
    assert [result["source_path"] for result in results] == ["lease.md"]
    assert trace["milliseconds"] == round(trace["milliseconds"], 1)
    refused = rag_pipeline([*arguments[:-1], "name"], environment(library), tmp_path, code=1)
    assert "name=value" in refused.stderr


def test_a_document_is_looked_for_in_the_knowledge_base_that_is_asked(library: Library, tmp_path: Path) -> None:
    arguments = ["search", "deposit", "--document", "secret.pdf", "--json", "--kb"]
    found = rag_pipeline([*arguments, OTHER], environment(library), tmp_path).stdout
    assert {json.loads(line)["source_path"] for line in found.splitlines()} == {"secret.pdf"}
    refused = rag_pipeline([*arguments, LIBRARY], environment(library), tmp_path, code=1)
    assert "there is no document 'secret.pdf'" in refused.stderr


def test_evidence_is_written_to_a_file(library: Library, tmp_path: Path) -> None:
    env = environment(library)
    found = rag_pipeline(["search", "deposit", "--kb", OTHER, "--json", "--top-k", "1"], env, tmp_path).stdout
    chunk_id = json.loads(found)["chunk_id"]
    printed = rag_pipeline(["evidence", chunk_id], env, tmp_path).stdout
    assert printed.startswith(f"{chunk_id}.png: ")
    assert (tmp_path / f"{chunk_id}.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads(rag_pipeline(["evidence", chunk_id, "--json", "-o", "page.png"], env, tmp_path).stdout)
    assert written == {"path": "page.png", "bytes": (tmp_path / "page.png").stat().st_size}
    refused = rag_pipeline(["evidence", chunk_id, "--kb", LIBRARY, "-o", "x.png"], env, tmp_path, code=1)
    assert "not_found" in refused.stderr
    assert not (tmp_path / "x.png").exists()


RESULT = RetrievalResult(
    rank=1,
    score=0.03,
    chunk_id="abc_1_0",
    document_id="abc",
    kb_id="kb",
    version=1,
    file_name="costs.md",
    source_path="costs.md",
    text="## Parts\n\nPrices of\nthe parts.\n\n| part | euro |\n| --- | --- |\n| pump | 1200 |\n| blade | 35 |",
    start=0,
    end=10,
    parent_id="abc_1_s0",
    heading_path=("Costs", "Parts"),
    page=None,
    page_end=None,
    channels={"bm25": 1},
    metadata={},
)


def test_tables_keep_their_lines_and_the_heading_comes_once(capsys: pytest.CaptureFixture[str]) -> None:
    questions.print_results([RESULT])
    assert capsys.readouterr().out.splitlines() == [
        "1. costs.md, section Costs > Parts  score 0.0300",
        "   Prices of the parts.",
        "   | part | euro |",
        "   | pump | 1200 |",
        "   | blade | 35 |",
        "   abc_1_0",
    ]


def test_long_passages_are_cut_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    questions.print_results([replace(RESULT, text="\x1b]0;title\x07" + "word " * 1_000)])
    printed = capsys.readouterr().out
    assert len(printed) < questions.SHOWN_CHARACTERS + 200
    assert "\x1b" not in printed
    assert "..." in printed
    questions.print_results([replace(RESULT, text="\n".join(f"| row {number} |" for number in range(100)))])
    assert len(capsys.readouterr().out.splitlines()) == questions.SHOWN_LINES + 3
