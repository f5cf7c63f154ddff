"""Cancel, delete, retry, submit and search at random moments against running batches; then nothing may be left over.

Seeds are printed with a failure; `RACE_SEEDS` below are those of the ordinary test run.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rag_pipeline.core.documents import Document, Status
from rag_pipeline.errors import DocumentBusyError, IllegalTransitionError, ResourceNotFoundError
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline.stages.cleanup import remove_superseded
from rag_pipeline.stages.reconcile import reconcile
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.contents import NOTHING, assert_consistent, contents
from rag_pipeline_tests.embedding_server import Answer
from rag_pipeline_tests.stages.runner import KB, Runner, running

RACE_SEEDS = range(4)
MORE_SEEDS = range(100, 130)
DOCUMENTS = 24
ACTIONS = 30
LONGEST_PAUSE_SECONDS = 0.08


@pytest.fixture(scope="module")
def runner(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with own_settings(servers, tmp_path_factory.mktemp("races")) as own, running(own) as found:
        yield found


@pytest.mark.parametrize("seed", RACE_SEEDS)
def test_random_interference_leaves_nothing_over(runner: Runner, seed: int) -> None:
    race(runner, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_more_random_interference_leaves_nothing_over(runner: Runner, seed: int) -> None:
    race(runner, seed)


def race(runner: Runner, seed: int) -> None:
    """Run batches while a second thread interferes, then settle everything and look at all stores."""
    chance = random.Random(seed)
    client = runner.system.client
    found = [runner.submit(f"{seed}-{number}.txt", f"Text {seed} {number}.") for number in range(DOCUMENTS)]
    runner.system.embedding.script(*[Answer(wait_seconds=chance.random() / 3) for _ in range(4)])
    deleted: set[str] = set()
    errors: list[BaseException] = []

    def interfere() -> None:
        try:
            for _ in range(ACTIONS):
                time.sleep(chance.random() * LONGEST_PAUSE_SECONDS)
                act(runner, chance, found, deleted)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=interfere)
    thread.start()
    while thread.is_alive():
        runner.run_queued()
        runner.remove()
    thread.join()
    if errors:
        raise errors[0]
    runner.system.embedding.forget_script()
    settle(runner)
    remaining = {document.id for document in client.documents(KB, page_size=1000)}
    assert remaining.isdisjoint(deleted)
    for each in deleted:
        assert contents(runner.services).of(each) == NOTHING
        assert client.deletion(each).finished_at is not None
    assert_consistent(runner.services)
    drift = reconcile(runner.services, repair=False, minimum_age_seconds=-60).drift
    # An attempt that was broken off leaves artefacts that only the reconciler removes.
    assert {(each.store, each.problem) for each in drift} <= {("objects", "orphaned")}
    reconcile(runner.services, repair=True, minimum_age_seconds=-60)
    assert reconcile(runner.services, repair=False, minimum_age_seconds=-60).drift == ()
    assert_consistent(runner.services)


def act(runner: Runner, chance: random.Random, found: list[Document], deleted: set[str]) -> None:
    """One thing that a person might do."""
    client = runner.system.client
    document = chance.choice(found)

    def delete() -> None:
        client.delete(document.id)
        deleted.add(document.id)
        hits = client.retrieve(KB, "text", options=RetrievalOptions(top_k=50, mode="bm25")).results
        assert deleted.isdisjoint(hit.document_id for hit in hits), "a deleted document answers"

    def submit() -> None:
        content = f"Text {document.source_path} {chance.randrange(3)}.".encode()
        client.submit(KB, content, filename=document.source_path)

    actions: list[Callable[[], object]] = [
        delete,
        lambda: client.cancel(document.id, reason="race"),
        lambda: client.cancel(document.id, reason="race"),
        lambda: client.retry(document.id),
        submit,
    ]
    with contextlib.suppress(ResourceNotFoundError, IllegalTransitionError, DocumentBusyError):
        chance.choice(actions)()


def settle(runner: Runner) -> None:
    """Let batches and removals come to their end, as sensors would."""
    for _ in range(20):
        runner.make_due()
        runner.services.facts.waiting.requeue_due(limit=100)
        runner.run_queued()
        runner.remove()
        counts = runner.system.client.count_by_status(KB)
        waiting = runner.services.facts.deletions.list(only_unfinished=True, limit=1)
        if not waiting and set(counts) <= {Status.READY, Status.CANCELED, Status.FAILED, Status.NO_CONTENT}:
            break
    remove_superseded(runner.services, limit=100, kept_seconds=0)
