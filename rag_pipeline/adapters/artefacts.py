"""Parquet forms of chunks and vectors, and the store of artefacts between stages.

Parsed blocks have their own form in `parsing.serialization`; this module only moves their bytes.
"""

import io
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rag_pipeline.core.chunk import Chunk, PageRegion
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.core.ports import ObjectStore, Vectors
from rag_pipeline.errors import MissingArtefactError, ResourceNotFoundError

CHUNK_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int32(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("heading_path", pa.list_(pa.string()), nullable=False),
        pa.field("section", pa.int32(), nullable=False),
        pa.field("page", pa.int32()),
        pa.field("page_end", pa.int32()),
        # [[page, [left, top, right, bottom] | null], ...] as JSON: nested lists of optional boxes cost more to build.
        pa.field("regions", pa.string(), nullable=False),
        pa.field("block_types", pa.list_(pa.string()), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInputs:
    """Vectors and the hashes of the exact strings that were sent for them, in chunk order."""

    input_hashes: tuple[str, ...]
    vectors: Vectors


def chunks_to_parquet(chunks: Sequence[Chunk]) -> bytes:
    """Chunks as Parquet, in order."""
    columns = {
        "index": [chunk.index for chunk in chunks],
        "text": [chunk.text for chunk in chunks],
        "start": [chunk.start for chunk in chunks],
        "end": [chunk.end for chunk in chunks],
        "tokens": [chunk.tokens for chunk in chunks],
        "heading_path": [list(chunk.heading_path) for chunk in chunks],
        "section": [chunk.section for chunk in chunks],
        "page": [chunk.page for chunk in chunks],
        "page_end": [chunk.page_end for chunk in chunks],
        "regions": [_regions_to_json(chunk.regions) for chunk in chunks],
        "block_types": [list(chunk.block_types) for chunk in chunks],
        "metadata": [json.dumps(dict(chunk.metadata), ensure_ascii=False) for chunk in chunks],
    }
    return _to_parquet(pa.table(columns, schema=CHUNK_SCHEMA))


def chunks_from_parquet(content: bytes) -> list[Chunk]:
    """The chunks that `chunks_to_parquet` wrote."""
    return [
        Chunk(
            index=row["index"],
            text=row["text"],
            start=row["start"],
            end=row["end"],
            tokens=row["tokens"],
            heading_path=tuple(row["heading_path"]),
            section=row["section"],
            page=row["page"],
            page_end=row["page_end"],
            regions=_regions_from_json(row["regions"]),
            block_types=tuple(row["block_types"]),
            metadata=json.loads(row["metadata"]),
        )
        for row in _from_parquet(content).to_pylist()
    ]


def vectors_to_parquet(inputs: EmbeddedInputs) -> bytes:
    """Vectors as Parquet: one fixed-size float32 list per row."""
    count, dimensions = inputs.vectors.shape
    values = pa.array(np.ascontiguousarray(inputs.vectors, dtype=np.float32).reshape(-1))
    table = pa.table(
        {
            "input_hash": pa.array(inputs.input_hashes, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(values, max(dimensions, 1))
            if count
            else pa.array([], pa.list_(pa.float32(), max(dimensions, 1))),
        }
    )
    return _to_parquet(table)


def vectors_from_parquet(content: bytes) -> EmbeddedInputs:
    """The vectors that `vectors_to_parquet` wrote."""
    table = _from_parquet(content)
    dimensions = table.schema.field("vector").type.list_size
    flat = table.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return EmbeddedInputs(
        input_hashes=tuple(table.column("input_hash").to_pylist()),
        vectors=np.asarray(flat, dtype=np.float32).reshape(-1, dimensions),
    )


class ArtefactStore:
    """Artefacts by key, in the object store, with what this process wrote or read last kept in memory.

    A stage that follows in the same run finds its input here without a request.
    """

    def __init__(self, objects: ObjectStore, *, cached_bytes: int = 64_000_000) -> None:
        self._objects = objects
        self._limit = cached_bytes
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def put(self, key: str, content: bytes) -> str:
        """Store an artefact and return its key."""
        self._objects.put(key, content, content_type="application/vnd.apache.parquet")
        self._remember(key, content)
        return key

    def put_file(self, key: str, path: Path) -> str:
        """Store an artefact that lies on disk; a large one is streamed and not kept in memory."""
        if path.stat().st_size <= self._limit // 8:
            return self.put(key, path.read_bytes())
        self._objects.put(key, path, content_type="application/vnd.apache.parquet")
        self._forget(key)
        return key

    def get(self, key: str) -> bytes:
        """An artefact. Raises `MissingArtefactError`."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        try:
            content = self._objects.get(key)
        except ResourceNotFoundError as error:
            raise MissingArtefactError(
                f"the artefact {key} is gone from the object store: re-index the document"
            ) from error
        self._remember(key, content)
        return content

    def _remember(self, key: str, content: bytes) -> None:
        self._forget(key)
        if len(content) > self._limit // 8:
            return
        with self._lock:
            self._size += len(content) - len(self._cache.pop(key, b""))
            self._cache[key] = content
            while self._size > self._limit:
                _, dropped = self._cache.popitem(last=False)
                self._size -= len(dropped)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._size -= len(self._cache.pop(key, b""))


def _to_parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


def _from_parquet(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content), use_threads=False)


def _regions_to_json(regions: Sequence[PageRegion]) -> str:
    return json.dumps([[region.page, region.bbox and region.bbox.as_list()] for region in regions])


def _regions_from_json(text: str) -> tuple[PageRegion, ...]:
    return tuple(
        PageRegion(
            page=page,
            bbox=None if box is None else BoundingBox(left=box[0], top=box[1], right=box[2], bottom=box[3]),
        )
        for page, box in json.loads(text)
    )
