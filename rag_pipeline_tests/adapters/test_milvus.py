"""What the contract suite does not reach: a server that goes away and comes back, and error translation."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pymilvus.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymilvus.exceptions import MilvusException

from rag_pipeline.adapters import milvus_schema
from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.core.ports import CollectionGeneration, SearchScope, VectorHit, VectorRow
from rag_pipeline.errors import ConfigurationError, InternalError, RagPipelineError, VectorStoreUnavailableError

GENERATION = CollectionGeneration(collection="restarts", dimensions=4, analyzer="standard")
SCOPE = SearchScope(kb_id="kb")
ROW = VectorRow(
    chunk_id="doc_1_0",
    kb_id="kb",
    document_id="doc",
    version=1,
    chunk_index=0,
    content="some words",
    dense=np.array([1, 0, 0, 0], dtype=np.float32),
)


class Server:
    """A Milvus Lite server that a test starts and stops, always on the same port and folder."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["-m", "milvus_lite", "server", "--data-dir", str(self._folder), "--host", "127.0.0.1"]
        self._process = subprocess.Popen(
            [sys.executable, *command, "--port", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + 120
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, "the server ended at once"
            assert time.monotonic() < give_up, "the server does not listen"
            time.sleep(0.1)

    def send(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        if number == signal.SIGSTOP:
            process = psutil.Process(self._process.pid)
            while process.status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)

    def stop(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
            self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "milvus")
    server.start()
    yield server
    server.stop(signal.SIGKILL)


def search(index: MilvusIndex) -> list[VectorHit]:
    return index.search_text(GENERATION, "words", scope=SCOPE, limit=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_server_that_was_restarted_is_found_again(server: Server, number: int) -> None:
    index = MilvusIndex(uri=server.uri)
    index.ensure(GENERATION)
    index.upsert(GENERATION, [ROW])

    server.stop(number)
    for call in (lambda: index.count(GENERATION), lambda: index.upsert(GENERATION, [ROW]), lambda: search(index)):
        with pytest.raises(VectorStoreUnavailableError, match=str(server.port)):
            call()
    server.start()

    # A restarted server has not loaded the collection: the search loads it.
    assert [hit.chunk_id for hit in search(index)] == ["doc_1_0"]
    assert index.count(GENERATION) == 1
    index.upsert(GENERATION, [ROW])
    index.delete(GENERATION, ["doc_1_0"])
    assert index.count(GENERATION) == 0
    index.close()


def test_a_restart_between_two_calls_is_not_noticed(server: Server) -> None:
    index = MilvusIndex(uri=server.uri)
    index.ensure(GENERATION)
    index.upsert(GENERATION, [ROW])
    server.stop(signal.SIGTERM)
    server.start()
    assert [hit.chunk_id for hit in search(index)] == ["doc_1_0"]
    index.close()


def test_a_server_that_hangs_is_given_up_and_used_again(server: Server) -> None:
    patient = MilvusIndex(uri=server.uri)
    patient.ensure(GENERATION)
    patient.upsert(GENERATION, [ROW])
    index = MilvusIndex(uri=server.uri, query_seconds=1.0, write_seconds=1.0)
    assert index.count(GENERATION) == 1

    server.send(signal.SIGSTOP)
    for call in (lambda: index.count(GENERATION), lambda: index.upsert(GENERATION, [ROW]), lambda: search(index)):
        with pytest.raises(VectorStoreUnavailableError, match="DEADLINE_EXCEEDED"):
            call()
    server.send(signal.SIGCONT)

    assert patient.count(GENERATION) == 1
    patient.close()
    index.close()


def test_no_server_at_all_is_temporary() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    index = MilvusIndex(uri=f"http://127.0.0.1:{port}")
    for _ in range(2):
        with pytest.raises(VectorStoreUnavailableError, match=str(port)):
            index.ensure(GENERATION)


def test_a_collection_that_was_never_made_is_temporary_until_indexing_makes_it(server: Server) -> None:
    index = MilvusIndex(uri=server.uri)
    generation = CollectionGeneration(collection=f"missing_{uuid.uuid4().hex[:8]}", dimensions=4, analyzer="standard")
    with pytest.raises(VectorStoreUnavailableError, match="does not exist"):
        index.upsert(generation, [ROW])
    index.ensure(generation)
    index.upsert(generation, [ROW])
    assert index.count(generation) == 1
    index.close()


def test_a_collection_of_somebody_else_is_refused(server: Server) -> None:
    client = pymilvus.MilvusClient(server.uri)
    client.create_collection("foreign", dimension=4)
    client.close()
    index = MilvusIndex(uri=server.uri)
    with pytest.raises(ConfigurationError, match="not made by rag-pipeline"):
        index.ensure(CollectionGeneration(collection="foreign", dimensions=4, analyzer="standard"))
    index.close()


@given(st.text(st.one_of(st.characters(), st.sampled_from("长\0\ud800é😀")), max_size=50), st.integers(0, 3_000))
def test_stored_text_fits_the_field_and_is_a_beginning_of_the_text(text: str, repeats: int) -> None:
    long_text = text * repeats
    stored = milvus_schema.storable_text(long_text)
    encoded = stored.encode("utf-8")
    clean = long_text.replace("\0", "").encode("utf-8", "ignore")
    assert len(encoded) <= milvus_schema.CONTENT_BYTES
    assert clean.startswith(encoded)
    assert len(clean) - len(encoded) < 4 or len(encoded) > milvus_schema.CONTENT_BYTES - 4


class RpcError(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """gRPC's own class for failed calls is private."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "details"

    add_callback = cancel = initial_metadata = is_active = time_remaining = trailing_metadata = None


def translate(error: Exception) -> RagPipelineError:
    with pytest.raises(RagPipelineError) as raised, MilvusIndex(uri="http://127.0.0.1:9")._translated():
        raise error
    assert raised.value.__cause__ is error
    return raised.value


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
def test_every_status_of_grpc_is_translated(code: grpc.StatusCode) -> None:
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    expected = ConfigurationError if code in refused else VectorStoreUnavailableError
    assert type(translate(RpcError(code))) is expected


def test_a_timeout_of_grpc_is_temporary() -> None:
    assert type(translate(grpc.FutureTimeoutError())) is VectorStoreUnavailableError


VENDOR_ERRORS = [
    error
    for error in vars(pymilvus.exceptions).values()
    if isinstance(error, type) and issubclass(error, MilvusException)
]
PERMANENT_VENDOR_ERRORS: dict[str, type[RagPipelineError]] = {
    "ConnectionConfigException": ConfigurationError,
    "DataNotMatchException": InternalError,
    "ParamError": InternalError,
}


@pytest.mark.parametrize("error_class", VENDOR_ERRORS, ids=lambda error: error.__name__)
def test_every_error_of_pymilvus_is_translated(error_class: type[MilvusException]) -> None:
    expected = PERMANENT_VENDOR_ERRORS.get(error_class.__name__, VectorStoreUnavailableError)
    assert type(translate(error_class(message="from the test"))) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1, VectorStoreUnavailableError), (8, VectorStoreUnavailableError), (100, VectorStoreUnavailableError)]
    + [(code, ConfigurationError) for code in (5, 6, 1100)],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_codes_of_the_server_are_translated(code: int, expected: type[RagPipelineError]) -> None:
    assert type(translate(MilvusException(code=code, message="from the test"))) is expected


def test_the_token_is_in_no_error_or_representation() -> None:
    index = MilvusIndex(uri="http://127.0.0.1:9", token="root:hunter2")
    with pytest.raises(VectorStoreUnavailableError) as raised:
        index.count(GENERATION)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(index)
