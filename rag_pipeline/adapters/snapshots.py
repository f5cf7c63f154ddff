"""Chunk snapshots as files: `{root}/{kb_id}/{document_id}/chunks.v{version}.json`, `chunks.json` once live.

The version inside the file, not its name, says which one `chunks.json` is.
"""

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rag_pipeline.core.ports import SnapshotFile, SnapshotRef, SnapshotStore
from rag_pipeline.errors import InternalError, SnapshotWriteError
from rag_pipeline.settings import Settings

LIVE_NAME = "chunks.json"
VERSION_KEY = "version"
"""Written into every snapshot."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAME = re.compile(r"chunks(\.v(?P<version>\d+))?\.json")


class FileSnapshotStore(SnapshotStore):
    """Snapshots below one folder of a local disk or a shared volume. Files are readable by their owner only."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def from_settings(cls, settings: Settings) -> "FileSnapshotStore":
        """The store below `settings.snapshots`."""
        return cls(settings.snapshots)

    def write(self, ref: SnapshotRef, content: Mapping[str, object]) -> str:
        """Write the version's file through a temporary file, and return its path."""
        path = self._version_path(ref)
        with _translated(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_durably(path, snapshot_bytes(ref, content))
        return str(path)

    def publish(self, ref: SnapshotRef) -> str:
        """Rename the version's file to `chunks.json`.

        Raises:
            SnapshotWriteError: also when neither name holds this version; it has to be written again.
        """
        path, live = self._version_path(ref), self._folder(ref.kb_id, ref.document_id) / LIVE_NAME
        with _translated(live):
            try:
                path.replace(live)
                _sync_folder(live.parent)
            except FileNotFoundError:
                if self._read(live, ref.version) is None:
                    raise
        return str(live)

    def read(self, ref: SnapshotRef) -> Mapping[str, object] | None:
        """The snapshot of that version, published or not."""
        # Published between the two reads: the second look at the live name finds it.
        live = self._folder(ref.kb_id, ref.document_id) / LIVE_NAME
        for path in (self._version_path(ref), live):
            with _translated(path):
                found = self._read(path, ref.version)
            if found is not None:
                return found
        return None

    def has(self, ref: SnapshotRef) -> bool:
        """Whether `chunks.v{version}.json` is there, or `chunks.json` with that version in it."""
        folder = self._folder(ref.kb_id, ref.document_id)
        with _translated(folder):
            if self._version_path(ref).exists():
                return True
            try:
                return self._read(folder / LIVE_NAME, ref.version) is not None
            except SnapshotWriteError:  # damaged
                return False

    def delete(self, kb_id: str, document_id: str, *, version: int | None = None) -> int:
        """Remove one version's unpublished file, or the document's folder; missing ones are fine."""
        folder = self._folder(kb_id, document_id)
        with _translated(folder):
            if version is None:
                return _remove_folder(folder)
            path = self._version_path(SnapshotRef(kb_id=kb_id, document_id=document_id, version=version))
            try:
                path.unlink()
            except FileNotFoundError:
                return 0
            return 1

    def delete_knowledge_base(self, kb_id: str) -> int:
        """Remove the knowledge base's folder; a missing one is fine."""
        folder = self._root.joinpath(*checked_ids(kb_id))
        with _translated(folder):
            return _remove_folder(folder)

    def list(self) -> Iterator[SnapshotFile]:
        """All snapshots, folder by folder; files with other names are passed over."""
        with _translated(self._root):
            for kb in _folders(self._root):
                for document in _folders(kb):
                    for path in document.glob("chunks*.json"):
                        file = _snapshot_file(path)
                        if file is not None:
                            yield file

    def is_reachable(self) -> bool:
        """Whether the root folder is on this machine."""
        return self._root.is_dir()

    def _folder(self, kb_id: str, document_id: str) -> Path:
        return self._root.joinpath(*checked_ids(kb_id, document_id))

    def _version_path(self, ref: SnapshotRef) -> Path:
        return self._folder(ref.kb_id, ref.document_id) / version_name(ref.version)

    def _read(self, path: Path, version: int) -> dict[str, object] | None:
        try:
            return snapshot_of_version(path.read_bytes(), version, where=str(path))
        except FileNotFoundError:
            return None


def snapshot_bytes(ref: SnapshotRef, content: Mapping[str, object]) -> bytes:
    """A snapshot as it is stored: JSON with its version in it."""
    return json.dumps({**content, VERSION_KEY: ref.version}, ensure_ascii=False, indent=1).encode("utf-8")


def snapshot_of_version(stored: bytes, version: int, *, where: str) -> dict[str, object] | None:
    """What `snapshot_bytes` gave, if it is that version. Raises `SnapshotWriteError` if it is damaged."""
    try:
        content = json.loads(stored)
    except ValueError as error:
        raise SnapshotWriteError(f"{where} is damaged; re-run the asset chunk_snapshot") from error
    return content if isinstance(content, dict) and content.get(VERSION_KEY) == version else None


def version_name(version: int) -> str:
    """Name of an unpublished version."""
    return f"chunks.v{int(version)}.json"


def version_of_name(name: str) -> int | None:
    """The version in the name of an unpublished one, None for the published one. Raises `ValueError`: no snapshot."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(name)
    return int(found["version"]) if found["version"] else None


def checked_ids(*ids: str) -> tuple[str, ...]:
    """The ids, which become parts of a path or of a key. Raises `InternalError`."""
    for value in ids:
        if not _ID.fullmatch(value):
            raise InternalError(f"id {value!r} cannot be a folder name of the snapshot store")
    return ids


def _folders(parent: Path) -> Iterator[Path]:
    try:
        with os.scandir(parent) as entries:
            found = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    yield from (Path(path) for path in found if _ID.fullmatch(Path(path).name))


def _snapshot_file(path: Path) -> SnapshotFile | None:
    try:
        version, modified = version_of_name(path.name), path.stat().st_mtime
    except (ValueError, FileNotFoundError):
        return None
    return SnapshotFile(
        kb_id=path.parent.parent.name,
        document_id=path.parent.name,
        version=version,
        modified_at=datetime.fromtimestamp(modified, UTC),
    )


def _remove_folder(folder: Path) -> int:
    """Remove a folder that another process may be removing or writing into; returns how many snapshots it held."""
    count = sum(1 for path in folder.rglob("chunks*.json") if path.is_file())
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return count


def _write_durably(path: Path, content: bytes) -> None:
    """A crash leaves the old file or the new one: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """The one place where errors of the disk become ours."""
    try:
        yield
    except OSError as error:
        raise SnapshotWriteError(f"chunk snapshot {path}: {error.strerror or error}; see RAG_SNAPSHOT_DIR") from error
