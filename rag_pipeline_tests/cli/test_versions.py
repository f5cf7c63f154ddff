"""`plan`, `reindex --next` and `reindex --abandon` as a user types them."""

import json
from collections.abc import Iterator

import pytest

from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings
from rag_pipeline.stages.generation import build_generation
from rag_pipeline_tests.cli.commands import Command, command_on, lines
from rag_pipeline_tests.stages.runner import Runner, running

NEXT = {"next_analyzer": "multilingual-1"}


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with running(settings, **NEXT) as found:
        assert found.run(found.submit("a.txt", "The pump."), found.submit("b.txt", "The valve.")).ready == 2
        yield found


@pytest.fixture
def command(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Command:
    return command_on(runner.system.settings, monkeypatch)


def answering(runner: Runner) -> tuple[str, str]:
    live = runner.services.facts.live_generation()
    assert live is not None
    return live[0].collection.rpartition("_")[2], live[0].analyzer


def test_the_next_generation_is_planned_started_and_answers(runner: Runner, command: Command) -> None:
    assert "`rag-pipeline reindex --next` does it" in command("plan").stdout
    (plan,) = lines(command("plan", "--json"))
    assert (plan["next_generation"]["documents"], plan["next_generation"]["is_started"]) == (2, False)
    (started,) = lines(command("reindex", "--next", "--json"))
    assert started == {
        "embedder": "openai/loopback/16",
        "analyzer": "multilingual-1",
        "is_started": True,
        "refusal": None,
        "documents": 2,
        "tokens_to_embed": 0,
    }
    again = command("reindex", "--next")
    assert again.exit_code == 0
    assert "analyzer multilingual-1: 2 documents to move, at most 0 tokens to embed" in again.stdout
    assert "the asset index_generation fills it" in again.stdout
    assert answering(runner) == ("1", "standard")
    run = build_generation(runner.services, seconds=60)
    assert run is not None
    assert answering(runner) == ("2", "multilingual-1")
    refused = command("reindex", "--next").exception
    assert isinstance(refused, ConfigurationError)
    assert "move the RAG_NEXT_ values to the variables without NEXT" in str(refused)


def test_a_refusal_is_shown_until_the_generation_is_started_again(runner: Runner, command: Command) -> None:
    lines(command("reindex", "--next", "--json"))
    build_generation(runner.services, seconds=60, may_switch=lambda *_: "the answers get worse")
    assert (
        "the switch was refused: the answers get worse; `rag-pipeline reindex --next` tries" in command("plan").stdout
    )
    (plan,) = lines(command("plan", "--json"))
    assert plan["next_generation"]["refusal"] == "the answers get worse"
    assert lines(command("reindex", "--next", "--json"))[0]["refusal"] is None
    assert answering(runner) == ("1", "standard")


def test_what_was_begun_is_given_up(runner: Runner, command: Command) -> None:
    assert "no next collection is being filled" in command("reindex", "--abandon").stdout
    lines(command("reindex", "--next", "--json"))
    build_generation(runner.services, seconds=60, may_switch=lambda *_: "not yet")
    assert lines(command("reindex", "--abandon", "--json")) == [{"abandoned": True}]
    assert lines(command("reindex", "--abandon", "--json")) == [{"abandoned": False}]
    assert runner.services.facts.next_generations.filling() is None
    assert lines(command("plan", "--json"))[0]["next_generation"]["is_started"] is False
    assert build_generation(runner.services, seconds=60) is None
    assert answering(runner) == ("1", "standard")
    lines(command("reindex", "--next", "--json"))
    filling = runner.services.facts.next_generations.filling()
    assert filling is not None
    assert filling.generation.collection.endswith("_3"), "a name is never given twice"
    lines(command("reindex", "--abandon", "--json"))


def test_without_next_settings_there_is_nothing_to_move_to(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = runner.system.settings.model_copy(update=dict.fromkeys(NEXT))
    refused = command_on(settings, monkeypatch)
    monkeypatch.delenv("RAG_NEXT_ANALYZER", raising=False)
    error = refused("reindex", "--next").exception
    assert isinstance(error, ConfigurationError)
    assert "RAG_NEXT_ANALYZER" in str(error)


@pytest.mark.parametrize(
    "arguments",
    [(), ("a.txt", "--next"), ("--stale", "--next"), ("--next", "--abandon"), ("a.txt", "--abandon")],
    ids=["nothing", "document and next", "stale and next", "next and abandon", "document and abandon"],
)
def test_exactly_one_thing_is_named(command: Command, arguments: tuple[str, ...]) -> None:
    error = command("reindex", *arguments).exception
    assert isinstance(error, ConfigurationError)
    assert "--stale" in str(error)


def test_one_document_is_built_again(runner: Runner, command: Command) -> None:
    assert "nothing is stale" in command("reindex", "a.txt").stdout
    after = json.loads(command("reindex", "a.txt", "--from-stage", "chunks", "--json").stdout)
    assert (after["status"], after["version"], after["live_version"]) == ("PENDING", 2, 1)
