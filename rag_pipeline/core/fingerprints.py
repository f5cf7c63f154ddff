"""Stage fingerprints: equal fingerprint and existing artefact = nothing to do. Pure, no I/O.

A fingerprint is a hash of the upstream fingerprint, the stage's code version and its configuration. Dagster's own
staleness is not reliable for partitioned assets (dagster #22704, #22553), so these live in PostgreSQL.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from rag_pipeline.core.documents import Stage

Configuration = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVersion:
    """What, besides the input, decides the output of a stage."""

    code_version: str
    configuration: Configuration


def fingerprint(*parts: object) -> str:
    """A short hash of JSON-serialisable parts; 32 hex digits of SHA-256."""
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def stage_fingerprints(
    *, sha256: str, file_name: str, metadata: Configuration, versions: Mapping[Stage, StageVersion]
) -> dict[Stage, str]:
    """Fingerprints of every stage of one document version, each built on the one before.

    The snapshot carries the user's metadata and does not feed the embeddings, so a change of metadata writes a new
    snapshot without a new embedding bill.
    """

    def of(stage: Stage, *inputs: str) -> str:
        return _of_stage(stage, versions, *inputs)

    source = of(Stage.SOURCE_DOCUMENT, sha256, file_name)
    parsed = of(Stage.PARSED_BLOCKS, source)
    chunked = of(Stage.CHUNKS, parsed)
    snapshot = of(Stage.CHUNK_SNAPSHOT, chunked, fingerprint(dict(metadata)))
    embedded, indexed = generation_fingerprints(chunks=chunked, snapshot=snapshot, versions=versions)
    return {
        Stage.SOURCE_DOCUMENT: source,
        Stage.PARSED_BLOCKS: parsed,
        Stage.CHUNKS: chunked,
        Stage.CHUNK_SNAPSHOT: snapshot,
        Stage.EMBEDDINGS: embedded,
        Stage.INDEX_WRITES: indexed,
    }


def generation_fingerprints(*, chunks: str, snapshot: str, versions: Mapping[Stage, StageVersion]) -> tuple[str, str]:
    """Fingerprints of the embeddings and of the index rows that are made of finished chunks and their snapshot."""
    embedded = _of_stage(Stage.EMBEDDINGS, versions, chunks)
    return embedded, _of_stage(Stage.INDEX_WRITES, versions, embedded, snapshot)


def _of_stage(stage: Stage, versions: Mapping[Stage, StageVersion], *inputs: str) -> str:
    version = versions[stage]
    return fingerprint(stage.value, version.code_version, dict(version.configuration), *inputs)
