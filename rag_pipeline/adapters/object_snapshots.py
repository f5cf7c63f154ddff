"""Chunk snapshots as objects: `{prefix}{kb_id}/{document_id}/chunks.v{version}.json`, `chunks.json` once live.

For runs on several machines without a shared volume. A put replaces an object whole, so readers never see half of one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rag_pipeline.adapters.snapshots import (
    LIVE_NAME,
    checked_ids,
    snapshot_bytes,
    snapshot_of_version,
    version_name,
    version_of_name,
)
from rag_pipeline.core.ports import ObjectStore, SnapshotFile, SnapshotRef, SnapshotStore
from rag_pipeline.errors import ObjectStoreUnavailableError, ResourceNotFoundError, SnapshotWriteError


class ObjectSnapshotStore(SnapshotStore):
    """Snapshots below one prefix of the bucket."""

    def __init__(self, objects: ObjectStore, *, prefix: str) -> None:
        """`prefix`: ends with `/`; nothing else may lie below it."""
        self._objects = objects
        self._prefix = prefix

    def write(self, ref: SnapshotRef, content: Mapping[str, object]) -> str:
        """Put the version's object, and return its key."""
        key = self._key(ref, version_name(ref.version))
        with _translated(key):
            self._objects.put(key, snapshot_bytes(ref, content), content_type="application/json")
        return key

    def publish(self, ref: SnapshotRef) -> str:
        """Copy the version's object to `chunks.json` and remove it; a crash in between leaves both.

        Raises:
            SnapshotWriteError: also when neither key holds this version; it has to be written again.
        """
        key, live = self._key(ref, version_name(ref.version)), self._key(ref, LIVE_NAME)
        with _translated(live):
            try:
                self._objects.put(live, self._objects.get(key), content_type="application/json")
                self._objects.delete([key])
            except ResourceNotFoundError as error:
                if self._read(live, ref.version) is None:
                    raise SnapshotWriteError(f"chunk snapshot {key} is gone") from error
        return live

    def read(self, ref: SnapshotRef) -> Mapping[str, object] | None:
        """The snapshot of that version, published or not."""
        # Published between the two reads: the second look at the live key finds it.
        for name in (version_name(ref.version), LIVE_NAME):
            key = self._key(ref, name)
            with _translated(key):
                found = self._read(key, ref.version)
            if found is not None:
                return found
        return None

    def has(self, ref: SnapshotRef) -> bool:
        """Whether the version's object is there, or `chunks.json` with that version in it."""
        key = self._key(ref, version_name(ref.version))
        with _translated(key):
            if self._objects.stat(key) is not None:
                return True
            try:
                return self._read(self._key(ref, LIVE_NAME), ref.version) is not None
            except SnapshotWriteError:  # damaged
                return False

    def delete(self, kb_id: str, document_id: str, *, version: int | None = None) -> int:
        """Remove one version's unpublished object, or all of the document; missing ones are fine."""
        folder = self._folder(kb_id, document_id)
        if version is None:
            return self._delete_below(folder)
        key = folder + version_name(version)
        with _translated(key):
            if self._objects.stat(key) is None:
                return 0
            self._objects.delete([key])
        return 1

    def delete_knowledge_base(self, kb_id: str) -> int:
        """Remove all of the knowledge base; missing ones are fine."""
        return self._delete_below(self._folder(kb_id))

    def list(self) -> Iterator[SnapshotFile]:
        """All snapshots in key order; objects with other names are passed over."""
        with _translated(self._prefix):
            for info in self._objects.list(self._prefix):
                parts = info.key.removeprefix(self._prefix).split("/")
                try:
                    kb_id, document_id, name = parts
                    version = version_of_name(name)
                except ValueError:
                    continue
                yield SnapshotFile(kb_id=kb_id, document_id=document_id, version=version, modified_at=info.modified_at)

    def is_reachable(self) -> bool:
        """Always: it is where the originals are."""
        return True

    def _delete_below(self, prefix: str) -> int:
        with _translated(prefix):
            keys = [info.key for info in self._objects.list(prefix)]
            self._objects.delete(keys)
        return len(keys)

    def _folder(self, *ids: str) -> str:
        return self._prefix + "".join(f"{each}/" for each in checked_ids(*ids))

    def _key(self, ref: SnapshotRef, name: str) -> str:
        return self._folder(ref.kb_id, ref.document_id) + name

    def _read(self, key: str, version: int) -> dict[str, object] | None:
        try:
            return snapshot_of_version(self._objects.get(key), version, where=key)
        except ResourceNotFoundError:
            return None


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """What fails here is a snapshot, and is tried again."""
    try:
        yield
    except ObjectStoreUnavailableError as error:
        raise SnapshotWriteError(f"chunk snapshot {key}: {error}") from error
