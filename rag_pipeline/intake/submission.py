"""Taking a file in: everything is checked before anything is stored, then the original, then one transaction."""

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.adapters.postgres.documents import NewVersion, Slot
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core import partitions
from rag_pipeline.core.documents import Document, KnowledgeBase
from rag_pipeline.core.ports import ObjectStore
from rag_pipeline.errors import (
    DocumentTooLargeError,
    EmptyDocumentError,
    InvalidFileNameError,
    RagPipelineError,
    ResourceNotFoundError,
)
from rag_pipeline.parsing.registry import HEAD_BYTES, check_supported

PARALLEL_SUBMITS = 8
"""Files on their way at once in `submit_many`; most of the time of one is waiting for the two servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """What became of one file of `submit_many`: exactly one of `document` and `error` is set."""

    path: Path
    source_path: str
    document: Document | None = None
    error: RagPipelineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    path: Path
    source_path: str


class Submission:
    """Submits files into knowledge bases."""

    def __init__(self, *, facts: Facts, objects: ObjectStore, max_upload_bytes: int) -> None:
        self._facts = facts
        self._objects = objects
        self._max_upload_bytes = max_upload_bytes

    def submit(
        self,
        kb_name: str,
        content: bytes | Path,
        *,
        file_name: str | None = None,
        metadata: Mapping[str, object] | None = None,
        created_by: str | None = None,
    ) -> Document:
        """Take one file in under its bare name and return the PENDING document at once.

        Args:
            kb_name: name of an active knowledge base.
            content: a path, or the bytes.
            file_name: the name to use; needed with bytes, otherwise the path's last part.
            metadata: JSON-serialisable facts kept with the document.
            created_by: who submits, for the audit trail.

        Raises:
            ResourceNotFoundError, KnowledgeBaseInactiveError: the knowledge base.
            InvalidFileNameError, EmptyDocumentError, DocumentTooLargeError, UnsupportedFormatError: the file.
            DocumentBusyError: a version of the document is being built.
            ObjectStoreUnavailableError, FactsUnavailableError: nothing was stored, or it was removed again.
        """
        if file_name is None and not isinstance(content, Path):
            raise InvalidFileNameError("give file_name= with bytes")
        name = partitions.file_name(file_name if file_name is not None else Path(content).name)  # type: ignore[arg-type]
        return self.submit_as(kb_name, content, source_path=name, metadata=metadata, created_by=created_by)

    def submit_as(
        self,
        kb_name: str,
        content: bytes | Path,
        *,
        source_path: str,
        metadata: Mapping[str, object] | None = None,
        created_by: str | None = None,
    ) -> Document:
        """Like `submit`, under a relative path: the document's identity inside the knowledge base."""
        kb = self._facts.knowledge_bases.active(kb_name)
        path = partitions.source_path(source_path)
        name = path.rpartition("/")[2]
        size, digest = self._check(content, name)
        new = NewVersion(
            source_path=path,
            file_name=name,
            sha256=digest,
            size_bytes=size,
            metadata=metadata or {},
            created_by=created_by,
        )
        return self._register(kb, new, content)

    def submit_many(
        self,
        kb_name: str,
        paths: Sequence[str | Path],
        *,
        metadata: Mapping[str, object] | None = None,
        created_by: str | None = None,
        progress: Callable[[SubmitResult], None] | None = None,
    ) -> list[SubmitResult]:
        """Take in files and whole folders; a file that is refused does not stop the others.

        Files below a folder keep their path relative to it; hidden ones are passed over. `progress` is called in this
        thread once per file, as they finish.

        Returns:
            One result per file, in the order found (folders sorted by path).

        Raises:
            ResourceNotFoundError, KnowledgeBaseInactiveError: the knowledge base; nothing was submitted.
        """
        self._facts.knowledge_bases.active(kb_name)
        found = list(_files(paths))
        results: dict[int, SubmitResult] = {}
        seen: set[str] = set()
        with ThreadPoolExecutor(max_workers=PARALLEL_SUBMITS, thread_name_prefix="submit") as threads:
            futures = {}
            for position, each in enumerate(found):
                futures[threads.submit(self._try, kb_name, each, each.source_path in seen, metadata, created_by)] = (
                    position
                )
                seen.add(each.source_path)
            for future in as_completed(futures):
                result = results[futures[future]] = future.result()
                if progress:
                    progress(result)
        return [results[position] for position in range(len(found))]

    def _try(
        self,
        kb_name: str,
        found: _Found,
        repeated: bool,
        metadata: Mapping[str, object] | None,
        created_by: str | None,
    ) -> SubmitResult:
        try:
            if repeated:
                raise InvalidFileNameError(
                    f"another file of this call is {found.source_path!r} too: submit their common folder instead"
                )
            if not found.path.is_file():
                raise ResourceNotFoundError(f"there is no file {found.path}")
            document = self.submit_as(
                kb_name, found.path, source_path=found.source_path, metadata=metadata, created_by=created_by
            )
        except RagPipelineError as error:
            return SubmitResult(path=found.path, source_path=found.source_path, error=error)
        return SubmitResult(path=found.path, source_path=found.source_path, document=document)

    def _check(self, content: bytes | Path, name: str) -> tuple[int, str]:
        """Size and SHA-256 of an acceptable file, reading at most one byte over the limit."""
        limit = self._max_upload_bytes
        digest = hashlib.sha256()
        size = 0
        head = b""
        for piece in _pieces(content, limit + 1):
            head = head or piece[:HEAD_BYTES]
            digest.update(piece)
            size += len(piece)
        if size > limit:
            raise DocumentTooLargeError(f"{name} is over the upload limit of {limit:,} bytes (RAG_MAX_UPLOAD_BYTES)")
        if size == 0:
            raise EmptyDocumentError(f"{name} has no bytes: submit the file again from its source")
        check_supported(name, head)
        return size, digest.hexdigest()

    def _register(self, kb: KnowledgeBase, new: NewVersion, content: bytes | Path) -> Document:
        document_id = uuid.uuid4().hex
        slot = Slot(
            document_id=document_id,
            partition_key=partitions.partition_key(kb.name, new.file_name, document_id),
            version=1,
        )
        stored: list[str] = []

        def store_original(target: Slot) -> str:
            key = partitions.original_key(kb.id, target.document_id, target.version, new.file_name)
            stored.append(key)
            self._objects.put(key, content)
            return key

        try:
            return self._facts.documents.register(kb, new, slot, store_original)
        except BaseException:
            self._objects.delete(stored)
            raise


def _files(paths: Iterable[str | Path]) -> Iterator[_Found]:
    for each in paths:
        path = Path(each)
        if path.is_dir():
            for below in sorted(path.rglob("*")):
                relative = below.relative_to(path)
                if below.is_file() and not any(part.startswith(".") for part in relative.parts):
                    yield _Found(path=below, source_path=relative.as_posix())
        else:
            yield _Found(path=path, source_path=path.name)


def _pieces(content: bytes | Path, limit: int) -> Iterator[bytes]:
    """At most `limit` bytes of the content."""
    if isinstance(content, bytes):
        yield content[:limit]
        return
    if not content.is_file():
        raise ResourceNotFoundError(f"there is no file {content}")
    left = limit
    with content.open("rb") as file:
        while left and (piece := file.read(min(left, 1 << 20))):
            left -= len(piece)
            yield piece
