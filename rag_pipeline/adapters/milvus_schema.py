"""The Milvus collection: fields, limits, indexes, and the check of a collection that exists.

Only what retrieval needs is stored; chunk texts are read from PostgreSQL. What BM25 counts is either the text as it is,
which Milvus's own analyzer splits (`content`), or the words of `core.analysis` (`words_1`: the version is in the name).
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rag_pipeline.core import analysis
from rag_pipeline.core.ports import CollectionGeneration, VectorRow
from rag_pipeline.errors import ConfigurationError, InternalError

if TYPE_CHECKING:
    from pymilvus import CollectionSchema

ID_BYTES = 128
"""Of chunk, document and knowledge base ids; a chunk id is a document id with version and position behind it."""
CONTENT_BYTES = 65_535
"""The most a VARCHAR may have; Milvus counts bytes, of which a Chinese character has three."""

INDEXES: Mapping[str, Mapping[str, Any]] = {
    "dense": {"index_type": "AUTOINDEX", "metric_type": "COSINE"},
    # Without parameters Milvus takes 1.2 and Milvus Lite 1.5; over six test sets the two differ by 0.001 nDCG@10.
    "sparse": {
        "index_type": "SPARSE_INVERTED_INDEX",
        "metric_type": "BM25",
        "params": {"bm25_k1": 1.5, "bm25_b": 0.75},
    },
}


_RAW = "content"
_WORDS = "words_"


def collection_schema(generation: CollectionGeneration) -> "CollectionSchema":
    """The schema of a new collection; `kb_id` is the partition key, `sparse` is filled by the server from the text."""
    from pymilvus import DataType, Function, FunctionType, MilvusClient

    text = text_field(generation)
    tokenizer = "standard" if text != _RAW else generation.analyzer
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("chunk_id", DataType.VARCHAR, is_primary=True, max_length=ID_BYTES)
    schema.add_field("kb_id", DataType.VARCHAR, is_partition_key=True, max_length=ID_BYTES)
    schema.add_field("document_id", DataType.VARCHAR, max_length=ID_BYTES)
    schema.add_field("version", DataType.INT64)
    schema.add_field("chunk_index", DataType.INT64)
    schema.add_field(
        text,
        DataType.VARCHAR,
        max_length=CONTENT_BYTES,
        enable_analyzer=True,
        analyzer_params={"tokenizer": tokenizer},
    )
    schema.add_field("dense", DataType.FLOAT_VECTOR, dim=generation.dimensions)
    schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_function(
        Function(
            name=f"{text}_bm25",
            function_type=FunctionType.BM25,
            input_field_names=[text],
            output_field_names=["sparse"],
        )
    )
    return schema


def check_collection(description: Mapping[str, Any], generation: CollectionGeneration) -> None:
    """Compare an existing collection, as `describe_collection` gives it, with the generation.

    Raises:
        ConfigurationError: another dimension or analyzer, or not a collection of this package.
    """
    fields = {field["name"]: field.get("params", {}) for field in description["fields"]}
    name = generation.collection
    remedy = "go back to the former setting, or fill a new generation of the index with the new one"
    text = next((field for field in fields if field == _RAW or field.startswith(_WORDS)), None)
    if text is None or not {"chunk_id", "kb_id", "dense", "sparse"} <= fields.keys():
        raise ConfigurationError(f"Milvus collection {name!r} was not made by rag-pipeline; name another collection")
    dimensions = int(fields["dense"].get("dim", 0))
    if dimensions != generation.dimensions:
        raise ConfigurationError(
            f"Milvus collection {name!r} holds vectors of {dimensions} dimensions, "
            f"the embedder gives {generation.dimensions}: {remedy}"
        )
    analyzer = _analyzer(fields[text]) if text == _RAW else analysis.ANALYZER_PREFIX + text.removeprefix(_WORDS)
    if analyzer != generation.analyzer:
        raise ConfigurationError(
            f"Milvus collection {name!r} has the BM25 analyzer {analyzer!r}, "
            f"RAG_ANALYZER is {generation.analyzer!r}: {remedy}"
        )


def check_dimensions(vector: npt.NDArray[np.float32], generation: CollectionGeneration) -> None:
    """Raise `ConfigurationError` unless the vector fits the generation."""
    if vector.shape != (generation.dimensions,):
        raise ConfigurationError(
            f"a vector has the shape {vector.shape}, collection {generation.collection!r} "
            f"needs ({generation.dimensions},): check RAG_EMBEDDING_DIMENSIONS"
        )


def entity(row: VectorRow, generation: CollectionGeneration) -> dict[str, Any]:
    """The row as Milvus takes it, its text cut to the field. Raises `ConfigurationError`, `InternalError`."""
    check_dimensions(row.dense, generation)
    for value in (row.chunk_id, row.kb_id, row.document_id):
        if len(value.encode("utf-8", "surrogatepass")) > ID_BYTES:
            raise InternalError(f"id {value!r} has more than {ID_BYTES} bytes")
    return {
        "chunk_id": row.chunk_id,
        "kb_id": row.kb_id,
        "document_id": row.document_id,
        "version": row.version,
        "chunk_index": row.chunk_index,
        text_field(generation): analysed(row.content, generation),
        "dense": np.asarray(row.dense, dtype=np.float32),
    }


def entity_bytes(entity: Mapping[str, Any], generation: CollectionGeneration) -> int:
    """About how long the row is in a request."""
    return 4 * len(entity[text_field(generation)]) + int(entity["dense"].nbytes) + 4 * ID_BYTES


def text_field(generation: CollectionGeneration) -> str:
    """The field that BM25 is computed from.

    Raises:
        ConfigurationError: the generation has the words of another version of the analysis.
    """
    if generation.analyzer == analysis.ANALYZER:
        return f"{_WORDS}{analysis.ANALYSIS_VERSION}"
    if generation.analyzer.startswith(analysis.ANALYZER_PREFIX):
        raise ConfigurationError(
            f"the analyzer {generation.analyzer!r} is of another release, this one has {analysis.ANALYZER!r}: "
            "set RAG_ANALYZER to it and fill a new generation of the index"
        )
    return _RAW


def words_fields(generation: CollectionGeneration) -> tuple[str, ...]:
    """The field with the words of our own analysis; none where BM25 counts what Milvus's analyzer makes of the text."""
    field = text_field(generation)
    return () if field == _RAW else (field,)


def analysed(text: str, generation: CollectionGeneration) -> str:
    """A passage or a query as the text field takes it, cut to its limit. Raises `ConfigurationError`."""
    if text_field(generation) == _RAW:
        return storable_text(text)
    words = storable_text(" ".join(analysis.words(text)))
    # A word cut at the limit would be another word.
    return words if len(words.encode()) < CONTENT_BYTES - 3 else words.rpartition(" ")[0]


def storable_text(text: str) -> str:
    """The text cut to `CONTENT_BYTES` on a character boundary, without NUL and lone surrogates (gRPC refuses them)."""
    encoded = text.replace("\0", "").encode("utf-8", "ignore")
    if len(encoded) <= CONTENT_BYTES:
        return encoded.decode("utf-8")
    return encoded[:CONTENT_BYTES].decode("utf-8", "ignore")


def _analyzer(parameters: Mapping[str, Any]) -> str:
    """The tokenizer's name out of the field's `analyzer_params`, which the server gives as JSON text."""
    raw = parameters.get("analyzer_params", {})
    found = json.loads(raw) if isinstance(raw, str) else raw
    tokenizer = found.get("tokenizer", found.get("type", ""))
    return str(tokenizer.get("type", "") if isinstance(tokenizer, dict) else tokenizer)
