"""`evaluate --attach`, `--ask`, `--accept`, `--list` and `--detach` as a user types them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_pipeline.errors import ConfigurationError, ResourceNotFoundError
from rag_pipeline.settings import Settings
from rag_pipeline_tests.cli.commands import Command, command_on, lines
from rag_pipeline_tests.evaluation.questions import write_questions
from rag_pipeline_tests.stages.runner import KB, Runner, running


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with running(settings) as found:
        yield found


@pytest.fixture
def command(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Command:
    return command_on(runner.system.settings, monkeypatch)


def test_a_set_judges_pages_or_documents(command: Command, tmp_path: Path) -> None:
    folder = write_questions(tmp_path / "mixed", {"kestrel": "kestrel", "merlin": "birds.pdf#p0002"})
    error = command("evaluate", str(folder), "--attach", KB).exception
    assert isinstance(error, ConfigurationError)
    assert "judges pages ('birds.pdf#p0002') and whole documents ('kestrel')" in str(error)


def test_a_set_on_its_way(runner: Runner, command: Command, tmp_path: Path) -> None:
    folder = str(write_questions(tmp_path / "birds", {"kestrel": "kestrel", "merlin": "merlin.txt"}))
    kestrel = runner.submit("kestrel.txt", "The kestrel and the vole.")
    runner.run(kestrel)
    assert command("evaluate", "--list", "--json").stdout == ""
    assert "no golden set is attached" in command("evaluate", "--list").stdout
    (attached,) = lines(command("evaluate", folder, "--attach", KB, "--json"))
    assert (attached["set"], attached["questions"], attached["judged"]) == ("birds", 2, "documents")
    assert attached["missing"] == ["merlin.txt"]
    assert f"{KB}: birds, 2 questions, not asked yet" in command("evaluate", "--list").stdout
    assert isinstance(command("evaluate", "--accept", KB).exception, ResourceNotFoundError)

    (asked,) = lines(command("evaluate", "--ask", KB, "--json"))
    assert asked["newest"]["figures"]["bm25"]["recall@10"] == 0.5
    assert asked["newest"]["missing"] == ["merlin.txt"]
    assert asked["fallen"] == []
    shown = command("evaluate", "--ask", KB)
    assert shown.exit_code == 0
    assert "not there, or not READY: merlin.txt" in shown.stdout
    assert "0.500 +0.000" in shown.stdout

    runner.system.client.delete(kestrel.id)
    fallen = command("evaluate", "--ask", KB)
    assert fallen.exit_code == 1
    assert "worse: bm25 ndcg@10 0.500 -> 0.000 (-0.500)" in fallen.stdout
    assert "worse: bm25" in command("evaluate", "--list").stdout
    assert lines(command("evaluate", "--accept", KB, "--json"))[0]["fallen"] == []
    assert "worse" not in command("evaluate", "--list").stdout

    assert lines(command("evaluate", "--detach", KB, "--json")) == [{"knowledge_base": KB, "detached": True}]
    assert f"{KB} has none" in command("evaluate", "--detach", KB).stdout
    error = command("evaluate", "--ask", KB).exception
    assert isinstance(error, ResourceNotFoundError)
    assert f"evaluate DIR --attach {KB}" in str(error)


def test_only_some_questions_are_attached(runner: Runner, command: Command, tmp_path: Path) -> None:
    folder = write_questions(tmp_path / "many", {f"question {number}": "a.txt" for number in range(10)})
    (attached,) = lines(command("evaluate", str(folder), "--attach", KB, "--queries", "3", "--json"))
    assert attached["questions"] == 3
    assert "3 questions about 1 documents" in command("evaluate", str(folder), "--attach", KB, "--queries", "3").stdout


@pytest.mark.parametrize(
    "arguments",
    [(), ("--attach", KB), ("DIR", "--detach", KB), ("--list", "--ask", KB), ("DIR", "--list")],
    ids=["nothing", "no folder", "folder and detach", "two", "folder and list"],
)
def test_exactly_one_thing_is_named(command: Command, arguments: tuple[str, ...]) -> None:
    error = command("evaluate", *arguments).exception
    assert isinstance(error, ConfigurationError)
    assert "--detach KB" in str(error)


def test_an_unknown_knowledge_base(command: Command, tmp_path: Path) -> None:
    folder = str(write_questions(tmp_path / "set", {"kestrel": "kestrel"}))
    for arguments in ((folder, "--attach", "nobody"), ("--detach", "nobody"), ("--ask", "nobody")):
        assert isinstance(command("evaluate", *arguments).exception, ResourceNotFoundError)
