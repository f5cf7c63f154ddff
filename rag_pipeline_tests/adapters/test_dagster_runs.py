import json
from pathlib import Path
from typing import Any

import pytest

from rag_pipeline.adapters.dagster_runs import DagsterRuns
from rag_pipeline.adapters.postgres.cancellation import AbandonedBatch
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.loopback_server import LoopbackServer, Request

BATCHES = [AbandonedBatch(batch_id="b1", run_id="r1"), AbandonedBatch(batch_id="b2", run_id=None)]
ENDED = {"__typename": "TerminateRunSuccess", "run": {"runId": "r1"}}


class Webserver(LoopbackServer):
    """Answers every query with the same body, and keeps the queries."""

    def __init__(self, body: object) -> None:
        super().__init__()
        self.body = body if isinstance(body, str) else json.dumps(body)
        self.queries: list[dict[str, Any]] = []

    def answer_request(self, request: Request, body: dict[str, Any]) -> None:
        with self.lock:
            self.queries.append(body["variables"])
        request.send(200, self.body)


@pytest.mark.parametrize(
    "record",
    [None, "", "{", "[]", "{}", "null", '{"port": 3000}'],
    ids=["no file", "empty", "cut", "list", "object", "null", "no url"],
)
def test_without_the_record_of_a_webserver_no_run_is_ended(tmp_path: Path, record: str | None) -> None:
    (tmp_path / "servers").mkdir()
    if record is not None:
        (tmp_path / "servers" / "dagster.json").write_text(record)
    assert DagsterRuns(clean_settings(data_dir=tmp_path)).end(BATCHES) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[", "nonsense", ""], ids=repr)
def test_an_address_where_no_webserver_is_ends_no_run(tmp_path: Path, url: str) -> None:
    assert DagsterRuns(clean_settings(data_dir=tmp_path, dagster_url=url)).end(BATCHES) == []


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        [],
        {},
        {"data": None},
        {"data": {}},
        {"errors": [{"message": "no such field"}]},
        {"errors": ["text"]},
        {"data": {"runsOrError": None, "terminateRuns": None}},
        {"data": {"runsOrError": {}, "terminateRuns": {"terminateRunResults": None}}},
    ],
    ids=json.dumps,
)
def test_what_answers_otherwise_than_dagster_ends_no_run(tmp_path: Path, body: object) -> None:
    with Webserver(body) as webserver:
        assert DagsterRuns(clean_settings(data_dir=tmp_path, dagster_url=webserver.url)).end(BATCHES) == []


def test_the_runs_of_batches_are_ended(tmp_path: Path) -> None:
    runs = {
        "runsOrError": {"results": [{"runId": "r2"}]},
        "terminateRuns": {"terminateRunResults": [ENDED, {"__typename": "RunNotFoundError"}]},
    }
    with Webserver({"data": runs}) as webserver:
        ended = DagsterRuns(clean_settings(data_dir=tmp_path, dagster_url=webserver.url + "/")).end(BATCHES)
    assert ended == ["r1"]
    assert webserver.queries == [
        {"filter": {"tags": [{"key": "rag/batch_id", "value": "b2"}]}},
        {"runIds": ["r1", "r2"]},
    ]
