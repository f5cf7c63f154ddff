"""Cases dag-01 (file names as partition keys) and dag-02 (every change is run, nothing is run twice)."""

import itertools
import re
from pathlib import Path

import pytest
import regex

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.errors import InvalidFileNameError
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline_tests.defs.system import System, wait_until

NAMES = [
    "plain.txt",
    "dir/inner.txt",
    "dir_inner.txt",
    "dir%2Finner.txt",
    "Report, Q1 2024.txt",
    "a...b.txt",
    "[x].txt",
    "pipe|y.txt",
    'quote"z.txt',
    "it's.txt",
    "名前.txt",
    "emoji😀.txt",
    "NFD-e\u0301.txt",
    "x" * 200 + ".txt",
    '{"k": 1}.txt',
    " lead.txt",
    "UP.txt",
    "up.txt",
]
REFUSED = ["new\nline.txt", "tab\t.txt", "../up.txt"]
BACKFILL = """
mutation Backfill($partitions: [String!]!, $assets: [AssetKeyInput!]!) {
  launchPartitionBackfill(backfillParams: { partitionNames: $partitions, assetSelection: $assets }) {
    __typename ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""


@pytest.fixture(scope="module")
def dagster(system: System) -> System:
    system.start_dagster()
    return system


def test_every_name_gets_a_partition_of_its_own_and_a_backfill_takes_exactly_the_chosen_ones(
    dagster: System, tmp_path: Path
) -> None:
    client = dagster.client
    client.create_knowledge_base("names")
    for name in REFUSED:
        with pytest.raises(InvalidFileNameError):
            client.submit("names", b"text", filename=name)
    for number, name in enumerate(NAMES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"Text of file number {number}.")
    done = client.wait(client.submit_many("names", [tmp_path]), timeout_seconds=300)
    assert len(done) == len(NAMES)
    assert {document.status for document in done} == {Status.READY}
    keys = [document.partition_key for document in done]
    assert len(set(keys)) == len(NAMES)
    for key in keys:
        assert regex.fullmatch(r"[\p{L}\p{M}\p{N}._~\-]{1,100}", key), key
        assert not key.startswith(".")
        assert "..." not in key
        assert client.document(key).partition_key == key
    dagster.wait_for_runs(count=1)  # READY comes just before the last asset's event
    states = dagster.partition_states()
    assert all(set(keys) <= set(states[stage]) for stage in Stage)  # other tests of the module have documents, too
    before = {document.id: client.document(document.id).updated_at for document in done}
    runs = len(dagster.runs())
    chosen = [keys[1], keys[-3]]
    assets = [{"path": [stage.value]} for stage in Stage]
    answer = dagster.graphql(BACKFILL, partitions=chosen, assets=assets)["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    dagster.wait_for_runs(count=runs + 2)
    touched = {tag["value"] for run in dagster.runs()[: len(dagster.runs()) - runs] for tag in run["tags"]}
    assert set(chosen) <= touched
    assert touched.isdisjoint(set(keys) - set(chosen))
    after = {document.id: client.document(document.id).updated_at for document in done}
    assert after == before, "a backfill of what is up to date does no work"


def test_every_change_starts_one_run_and_no_change_starts_none(dagster: System) -> None:
    client = dagster.client
    client.create_knowledge_base("runs")
    first, second = b"The status code is AMBER today.", b"The status code is GREEN today."

    def submit(content: bytes) -> Document:
        submitted = client.submit("runs", content, filename="report.txt")
        return client.wait([submitted], timeout_seconds=240)[0]

    runs = [len(dagster.wait_for_runs(count=0))]
    for content in (first, first, second, first):
        assert submit(content).status is Status.READY
        runs.append(len(dagster.wait_for_runs(count=0)))
    assert [after - before for before, after in itertools.pairwise(runs)] == [1, 0, 1, 1]
    hits = client.retrieve("runs", "status code", options=RetrievalOptions(top_k=5, mode="bm25")).results
    assert [re.findall("AMBER|GREEN", hit.text) for hit in hits] == [["AMBER"]]
    dagster.embedding.refuse_everything = True
    failed = submit(b"The status code is RED today.")
    assert failed.status is Status.FAILED
    dagster.embedding.refuse_everything = False
    again = submit(b"The status code is RED today.")
    assert (again.id, again.status, again.version) == (failed.id, Status.READY, failed.version)
    embedded = dagster.embedding.texts
    ticks = len(dagster.wait_for_runs(count=0))
    wait_until(lambda: dagster.embedding.texts, lambda texts: texts == embedded)
    assert len(dagster.runs()) == ticks
