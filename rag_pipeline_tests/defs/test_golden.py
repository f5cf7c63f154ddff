"""The asset, the check and the schedule of golden sets, and the asset of the next generation that asks them."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from rag_pipeline.defs.generation import index_generation
from rag_pipeline.defs.golden import quality_schedule, retrieval_quality, retrieval_quality_holds
from rag_pipeline.defs.resources import ServicesResource
from rag_pipeline.evaluation.golden_sets import refusal
from rag_pipeline.settings import Settings
from rag_pipeline.stages.generation import build_generation, start_generation
from rag_pipeline_tests.evaluation.questions import WORDS, attached, birds, write_questions
from rag_pipeline_tests.stages.runner import KB, Runner, running


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    with running(settings) as found:
        yield found


def resources(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a run on these settings has."""
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    return {"services": ServicesResource()}


def figures_of(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    (event,) = result.get_asset_materialization_events()
    return {key: value.value for key, value in event.materialization.metadata.items()}


def test_a_fall_fails_the_check_until_it_is_accepted(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = birds(runner, tmp_path)
    own = resources(runner.system.settings, monkeypatch)

    def materialized() -> tuple[dict[str, object], dg.AssetCheckEvaluation]:
        result = dg.materialize([retrieval_quality, retrieval_quality_holds], resources=own)
        return figures_of(result), result.get_asset_check_evaluations()[0]

    figures, check = materialized()
    assert figures[f"{KB}/bm25/ndcg@10"] == 1.0
    assert figures[f"{KB}/questions"] == len(WORDS)
    assert check.passed
    runner.system.client.delete(runner.system.client.document("kestrel.txt").id)
    figures, check = materialized()
    assert figures[f"{KB}/missing_documents"] == 1
    assert not check.passed
    assert check.description is not None
    assert check.description.startswith(f"birds on {KB}: ")
    assert "bm25 ndcg@10 1.000 -> 0.909 (-0.091)" in check.description
    assert "lacks kestrel" in check.description
    assert not materialized()[1].passed, "a fall does not become what is compared with"
    runner.services.facts.golden_sets.accept(golden)
    assert materialized()[1].passed


def test_without_a_set_the_schedule_starts_nothing_and_the_asset_says_so(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = resources(runner.system.settings, monkeypatch)
    result = dg.materialize([retrieval_quality, retrieval_quality_holds], resources=own)
    assert list(figures_of(result)) == ["note"]
    assert result.get_asset_check_evaluations()[0].passed
    context = dg.build_schedule_context(resources={"services": runner.services})
    assert isinstance(quality_schedule(context), dg.SkipReason)
    attached(runner, write_questions(tmp_path / "one", {"kestrel": "kestrel"}))
    assert isinstance(quality_schedule(context), dg.RunRequest)


def test_a_collection_that_answers_worse_does_not_get_to_answer(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer `standard` knows no word forms: "kestrels" is not found by "kestrel"."""
    with running(settings, analyzer="multilingual-1", next_analyzer="standard") as runner:
        birds(runner, tmp_path, question="{}")
        start_generation(runner.services)
        own = resources(runner.system.settings, monkeypatch)
        result = dg.materialize([index_generation], resources=own, raise_on_error=False)
        assert not result.success
        (failed,) = (event for event in result.all_events if event.is_step_failure)
        failure = failed.step_failure_data.user_failure_data
        assert failure is not None
        assert failure.description is not None
        assert "the switch to it was refused: answers would get worse by more than RAG_GOLDEN_MAX_DROP=0.02" in (
            failure.description
        )
        assert f"birds on {KB}: hybrid ndcg@10 " in failure.description
        live = runner.services.facts.live_generation()
        assert live is not None
        assert live[0].analyzer == "multilingual-1"
        plan = runner.system.client.plan().next_generation
        assert plan is not None
        assert plan.refusal is not None
        assert "birds" in plan.refusal
        # Without the set nobody objects.
        assert runner.services.facts.golden_sets.detach(runner.system.client.document("kite.txt").kb_id)
        start_generation(runner.services)
        run = build_generation(runner.services, seconds=60, may_switch=refusal)
        assert run is not None
        assert run.is_switched
