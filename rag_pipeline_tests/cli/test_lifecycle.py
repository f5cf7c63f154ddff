"""`cancel`, `delete`, `deletions`, `node-log` and `reconcile` as a user types them."""

import json
from collections.abc import Iterator

import pytest

from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings
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


def test_cancel_of_a_document_and_of_the_whole(runner: Runner, command: Command) -> None:
    first, second = runner.submit("cancel-1.txt", "One."), runner.submit("cancel-2.txt", "Two.")
    (canceled,) = lines(command("cancel", first.id, "--reason", "wrong", "--json"))
    assert (canceled["status"], canceled["cancel_reason"]) == ("CANCELED", "wrong")
    assert "cancel-1.txt is CANCELED" in command("cancel", "cancel-1.txt").stdout
    assert lines(command("cancel", "--kb", KB, "--json")) == [{"knowledge_base": KB, "canceled": 1}]
    assert runner.now(second).status is Status.CANCELED


@pytest.mark.parametrize("arguments", [(), ("a.txt", "--kb", KB)], ids=["neither", "both"])
def test_one_target_is_named(command: Command, arguments: tuple[str, ...]) -> None:
    for name in ("cancel", "delete"):
        assert isinstance(command(name, *arguments).exception, ConfigurationError)


def test_delete_asks_and_shows_how_far_it_is(runner: Runner, command: Command) -> None:
    document = runner.submit("delete.txt", "To be deleted.")
    runner.run_queued()
    for answer in ("n\n", ""):
        refused = command("delete", document.id, answer=answer)
        assert refused.exit_code == 1
        assert "nothing was deleted; --yes" in refused.stdout
    assert runner.now(document).status is Status.READY
    (deletion,) = lines(command("delete", document.id, "--json", "--reason", "old"))
    assert (deletion["name"], deletion["finished_at"]) == ("delete.txt", None)
    assert "deleting document delete.txt" in command("deletions", "--unfinished").stdout
    runner.remove()
    assert command("deletions", "--unfinished", "--json").stdout == ""
    assert "every deletion is finished" in command("deletions", "--unfinished").stdout
    assert "deleted document delete.txt" in command("delete", document.id, "--yes", "--wait").stdout
    assert "1 vectors" in command("deletions").stdout


def test_node_log_shows_every_stage_with_input_and_output(runner: Runner, command: Command) -> None:
    document = runner.submit("log.txt", "Some text for the log.")
    runner.run_queued()
    entries = lines(command("node-log", document.id, "--json"))
    assert [entry["node"] for entry in entries] == [stage.value for stage in Stage]
    assert {entry["status"] for entry in entries} == {"SUCCESS"}
    assert entries[2]["input_summary"]["characters"] == len("Some text for the log.")
    shown = command("node-log", "log.txt").stdout
    assert "log.txt: READY, version 1, 100%" in shown
    assert "embeddings" in shown


def test_reconcile_exits_with_1_until_it_is_repaired(runner: Runner, command: Command) -> None:
    document = runner.submit("reconcile.txt", "Some text that is reconciled.")
    runner.run_queued()
    runner.services.snapshots.delete(document.kb_id, document.id)
    result = command("reconcile")
    assert result.exit_code == 1
    assert "1 snapshots missing, 0 repaired" in result.stdout
    repaired = command("reconcile", "--repair", "--json")
    assert repaired.exit_code == 0
    assert json.loads(repaired.stdout)["drift"][0]["repaired"] == 1
    assert "the stores agree" in command("reconcile").stdout
