"""Taking a file in: everything is checked before anything is stored, then the original, then one transaction."""

import hashlib
import json
import logging
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.adapters.postgres.documents import NewVersion, Slot
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core import partitions
from rag_pipeline.core.documents import Document, KnowledgeBase
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import ObjectStore
from rag_pipeline.errors import (
    DocumentTooLargeError,
    EmptyDocumentError,
    InvalidDocumentError,
    InvalidFileNameError,
    RagPipelineError,
    ResourceNotFoundError,
)
from rag_pipeline.parsing.registry import HEAD_BYTES, check_supported

logger = logging.getLogger(__name__)

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
    is_stray: bool = False
    """A symbolic link in a folder that does not lead to a file in it."""


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
        source_path: str | None = None,
        metadata: Mapping[str, object] | None = None,
        created_by: str | None = None,
    ) -> Document:
        """Take one file in and return the PENDING document at once.

        Args:
            kb_name: name of an active knowledge base.
            content: a path, or the bytes.
            file_name: a bare name to use.
            source_path: a relative path to use, in the place of `file_name`: the document's identity inside the
                knowledge base. Without either, a path's own as `submit_many` takes it; bytes need one of them.
            metadata: JSON-serialisable facts kept with the version. With the bytes of a known document, those given
                replace what was kept, at once for searches; without any, a known document keeps what it has.
            created_by: who submits, for the audit trail; kept with the version.

        Raises:
            ResourceNotFoundError, KnowledgeBaseInactiveError: the knowledge base; the first one also if the file cannot
                be read.
            InvalidDocumentError: the metadata is not JSON, or the file changed while it was read.
            InvalidFileNameError, EmptyDocumentError, DocumentTooLargeError, UnsupportedFormatError: the file.
            DocumentBusyError: a version of the document is being built.
            ObjectStoreUnavailableError, FactsUnavailableError: nothing was stored, or it was removed again.
        """
        if file_name is not None:
            if source_path is not None:
                raise InvalidFileNameError("give a bare file name or a source path, not both")
            source_path = partitions.file_name(file_name)
        elif source_path is None:
            if isinstance(content, bytes):
                raise InvalidFileNameError("give a file name or a source path with bytes")
            source_path = _given_path(content)
        kb = self._facts.knowledge_bases.active(kb_name)
        return self._take(kb, content, source_path=source_path, metadata=metadata, created_by=created_by)

    def _take(
        self,
        kb: KnowledgeBase,
        content: bytes | Path,
        *,
        source_path: str,
        metadata: Mapping[str, object] | None,
        created_by: str | None,
    ) -> Document:
        path = partitions.source_path(source_path)
        name = path.rpartition("/")[2]
        facts = _json_object(metadata or {})
        with _reading(content):
            before = _stamp(content)
            size, digest = self._check(content, name)
        new = NewVersion(
            source_path=path,
            file_name=name,
            sha256=digest,
            size_bytes=size,
            metadata=facts,
            created_by=None if created_by is None else clean_text(created_by),
        )
        return self._register(kb, new, content, before)

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

        Files below a folder keep their path relative to it; hidden ones are passed over, and symbolic links that lead
        out of the folder are refused. A file that is named itself keeps its path as it was given if that is relative
        and has no `..`, else only its name. `progress` is called in this thread once per file, as they finish.

        Returns:
            One result per file, in the order found (folders sorted by path).

        Raises:
            ResourceNotFoundError, KnowledgeBaseInactiveError: the knowledge base; nothing was submitted.
        """
        kb = self._facts.knowledge_bases.active(kb_name)
        found = list(_files(paths))
        results: dict[int, SubmitResult] = {}
        seen: set[str] = set()
        with ThreadPoolExecutor(max_workers=PARALLEL_SUBMITS, thread_name_prefix="submit") as threads:
            futures = {}
            for position, each in enumerate(found):
                identity = unicodedata.normalize("NFC", each.source_path)
                future = threads.submit(self._try, kb, each, identity in seen, metadata, created_by)
                futures[future] = position
                seen.add(identity)
            try:
                for future in as_completed(futures):
                    result = results[futures[future]] = future.result()
                    if progress:
                        progress(result)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise
        return [results[position] for position in range(len(found))]

    def _try(
        self,
        kb: KnowledgeBase,
        found: _Found,
        repeated: bool,
        metadata: Mapping[str, object] | None,
        created_by: str | None,
    ) -> SubmitResult:
        try:
            if found.is_stray:
                raise InvalidFileNameError(
                    f"{found.source_path} is a symbolic link that leads to no file of the folder: "
                    "submit what it leads to"
                )
            if repeated:
                raise InvalidFileNameError(
                    f"another file of this call is {found.source_path!r} too: submit their common folder instead"
                )
            document = self._take(
                kb, found.path, source_path=found.source_path, metadata=metadata, created_by=created_by
            )
        except RagPipelineError as error:
            return SubmitResult(path=found.path, source_path=found.source_path, error=error)
        return SubmitResult(path=found.path, source_path=found.source_path, document=document)

    def _check(self, content: bytes | Path, name: str) -> tuple[int, str]:
        """Size and SHA-256 of an acceptable file, reading at most one byte over the limit."""
        limit = self._max_upload_bytes
        digest = hashlib.sha256()
        size = 0
        if _declared_size(content) > limit:
            raise _too_large(name, limit)
        head = b""
        for piece in _pieces(content, limit + 1):
            head = head or piece[:HEAD_BYTES]
            digest.update(piece)
            size += len(piece)
        if size > limit:
            raise _too_large(name, limit)
        if size == 0:
            raise EmptyDocumentError(f"{name} has no bytes: submit the file again from its source")
        check_supported(name, head)
        return size, digest.hexdigest()

    def _register(
        self, kb: KnowledgeBase, new: NewVersion, content: bytes | Path, before: tuple[int, ...] | None
    ) -> Document:
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
            with _reading(content):
                self._objects.put(key, content)
                if _stamp(content) != before:
                    raise InvalidDocumentError(
                        f"{new.file_name} changed while it was read: submit it when it is written"
                    )
            return key

        try:
            return self._facts.documents.register(kb, new, slot, store_original)
        except BaseException:
            self._remove_unused(stored)
            raise

    def _remove_unused(self, keys: Sequence[str]) -> None:
        """Remove what a failed submit has stored, unless a row names it: a lost connection may hide a commit."""
        if not keys:
            return
        try:
            used = self._facts.documents.originals_in_use(keys)
            self._objects.delete([key for key in keys if key not in used])
        except RagPipelineError as error:
            logger.warning("%s may be left over in the object store: %s", ", ".join(keys), error)


def _files(paths: Iterable[str | Path]) -> Iterator[_Found]:
    for each in paths:
        path = Path(each)
        if _is_folder(path):
            for below in sorted(path.rglob("*")):
                relative = below.relative_to(path)
                if any(part.startswith(".") for part in relative.parts):
                    continue
                if below.is_file() or below.is_symlink():
                    yield _Found(path=below, source_path=relative.as_posix(), is_stray=_is_stray(below, path))
        else:
            yield _Found(path=path, source_path=_given_path(path))


def _is_stray(path: Path, folder: Path) -> bool:
    """Whoever fills a folder must not make others read, by a link, what only they may read."""
    if not path.is_symlink():
        return False
    try:
        return not path.is_file() or not path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop
        return True


def _given_path(path: Path) -> str:
    """`a/README.md` and `b/README.md` are two documents; where a file lies on this machine is no part of its name."""
    return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that the file system refuses: the error of that one file
        return False


def _json_object(metadata: Mapping[str, object]) -> dict[str, object]:
    """The metadata as PostgreSQL gives it back. Raises `InvalidDocumentError` if it is not JSON."""
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidDocumentError(f"the metadata is not JSON: {error}") from error
    if "\\u0000" in text:
        raise InvalidDocumentError("the metadata holds a NUL character, which PostgreSQL does not store")
    found: dict[str, object] = json.loads(text)
    return found


@contextmanager
def _reading(content: bytes | Path) -> Iterator[None]:
    """Errors of the file system are errors of this one file."""
    try:
        yield
    except OSError as error:
        what = "the bytes" if isinstance(content, bytes) else content
        raise ResourceNotFoundError(f"cannot read {what}: {error.strerror}") from error


def _declared_size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _stamp(content: bytes | Path) -> tuple[int, ...] | None:
    """What changes when a file is written; None for bytes."""
    if isinstance(content, bytes):
        return None
    status = content.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _too_large(name: str, limit: int) -> DocumentTooLargeError:
    return DocumentTooLargeError(f"{name} is over the upload limit of {limit:,} bytes (RAG_MAX_UPLOAD_BYTES)")


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
