"""Comparing PostgreSQL with the other stores, both ways, and putting right what disagrees.

PostgreSQL is what should be. Nothing is touched that a live batch, a deletion or a fresh upload may be about to write
or to remove: documents that are not settled are passed over, objects and snapshots must be older than an age limit, and
every candidate is looked at again just before it is repaired. Everything is read in pages.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Protocol, TypeVar

from rag_pipeline.adapters.postgres.reconciliation import DocumentState, NamedObject
from rag_pipeline.core.documents import Stage, Status
from rag_pipeline.core.ports import ObjectInfo, SnapshotFile, SnapshotRef, StoredVector
from rag_pipeline.core.reconciliation import Reconciled, Tally
from rag_pipeline.intake.inbox import INBOX, REJECTED
from rag_pipeline.stages.services import Services
from rag_pipeline.stages.snapshot import restore_snapshot

MINIMUM_AGE_SECONDS = 3600.0
"""Objects and snapshots younger than this may belong to an upload or a run whose transaction has not been committed."""
CANDIDATES_PER_LOOK = 500

T = TypeVar("T")


class PartitionSet(Protocol):
    """The partitions of documents in Dagster."""

    def keys(self) -> list[str]:
        """All of them."""

    def remove(self, keys: list[str]) -> dict[str, bool]:
        """Remove those that no run needs; returns what is gone now."""

    def add(self, keys: list[str]) -> None:
        """Add missing ones."""


def reconcile(
    services: Services,
    *,
    repair: bool,
    partitions: Callable[[], PartitionSet] | None = None,
    minimum_age_seconds: float = MINIMUM_AGE_SECONDS,
) -> Reconciled:
    """Compare the stores.

    Args:
        services: adapters and settings; the snapshot folder must be the one that the runs write to.
        repair: remove orphans; have READY documents that lack something rebuilt beside the live version.
        partitions: Dagster's side; None: not compared.
        minimum_age_seconds: see `MINIMUM_AGE_SECONDS`.

    Raises:
        TemporaryError: a store is down; what was repaired until then stays repaired.
    """
    began = time.monotonic()
    comparison = _Comparison(services.serving(), repair=repair, minimum_age=timedelta(seconds=minimum_age_seconds))
    if partitions is None:
        comparison.tally.note("Dagster's partitions are compared by the asset check `stores_agree` only")
    else:
        comparison.compare_partitions(partitions())
    comparison.compare_chunk_rows()
    comparison.compare_vectors()
    comparison.compare_objects()
    comparison.compare_snapshots()
    rebuilt = comparison.rebuild()
    return comparison.tally.result(rebuilt=rebuilt, seconds=time.monotonic() - began)


class _Comparison:
    """One comparison and what it has found so far."""

    def __init__(self, services: Services, *, repair: bool, minimum_age: timedelta) -> None:
        self.tally = Tally()
        self._services = services
        self._facts = services.facts.reconciliation
        self._repair = repair
        self._old_enough = services.facts.now() - minimum_age
        self._known = self._facts.knowledge_base_ids()
        self._to_rebuild: dict[str, Stage] = {}
        """Documents whose live version lacks something -> the first stage that has to be done again."""

    def compare_partitions(self, partitions: PartitionSet) -> None:
        """Dagster's partitions; they are read first, so a key in them had its document before."""
        there = set(partitions.keys())
        documents = self._facts.partition_keys()
        self.tally.look("partitions", len(there))
        orphans = sorted(there - documents.keys())
        gone = partitions.remove(orphans) if self._repair else {}
        for key in orphans:
            self.tally.add("partitions", "orphaned", key, repaired=key in gone)
        missing = sorted(key for key, was_batched in documents.items() if was_batched and key not in there)
        if missing and self._repair:
            partitions.add(missing)
        for key in missing:
            self.tally.add("partitions", "missing", key, repaired=self._repair)

    def compare_chunk_rows(self) -> None:
        """Rows that no version needs, and live versions whose rows are not as many as its chunks."""
        for rows in self._facts.abandoned_rows():
            if self._repair:
                ids = self._services.facts.chunk_rows.ids(rows.document_id, rows.version)
                self._delete_vectors(ids)
                self._facts.delete_chunk_rows(rows.document_id, rows.version)
            name = f"{rows.document_id} version {rows.version}"
            self.tally.add("chunk_rows", "orphaned", name, repaired=self._repair, count=rows.rows)
        for document_id in self._facts.incomplete_versions():
            self._lacks(document_id, "chunk_rows", document_id, stage=Stage.INDEX_WRITES)

    def compare_vectors(self) -> None:
        """Vectors without a chunk row, in every generation; live chunks without a vector, in the one that answers."""
        for generation in self._services.stored_generations():
            for page in self._services.vectors.scan(generation):
                self.tally.look("vectors", len(page))
                self._compare_stored_vectors(page)
        live = self._services.facts.live_generation()
        for chunks in self._facts.live_chunks() if live else ():
            self.tally.look("chunk_rows", len(chunks))
            there: frozenset[str] = frozenset()
            if live is not None and self._services.vectors.exists(live[0]):
                there = self._services.vectors.existing(live[0], [chunk_id for chunk_id, _ in chunks])
            for chunk_id, document_id in chunks:
                if chunk_id not in there:
                    self._lacks(document_id, "vectors", chunk_id, stage=Stage.INDEX_WRITES)

    def _compare_stored_vectors(self, page: list[StoredVector]) -> None:
        have_row = self._facts.chunks_existing([row.chunk_id for row in page])
        without = [row for row in page if row.chunk_id not in have_row]
        states = self._facts.states({row.document_id for row in without})
        orphans = [row.chunk_id for row in without if self._is_ours("vectors", row.kb_id, row.chunk_id)]
        document_of = {row.chunk_id: row.document_id for row in without}
        orphans = [each for each in orphans if _is_still(states.get(document_of[each]))]
        # Written since the page was read: rows come before vectors.
        orphans = sorted(set(orphans) - self._facts.chunks_existing(orphans)) if orphans else []
        if self._repair:
            self._delete_vectors(orphans)
        for chunk_id in orphans:
            self.tally.add("vectors", "orphaned", chunk_id, repaired=self._repair)

    def compare_objects(self) -> None:
        """Merge two lists in key order: what the store has, and what the rows name."""
        named = self._facts.named_objects()
        missing: list[NamedObject] = []
        orphans: list[ObjectInfo] = []
        for stored, wanted in _merge(self._stored_objects(), named):
            if stored is not None:
                self.tally.look("objects")
            if stored is None and wanted is not None:
                missing.append(wanted)
            if wanted is None and stored is not None and stored.modified_at < self._old_enough:
                orphans.append(stored)
            if len(orphans) >= CANDIDATES_PER_LOOK:
                self._settle_orphaned_objects(orphans)
                orphans = []
            if len(missing) >= CANDIDATES_PER_LOOK:
                self._settle_missing_objects(missing)
                missing = []
        self._settle_orphaned_objects(orphans)
        self._settle_missing_objects(missing)

    def _stored_objects(self) -> Iterator[ObjectInfo]:
        elsewhere = (INBOX, REJECTED, self._services.settings.snapshot_prefix or INBOX)
        for info in self._services.objects.list(""):
            if not info.key.startswith(elsewhere):
                yield info

    def _settle_orphaned_objects(self, candidates: list[ObjectInfo]) -> None:
        named = self._facts.named_among([info.key for info in candidates])
        unnamed = [info.key for info in candidates if info.key not in named]
        owner = {key: _owner(key) for key in unnamed}
        states = self._facts.states({document_id for _, document_id in owner.values()})
        orphans = []
        for key in unnamed:
            kb_id, document_id = owner[key]
            if self._is_ours("objects", kb_id, key) and _is_still(states.get(document_id)):
                orphans.append(key)
        if self._repair:
            self._services.objects.delete(orphans)
        for key in orphans:
            self.tally.add("objects", "orphaned", key, repaired=self._repair)

    def _settle_missing_objects(self, candidates: list[NamedObject]) -> None:
        named = self._facts.named_among([wanted.key for wanted in candidates])
        states = self._facts.states({wanted.document_id for wanted in named.values()})
        for key, wanted in named.items():
            state = states.get(wanted.document_id)
            # Superseded versions are removed soon, and nothing is read from them any more.
            is_used = state is not None and state.is_still and wanted.version in (state.version, state.live_version)
            if state is not None and is_used and self._services.objects.stat(key) is None:
                self._settle_missing_object(wanted, state)

    def _settle_missing_object(self, wanted: NamedObject, state: DocumentState) -> None:
        repaired = False
        if wanted.stage is Stage.SOURCE_DOCUMENT:
            self.tally.note(f"the original {wanted.key} is lost: submit the file again")
        elif wanted.stage is None:
            repaired = self._repair
            if repaired:
                self._facts.forget_paid(wanted.key)
        elif wanted.version == state.live_version:
            self._lacks(wanted.document_id, "objects", wanted.key, stage=wanted.stage)
            return
        else:
            repaired = self._repair
            if repaired:
                self._facts.forget_artefacts(wanted.document_id, wanted.version, wanted.stage)
        self.tally.add("objects", "missing", wanted.key, repaired=repaired)

    def compare_snapshots(self) -> None:
        """Files of documents or versions that are gone; live versions without one."""
        if not self._services.snapshots.is_reachable():
            self.tally.note(f"snapshots were not compared: {self._services.settings.snapshots} is not on this machine")
            return
        for files in _pages(self._services.snapshots.list(), CANDIDATES_PER_LOOK):
            self.tally.look("snapshots", len(files))
            states = self._facts.states({file.document_id for file in files})
            for file in files:
                self._compare_snapshot(file, states.get(file.document_id))
        for page in self._facts.live_versions():
            for document_id, kb_id, version in page:
                self._restore_missing(SnapshotRef(kb_id=kb_id, document_id=document_id, version=version))

    def _compare_snapshot(self, file: SnapshotFile, state: DocumentState | None) -> None:
        name = f"{file.kb_id}/{file.document_id}/chunks{'' if file.version is None else f'.v{file.version}'}.json"
        if file.modified_at > self._old_enough or not _is_still(state):
            return
        if state is not None and file.version in _wanted_snapshots(state):
            return
        if not self._is_ours("snapshots", file.kb_id, name):
            return
        if self._repair and (state is None or file.version is None):
            self._services.snapshots.delete(file.kb_id, file.document_id)
        elif self._repair:
            self._services.snapshots.delete(file.kb_id, file.document_id, version=file.version)
        self.tally.add("snapshots", "orphaned", name, repaired=self._repair)

    def _restore_missing(self, live: SnapshotRef) -> None:
        if self._services.snapshots.has(live):
            return
        state = self._facts.states([live.document_id]).get(live.document_id)
        if state is None or not state.is_still or state.live_version != live.version:
            return
        repaired = self._repair and restore_snapshot(self._services, live)
        self.tally.add("snapshots", "missing", f"{live.kb_id}/{live.document_id}/chunks.json", repaired=repaired)

    def rebuild(self) -> int:
        """Open the next version of documents whose live version lacks something; returns how many."""
        count = 0
        for document_id, stage in self._to_rebuild.items() if self._repair else ():
            item = self._facts.live_item(document_id)
            state = self._facts.states([document_id]).get(document_id)
            if item is None or state is None or not _can_be_rebuilt(state):
                continue
            kept = list(Stage)[: list(Stage).index(stage)]
            wanted = {each: value for each, value in self._services.fingerprints(item).items() if each in kept}
            self._services.facts.claims.open_versions([item], {document_id: wanted})
            count += 1
        return count

    def _lacks(self, document_id: str, store: str, example: str, *, stage: Stage) -> None:
        """Something of a live version is missing; it comes back with a rebuild from that stage."""
        if self._to_rebuild.get(document_id) is stage:
            self.tally.add(store, "missing", example, repaired=self._repair)
            return
        state = self._facts.states([document_id]).get(document_id)
        if state is None or not state.is_still:
            return  # what is being built, or removed, will settle it
        order = list(Stage)
        can_be_rebuilt = _can_be_rebuilt(state)
        if can_be_rebuilt:
            earlier = self._to_rebuild.get(document_id, stage)
            self._to_rebuild[document_id] = min(stage, earlier, key=order.index)
        else:
            self.tally.note(f"{document_id} is {state.status} and lacks something of version {state.live_version}")
        self.tally.add(store, "missing", example, repaired=self._repair and can_be_rebuilt)

    def _delete_vectors(self, chunk_ids: list[str]) -> None:
        for generation in self._services.stored_generations() if chunk_ids else ():
            self._services.vectors.delete(generation, chunk_ids)

    def _is_ours(self, store: str, kb_id: str, example: str) -> bool:
        """Whether this database has ever had the knowledge base: another deployment's data is never removed."""
        if kb_id in self._known:
            return True
        self.tally.add(store, "foreign", example, repaired=False)
        return False


def _is_still(state: DocumentState | None) -> bool:
    """Whether a document is gone, or settled with nobody working on it."""
    return state is None or state.is_still


def _can_be_rebuilt(state: DocumentState) -> bool:
    return state.is_still and state.status is Status.READY and state.version == state.live_version


def _wanted_snapshots(state: DocumentState) -> set[int | None]:
    """Versions whose snapshot file a settled document needs, None for the published file.

    The published file of a first version that failed just before READY is what its retry goes on with.
    """
    if state.status in (Status.CANCELED, Status.NO_CONTENT):
        return {state.live_version, None} if state.live_version is not None else set()
    return {state.version, state.live_version, None}


def _owner(key: str) -> tuple[str, str]:
    """Knowledge base and document of an object's key; empty for keys of other forms."""
    parts = key.split("/")
    if parts[0] == "kb":
        parts = parts[1:]
    return (parts[0], parts[1]) if len(parts) > 2 else ("", "")


def _merge(
    stored: Iterable[ObjectInfo], named: Iterable[NamedObject]
) -> Iterator[tuple[ObjectInfo | None, NamedObject | None]]:
    """Pairs of equal keys out of two sequences in key order; None where one side has none."""
    left, right = iter(stored), iter(named)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.key < other.key):
            yield one, None
            one = next(left, None)
        elif one is None or other.key < one.key:
            yield None, other
            other = next(right, None)
        else:
            yield one, other
            one, other = next(left, None), next(right, None)


def _pages(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while page := list(itertools.islice(iterator, size)):
        yield page
