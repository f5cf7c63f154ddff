"""The node log: what every stage did for a document, read from the rows that Dagster's events mirror.

Only work is written down. What has not begun, was taken over from the version before, or will not happen any more is
derived from the document's status when the log is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from rag_pipeline.adapters.postgres.engine import transaction
from rag_pipeline.adapters.postgres.schema import document_versions, documents, stage_artefacts, stage_attempts
from rag_pipeline.core.documents import FINISHED, WORKING, Stage, Status

_TO_COME = WORKING | {Status.PENDING}
_INPUTS: Mapping[Stage, tuple[str, ...]] = {
    Stage.SOURCE_DOCUMENT: ("file_name", "bytes", "sha256"),
    Stage.PARSED_BLOCKS: ("file_name", "bytes"),
    Stage.CHUNKS: ("pages", "characters", "blocks"),
    Stage.CHUNK_SNAPSHOT: ("chunks",),
    Stage.EMBEDDINGS: ("chunks", "tokens"),
    Stage.INDEX_WRITES: ("chunks", "vectors"),
}
"""What a stage begins with, by the names under which the stages before it report them."""
CLEANUP = "cleanup"
"""The node that removes a replaced version from every store, after its time to be rolled back to is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLogEntry:
    """One attempt of one stage, a stage that has none, or the removal of a replaced version."""

    node: str
    """A stage's name, or `CLEANUP`."""
    status: str
    """WAITING, RUNNING, SUCCESS, SKIPPED, FAILED or CANCELED."""
    version: int
    attempt: int
    """From 1; 0 while no run has worked on the version."""
    run_id: str | None
    input_summary: Mapping[str, object]
    output_summary: Mapping[str, object]
    error: str | None = None
    error_code: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    document: Mapping[Any, Any]
    attempts: Sequence[Mapping[Any, Any]]
    artefacts: Sequence[Mapping[Any, Any]]
    files: dict[int, Mapping[str, object]]
    """File facts by version."""
    replaced: frozenset[int]
    """Versions that are kept for a while although another one answers."""


def node_log(engine: sa.Engine, document_id: str) -> list[NodeLogEntry]:
    """Every attempt for a document, oldest first, the removal of replaced versions, then the stages still to come."""
    rows = _read(engine, document_id)
    if rows is None:
        return []
    outputs = _outputs(rows)
    return [
        *(_attempted(row, _input(outputs, row["version"], Stage(row["stage"]))) for row in rows.attempts),
        *_cleanups(rows),
        *_not_attempted(rows, outputs),
    ]


def _read(engine: sa.Engine, document_id: str) -> _Rows | None:
    with transaction(engine) as connection:
        document = connection.execute(sa.select(documents).where(documents.c.id == document_id)).mappings().first()
        if document is None:
            return None
        of_document = (
            sa.select(table).where(table.c.document_id == document_id)
            for table in (stage_attempts, stage_artefacts, document_versions)
        )
        attempts, artefacts, versions = (
            [dict(row) for row in connection.execute(each).mappings()] for each in of_document
        )
    return _Rows(
        document=document,
        attempts=sorted(attempts, key=lambda row: row["id"]),
        artefacts=artefacts,
        files={
            row["version"]: {"file_name": document["file_name"], "bytes": row["size_bytes"], "sha256": row["sha256"]}
            for row in versions
        },
        replaced=frozenset(
            row["version"]
            for row in versions
            if row["superseded_at"] is not None
            and row["version"] not in (document["version"], document["live_version"])
        ),
    )


def _outputs(rows: _Rows) -> dict[int, dict[Stage, Mapping[str, object]]]:
    """What each stage gave, by version; the winning artefact's summary where there is one."""
    found: dict[int, dict[Stage, Mapping[str, object]]] = {}
    for row in rows.attempts:
        if row["status"] == "SUCCESS":
            found.setdefault(row["version"], {})[Stage(row["stage"])] = row["output_summary"]
    for row in rows.artefacts:
        found.setdefault(row["version"], {})[Stage(row["stage"])] = row["summary"]
    for version, file in rows.files.items():
        found.setdefault(version, {}).setdefault(Stage.SOURCE_DOCUMENT, file)
    return found


def _input(
    outputs: Mapping[int, Mapping[Stage, Mapping[str, object]]], version: int, stage: Stage
) -> dict[str, object]:
    order = list(Stage)
    before = [Stage.SOURCE_DOCUMENT, *order[1 : order.index(stage)]]
    known: dict[str, object] = {}
    for each in before:
        known.update(outputs.get(version, {}).get(each, {}))
    return {name: known[name] for name in _INPUTS[stage] if known.get(name) is not None}


def _attempted(row: Mapping[Any, Any], inputs: Mapping[str, object]) -> NodeLogEntry:
    return NodeLogEntry(
        node=row["stage"],
        status=row["status"],
        version=row["version"],
        attempt=row["attempt"],
        run_id=row["run_id"],
        input_summary=inputs,
        output_summary=row["output_summary"],
        error=row["error_message"],
        error_code=row["error_code"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        duration_ms=row["duration_ms"],
    )


def _cleanups(rows: _Rows) -> Iterator[NodeLogEntry]:
    """Versions of which attempts are left but no row have been removed; replaced ones with a row will be."""
    removed = {row["version"] for row in rows.attempts} - rows.files.keys()
    for version in sorted(removed | rows.replaced):
        yield NodeLogEntry(
            node=CLEANUP,
            status="SUCCESS" if version in removed else "WAITING",
            version=version,
            attempt=1 if version in removed else 0,
            run_id=None,
            input_summary={},
            output_summary={},
        )


def _not_attempted(rows: _Rows, outputs: Mapping[int, Mapping[Stage, Mapping[str, object]]]) -> Iterator[NodeLogEntry]:
    version, status = rows.document["version"], Status(rows.document["status"])
    last = {Stage(row["stage"]): row["status"] for row in rows.attempts if row["version"] == version}
    taken_over = {Stage(row["stage"]): row for row in rows.artefacts if row["version"] == version}
    for stage in Stage:
        artefact = taken_over.get(stage)
        derived = _derived_status(status, last.get(stage), has_artefact=artefact is not None)
        if derived is not None:
            yield NodeLogEntry(
                node=stage,
                status=derived,
                version=version,
                attempt=rows.document["attempt"],
                run_id=None,
                input_summary=_input(outputs, version, stage),
                output_summary=artefact["summary"] if artefact else {},
                finished_at=artefact["completed_at"] if artefact else None,
            )


def _derived_status(status: Status, last: str | None, *, has_artefact: bool) -> str | None:
    """Status of a stage that nobody has written down; None if its attempts say it all."""
    if has_artefact:
        return "SKIPPED" if last is None else None
    if status in _TO_COME:
        return None if last == "RUNNING" else "WAITING"
    if last is not None:
        return None
    if status in (Status.CANCELING, Status.CANCELED, Status.DELETING):
        return "CANCELED"
    return "SKIPPED" if status in FINISHED else "WAITING"
