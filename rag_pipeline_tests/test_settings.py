import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings

TYPO = "RAG_BATCH_MAX_DOCS is no setting and has no effect: do you mean RAG_BATCH_MAX_DOCUMENTS?"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without `.env`, and an environment without variables of ours."""
    for name in os.environ:
        if name.upper().startswith("RAG_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("make", [Settings, Settings.load], ids=["the class", "load"])
def test_a_value_of_no_setting_is_refused(make: type[Settings]) -> None:
    assert make(batch_max_documents=3).batch_max_documents == 3
    with pytest.raises(ConfigurationError, match="no setting batch_max_docs: do you mean RAG_BATCH_MAX_DOCUMENTS"):
        make(batch_max_docs=3)
    with pytest.raises(ConfigurationError, match=r"no setting qqq$"):
        make(qqq=1)


def test_a_malformed_value_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_CHUNK_TOKENS", "many")
    with pytest.raises(ConfigurationError, match="RAG_CHUNK_TOKENS='many'"):
        Settings.load()


@pytest.mark.parametrize("name", ["RAG_ANALYZER", "RAG_NEXT_ANALYZER"])
def test_an_analyzer_that_nobody_has_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "foo")
    with pytest.raises(ConfigurationError, match=f"{name}='foo'.*multilingual-1, standard"):
        Settings.load()
    for known in ("jieba", "multilingual-0"):
        monkeypatch.setenv(name, known)
        assert Settings.load()


def test_variables_of_no_setting_are_found_in_the_environment_and_in_the_file(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings.unknown_variables() == []
    monkeypatch.setenv("RAG_BATCH_MAX_DOCS", "3")
    monkeypatch.setenv("rag_chunk_tokens", "64")
    monkeypatch.setenv("OTHER_NAME", "x")
    (nowhere / ".env").write_text("RAG_QQQ=1\nRAG_CHAT_MODEL=m\nELSE=2\n")
    assert Settings.unknown_variables() == [TYPO, "RAG_QQQ is no setting and has no effect"]
    settings = Settings.load()
    assert (settings.chunk_tokens, settings.chat_model, settings.batch_max_documents) == (64, "m", 256)


def test_another_process_has_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(chunk_tokens=64, chunk_max_tokens=96, chunk_overlap_tokens=8)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.unknown_variables() == []
    assert Settings.load().as_environment() == settings.as_environment()


def test_the_command_line_warns_once_beside_its_output(nowhere: Path) -> None:
    (nowhere / "a.txt").write_text("Some text.")
    done = subprocess.run(
        [sys.executable, "-m", "rag_pipeline.cli.main", "inspect", "a.txt", "--json"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "RAG_BATCH_MAX_DOCS": "3", "COLUMNS": "200"},
        cwd=nowhere,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr.count(TYPO) == 1
    assert done.stdout.startswith('{"file": "a.txt", "status": "ok"')
