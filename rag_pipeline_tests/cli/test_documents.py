"""`submit`, `status`, `documents` and `retry` as a user types them."""

import getpass
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_pipeline.core.documents import Status
from rag_pipeline.errors import (
    ConfigurationError,
    CorruptDocumentError,
    EmbeddingUnavailableError,
    ResourceNotFoundError,
)
from rag_pipeline.settings import Settings
from rag_pipeline_tests.adapters.postgres.rows import fail
from rag_pipeline_tests.cli.commands import Command, command_on, lines
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.stages.runner import KB, Runner, running


@pytest.fixture(scope="module")
def runner(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with own_settings(servers, tmp_path_factory.mktemp("cli")) as own, running(own) as found:
        yield found


@pytest.fixture
def command(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Command:
    return command_on(runner.system.settings, monkeypatch)


def test_submit_keeps_the_given_path_and_metadata(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "submit.txt").write_text("Some text.")
    monkeypatch.chdir(tmp_path)
    submit = ("submit", "docs/submit.txt", "--kb", KB, "--json", "--metadata")
    (document,) = lines(command(*submit, "lang=en", "--metadata", "year=2020"))
    assert document["created_by"] == getpass.getuser()
    assert (document["source_path"], document["metadata"]) == ("docs/submit.txt", {"lang": "en", "year": 2020})
    (again,) = lines(command(*submit, 'allowed_to=["alice"]', "--by", "alice"))
    assert (again["id"], again["duplicate"], again["metadata"]) == (document["id"], True, {"allowed_to": ["alice"]})
    assert isinstance(command(*submit, "lang").exception, ConfigurationError)
    nothing_made = command("submit", "docs/submit.txt", "--kb", "never", "--metadata", "lang")
    assert isinstance(nothing_made.exception, ConfigurationError)
    assert isinstance(command("status", "--kb", "never").exception, ResourceNotFoundError)
    (tmp_path / "by.txt").write_text("Another text.")
    (other,) = lines(command("submit", "by.txt", "--kb", KB, "--json", "--by", "bob"))
    assert other["created_by"] == "bob"


def test_what_is_tried_again_by_itself_is_shown_with_its_time(runner: Runner, command: Command) -> None:
    passing, for_good = runner.submit("passing.txt", "One."), runner.submit("for-good.txt", "Two.")
    errors = {
        passing.id: EmbeddingUnavailableError("HTTP 429"),
        for_good.id: CorruptDocumentError("the table of contents is damaged"),
    }
    fail(runner.services.facts, errors)
    retry_at = runner.now(passing).retry_at
    assert retry_at is not None
    for name in ("documents", "status"):
        shown = command(name, "--kb", KB).stdout
        assert f"HTTP 429 retries at {retry_at.astimezone():%H:%M:%S}" in shown
        assert (shown.count("retries at"), shown.count("the table of contents is damaged")) == (1, 1)
    assert runner.now(for_good).status is Status.FAILED
    (again,) = lines(command("retry", passing.id, "--json"))
    assert (again["id"], again["status"], again["retry_at"]) == (passing.id, "PENDING", None)
    assert command("retry", for_good.id).stdout.startswith("for-good.txt is PENDING\nits error was permanent")


def test_retry_waits_for_the_end(runner: Runner, command: Command) -> None:
    document = runner.submit("wait.txt", "Some text.")
    facts = runner.services.facts
    fail(facts, {document.id: CorruptDocumentError("it is damaged")})
    ended = threading.Timer(1.0, lambda: fail(facts, {document.id: CorruptDocumentError("it is damaged")}))
    ended.start()
    result = command("retry", document.id, "--wait", "--json")
    ended.join()
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["message"] == "it is damaged"


def test_names_that_look_like_emoji_are_shown_as_they_are(runner: Runner, command: Command) -> None:
    runner.submit("root:x:0.txt", "One.")
    assert "root:x:0.txt" in command("documents", "--kb", KB, "--page-size", "1000").stdout
    assert "no document here" in command("documents", "--kb", KB, "--page", "99").stdout


def test_an_error_of_the_file_system_is_one_line(runner: Runner, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "rag_pipeline.cli.main", "evaluate", str(tmp_path)]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert str(tmp_path) in "".join(ended.stderr.split("\n"))
