"""Whether BM25 alone finds exact words: with the default analysis, and when analysis and index disagree."""

import pytest

from rag_pipeline.adapters import milvus_schema
from rag_pipeline.core.ports import CollectionGeneration
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.settings import Settings
from rag_pipeline.stages import self_test
from rag_pipeline.stages.self_test import PROBES, missed_terms, told
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.stages.runner import Runner, running


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milvus Lite shows rows at once."""
    monkeypatch.setattr(self_test, "VISIBLE_SECONDS", 0.0)


def collections(runner: Runner) -> list[str]:
    from pymilvus import MilvusClient

    from rag_pipeline.adapters.milvus import GRPC_OPTIONS

    uri, token = runner.system.settings.require_milvus()
    client = MilvusClient(uri, token=token, dedicated=True, grpc_options=GRPC_OPTIONS)
    try:
        return [name for name in client.list_collections() if "self_test" in name]
    finally:
        client.close()


def test_chinese_and_english_words_are_found_by_the_default_analysis_and_nothing_stays(settings: Settings) -> None:
    with running(settings, analyzer=clean_settings().analyzer) as runner:
        assert missed_terms(runner.services) == ()
        assert collections(runner) == []
        assert told((), "multilingual-1") == "BM25 finds exact words, Chinese and English."


def test_a_tokenizer_that_is_deaf_to_chinese_is_told(runner: Runner) -> None:
    """Milvus Lite's `standard` takes a Chinese sentence for one word."""
    missed = missed_terms(runner.services)
    assert [probe.language for probe in missed] == ["Chinese"]
    assert "the analyzer standard does not find 保养 (Chinese)" in told(missed, "standard")
    assert collections(runner) == []


def test_rows_and_questions_that_are_analysed_differently_are_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysed, calls = milvus_schema.analysed, []

    def rows_of_another_release(text: str, generation: CollectionGeneration) -> str:
        calls.append(text)
        words = analysed(text, generation)
        return words.upper()[::-1] if text in {probe.text for probe in PROBES} else words

    monkeypatch.setattr(milvus_schema, "analysed", rows_of_another_release)
    with running(settings, analyzer=clean_settings().analyzer) as runner:
        assert missed_terms(runner.services) == PROBES
        assert {probe.term for probe in PROBES} < set(calls)


def test_a_word_that_finds_too_much_is_told(settings: Settings) -> None:
    with running(settings, analyzer=clean_settings().analyzer) as runner:
        vague = (PROBES[1], self_test.Probe(language="other", text="Another impeller.", term="another"))
        assert missed_terms(runner.services, probes=vague) == (PROBES[1],)


def test_an_analyzer_that_there_is_not_is_refused(settings: Settings) -> None:
    with running(settings, analyzer="no such tokenizer") as runner, pytest.raises(ConfigurationError):
        missed_terms(runner.services)
