"""Dense vectors and BM25 in Milvus (Milvus Lite server, Milvus, Zilliz), through `pymilvus`.

The schema is in `milvus_schema`, filter expressions in `milvus_expressions`. Which collection answers queries is a fact
in PostgreSQL, not here.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from rag_pipeline.adapters import milvus_expressions as expressions
from rag_pipeline.adapters import milvus_schema as schema
from rag_pipeline.core.ports import CollectionGeneration, SearchScope, StoredVector, VectorHit, VectorIndex, VectorRow
from rag_pipeline.errors import ConfigurationError, InternalError, RagPipelineError, VectorStoreUnavailableError
from rag_pipeline.settings import Settings

if TYPE_CHECKING:
    from pymilvus import MilvusClient

CONNECT_SECONDS = 5.0
QUERY_SECONDS = 15.0
"""The slowest query measured, BM25 over 40,000 unflushed rows of Milvus Lite, takes 8 s."""
WRITE_SECONDS = 120.0
RACE_SECONDS = 3.0
"""How long another process may take to finish creating a collection."""
GROUP_ROWS = 1000
"""Rows or ids of one request."""
GROUP_BYTES = 8 * 1024 * 1024
"""Text and vectors of one request; Milvus refuses requests over 64 MB."""
DOCUMENTS_PER_QUERY = 10_000
"""Ids of one expression: Milvus Lite takes 0.55 s for 20,000."""
MOST_HITS = 16_384
"""Milvus's limit for one search."""
QUERY_CHARACTERS = 10_000
"""A BM25 query is cut here; no question is longer."""

GRPC_OPTIONS = {
    # pymilvus pings every 10 s; gRPC servers answer more than one ping in 5 minutes with GOAWAY too_many_pings.
    "grpc.keepalive_time_ms": 600_000,
    "grpc.keepalive_permit_without_calls": 0,
    # A dead server is tried again after 2 s at the latest; gRPC's default grows to 120 s.
    "grpc.max_reconnect_backoff_ms": 2_000,
    # Channels of one process would otherwise share a connection, and with it the state of a server that has gone.
    "grpc.use_local_subchannel_pool": 1,
}

_NOT_FOUND = 100
_NOT_LOADED = 101
_ILLEGAL_ARGUMENT = frozenset({5, 6, 1100})
"""Milvus's "parameter invalid" (1100), and the legacy codes that Milvus Lite still gives."""
_RATE_LIMIT = 8

T = TypeVar("T")


class MilvusIndex(VectorIndex):
    """One Milvus server. Safe to share between threads; connects on first use.

    A server that went away and came back is found again by `pymilvus`, which opens a new channel on UNAVAILABLE.
    """

    def __init__(
        self,
        *,
        uri: str,
        token: str = "",
        query_seconds: float = QUERY_SECONDS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._uri = uri
        self._token = token
        self._query_seconds = query_seconds
        self._write_seconds = write_seconds
        self._lock = threading.Lock()
        self._client: MilvusClient | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> "MilvusIndex":
        """The server that the settings name. Raises `ConfigurationError`."""
        uri, token = settings.require_milvus()
        return cls(uri=uri, token=token)

    def ensure(self, generation: CollectionGeneration) -> None:
        """Create, index and load the collection; several processes may do so at once."""
        self._run(lambda client: self._ensure(client, generation))

    def drop(self, generation: CollectionGeneration) -> None:
        """Remove the collection with all its rows; a missing one is fine."""
        self._run(lambda client: client.drop_collection(generation.collection, timeout=self._write_seconds))

    def upsert(self, generation: CollectionGeneration, rows: Sequence[VectorRow]) -> None:
        """Write rows in bounded groups; of rows with the same id the last one wins.

        Raises:
            ConfigurationError: a vector has another dimension than the generation.
            InternalError: an id is longer than the field.
        """
        distinct = {row.chunk_id: row for row in rows}
        for group in _groups([schema.entity(row, generation) for row in distinct.values()], generation):
            self._upsert_group(generation, group)

    def delete(self, generation: CollectionGeneration, chunk_ids: Sequence[str]) -> None:
        """Remove rows by id in bounded groups."""
        for expression in _id_expressions(chunk_ids):
            self._delete_where(generation, expression)

    def flush(self, generation: CollectionGeneration) -> None:
        """Seal written rows."""
        self._run(lambda client: client.flush(generation.collection, timeout=self._write_seconds))

    def existing(self, generation: CollectionGeneration, chunk_ids: Sequence[str]) -> frozenset[str]:
        """Which of the ids are stored, read in bounded groups."""
        found: set[str] = set()
        for expression in _id_expressions(chunk_ids):
            rows = self._query(generation, expression, "chunk_id")
            found.update(row["chunk_id"] for row in rows)
        return frozenset(found)

    def count(self, generation: CollectionGeneration, *, kb_id: str | None = None) -> int:
        """Rows stored."""
        expression = "" if kb_id is None else expressions.equals("kb_id", kb_id)
        return int(self._query(generation, expression, "count(*)")[0]["count(*)"])

    def exists(self, generation: CollectionGeneration) -> bool:
        """Whether the collection has been created."""
        return self._run(lambda client: bool(client.has_collection(generation.collection, timeout=self._query_seconds)))

    def scan(self, generation: CollectionGeneration, *, kb_id: str | None = None) -> Iterator[list[StoredVector]]:
        """All rows in pages of `GROUP_ROWS`, by Milvus's query iterator."""
        iterator = self._run_loaded(
            generation,
            lambda client: client.query_iterator(
                generation.collection,
                batch_size=GROUP_ROWS,
                filter="" if kb_id is None else expressions.equals("kb_id", kb_id),
                output_fields=["chunk_id", "kb_id", "document_id", "version"],
                consistency_level="Strong",
                timeout=self._write_seconds,
            ),
        )
        try:
            while True:
                with self._translated():
                    rows = iterator.next()
                if not rows:
                    return
                yield [
                    StoredVector(
                        chunk_id=row["chunk_id"],
                        kb_id=row["kb_id"],
                        document_id=row["document_id"],
                        version=int(row["version"]),
                    )
                    for row in rows
                ]
        finally:
            iterator.close()

    def search_dense(
        self, generation: CollectionGeneration, vector: npt.NDArray[np.float32], *, scope: SearchScope, limit: int
    ) -> list[VectorHit]:
        """Nearest rows; the score is the cosine."""
        schema.check_dimensions(vector, generation)
        return self._search(generation, vector, "dense", "COSINE", scope=scope, limit=limit)

    def search_text(
        self, generation: CollectionGeneration, query: str, *, scope: SearchScope, limit: int
    ) -> list[VectorHit]:
        """Best rows by BM25; the score is the BM25 sum, which Milvus Lite gives with the sign reversed."""
        text = schema.analysed(query[:QUERY_CHARACTERS], generation)
        if not text.strip():
            return []
        return self._search(generation, text, "sparse", "BM25", scope=scope, limit=limit)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _search(
        self,
        generation: CollectionGeneration,
        data: npt.NDArray[np.float32] | str,
        field: str,
        metric: str,
        *,
        scope: SearchScope,
        limit: int,
    ) -> list[VectorHit]:
        limit = min(limit, MOST_HITS)
        if limit < 1:
            return []
        hits: list[VectorHit] = []
        for expression in expressions.scope_expressions(scope, documents_per_expression=DOCUMENTS_PER_QUERY):
            hits += self._search_where(generation, data, field, metric, expression=expression, limit=limit)
        hits.sort(key=lambda hit: (-hit.score, hit.chunk_id))
        return hits[:limit]

    def _search_where(
        self,
        generation: CollectionGeneration,
        data: npt.NDArray[np.float32] | str,
        field: str,
        metric: str,
        *,
        expression: str,
        limit: int,
    ) -> list[VectorHit]:
        words_fields = schema.words_fields(generation)
        found = self._run_loaded(
            generation,
            lambda client: client.search(
                generation.collection,
                data=[data],
                anns_field=field,
                filter=expression,
                limit=limit,
                output_fields=["document_id", "version", *words_fields],
                search_params={"metric_type": metric},
                consistency_level="Bounded",
                timeout=self._query_seconds,
            ),
        )
        return [_hit(row, metric, words_fields) for row in found[0]]

    def _upsert_group(self, generation: CollectionGeneration, group: list[dict[str, Any]]) -> None:
        self._run_loaded(
            generation,
            lambda client: client.upsert(generation.collection, group, timeout=self._write_seconds),
        )

    def _delete_where(self, generation: CollectionGeneration, expression: str) -> None:
        self._run_loaded(
            generation,
            lambda client: client.delete(generation.collection, filter=expression, timeout=self._write_seconds),
        )

    def _query(self, generation: CollectionGeneration, expression: str, field: str) -> list[dict[str, Any]]:
        return self._run_loaded(
            generation,
            lambda client: list(
                client.query(
                    generation.collection,
                    filter=expression,
                    output_fields=[field],
                    consistency_level="Strong",
                    timeout=self._query_seconds,
                )
            ),
        )

    def _ensure(self, client: "MilvusClient", generation: CollectionGeneration) -> None:
        name, seconds = generation.collection, self._write_seconds
        if not client.has_collection(name, timeout=seconds):
            with self._lost_race(lambda: client.has_collection(name, timeout=seconds)):
                client.create_collection(
                    name, schema=schema.collection_schema(generation), consistency_level="Bounded", timeout=seconds
                )
        schema.check_collection(client.describe_collection(name, timeout=seconds), generation)
        indexed = set(client.list_indexes(name, timeout=seconds))
        for field in schema.INDEXES.keys() - indexed:
            self._create_index(client, name, field)
        client.load_collection(name, timeout=seconds)

    def _create_index(self, client: "MilvusClient", name: str, field: str) -> None:
        index = client.prepare_index_params(field, **schema.INDEXES[field])
        with self._lost_race(lambda: field in client.list_indexes(name, timeout=self._write_seconds)):
            client.create_index(name, index, timeout=self._write_seconds)

    @contextlib.contextmanager
    def _lost_race(self, exists: Callable[[], bool]) -> Iterator[None]:
        """Ignore an error of a creation when the thing is there soon after: another process was faster.

        Milvus Lite refuses the second creation while the first is under way, before it shows what is created.
        """
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except MilvusException:
            give_up = time.monotonic() + RACE_SECONDS
            while not exists():
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def _run_loaded(self, generation: CollectionGeneration, call: Callable[["MilvusClient"], T]) -> T:
        """Run a call, and again after loading the collection: a server that was restarted has unloaded it."""
        from pymilvus.exceptions import MilvusException

        def attempt(client: "MilvusClient") -> T:
            try:
                return call(client)
            except MilvusException as error:
                if error.code != _NOT_LOADED:
                    raise
            client.load_collection(generation.collection, timeout=self._write_seconds)
            return call(client)

        return self._run(attempt)

    def _run(self, call: Callable[["MilvusClient"], T]) -> T:
        with self._translated():
            return call(self._connected())

    def _connected(self) -> "MilvusClient":
        with self._lock:
            if self._client is None:
                from pymilvus import MilvusClient

                # It logs every error with a stack before raising it; here they are raised, translated.
                logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
                # Dedicated: clients of one address otherwise share a connection for the life of the process.
                self._client = MilvusClient(
                    uri=self._uri,
                    token=self._token,
                    timeout=CONNECT_SECONDS,
                    dedicated=True,
                    grpc_options=GRPC_OPTIONS,
                )
            return self._client

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where errors of `pymilvus` and gRPC become ours."""
        import grpc
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except MilvusException as error:
            raise self._from_milvus(error) from error
        except grpc.RpcError as error:
            raise self._from_grpc(error) from error
        except grpc.FutureTimeoutError as error:
            raise VectorStoreUnavailableError(f"Milvus at {self._uri} does not answer") from error

    def _from_milvus(self, error: Any) -> RagPipelineError:
        import grpc
        from pymilvus.exceptions import ConnectionConfigException, DataNotMatchException, ParamError

        if isinstance(error.__cause__, grpc.RpcError):
            return self._from_grpc(error.__cause__)
        message = f"Milvus at {self._uri}: {error.message or type(error).__name__} (code {error.code})"
        if isinstance(error, ConnectionConfigException):
            return ConfigurationError(f"RAG_MILVUS_URI: {message}")
        if error.code == _NOT_FOUND:
            return VectorStoreUnavailableError(f"{message}; the collection is created again by the next indexing run")
        if error.code in _ILLEGAL_ARGUMENT or error.is_input_error:
            return ConfigurationError(message)
        if isinstance(error, ParamError | DataNotMatchException):
            return InternalError(message)
        return VectorStoreUnavailableError(message)

    def _from_grpc(self, error: Any) -> RagPipelineError:
        import grpc

        code = error.code() if isinstance(error, grpc.Call) else None
        if code in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            return ConfigurationError(f"Milvus at {self._uri} refuses the token: check RAG_MILVUS_TOKEN")
        reason = f"{code.name}: {error.details()}" if code is not None else type(error).__name__
        return VectorStoreUnavailableError(f"Milvus at {self._uri} does not answer: {reason}")


def _hit(row: Any, metric: str, words_fields: Sequence[str]) -> VectorHit:
    score = float(row["distance"])
    return VectorHit(
        chunk_id=row["chunk_id"],
        document_id=row["entity"]["document_id"],
        version=int(row["entity"]["version"]),
        score=abs(score) if metric == "BM25" else score,
        words=next((tuple(row["entity"][field].split()) for field in words_fields), None),
    )


def _id_expressions(chunk_ids: Sequence[str]) -> Iterator[str]:
    distinct = list(dict.fromkeys(chunk_ids))
    for start in range(0, len(distinct), GROUP_ROWS):
        yield expressions.is_in("chunk_id", distinct[start : start + GROUP_ROWS])


def _groups(entities: Sequence[dict[str, Any]], generation: CollectionGeneration) -> Iterator[list[dict[str, Any]]]:
    """Split into requests of at most `GROUP_ROWS` rows and about `GROUP_BYTES`."""
    group: list[dict[str, Any]] = []
    size = 0
    for entity in entities:
        length = schema.entity_bytes(entity, generation)
        if group and (len(group) >= GROUP_ROWS or size + length > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(entity)
        size += length
    if group:
        yield group
