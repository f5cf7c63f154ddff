"""The inbox: files that other programs drop into the bucket under `inbox/{knowledge base}/...`.

A file is registered like a submit and removed only if its ETag has not changed meanwhile. A refused one is moved to
`rejected/{knowledge base}/...` with the reason beside it. Files of a busy document and files that a down server kept
from being taken stay where they are.
"""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.core.ports import ObjectInfo, ObjectStore
from rag_pipeline.errors import (
    DocumentBusyError,
    DocumentTooLargeError,
    InvalidDocumentError,
    InvalidFileNameError,
    KnowledgeBaseInactiveError,
    ResourceNotFoundError,
)
from rag_pipeline.intake.submission import Submission

logger = logging.getLogger(__name__)

INBOX = "inbox/"
REJECTED = "rejected/"
REASON_SUFFIX = ".reason.txt"
LONGEST_SEGMENT = 246
"""Bytes of a key between slashes: the embedded store makes file names of them and appends nine (`.json.tmp`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxBite:
    """What one look into the inbox did."""

    registered: int
    rejected: int
    waiting: int
    """Files left for a later look: their document is busy, or they changed while they were read."""
    cursor: str
    """Where the next look goes on: the last key seen, empty after the end of the listing."""


class Inbox:
    """Takes files from the bucket's inbox in bounded bites."""

    def __init__(self, *, submission: Submission, objects: ObjectStore, max_upload_bytes: int) -> None:
        self._submission = submission
        self._objects = objects
        self._max_upload_bytes = max_upload_bytes

    def take(self, *, max_files: int, max_bytes: int, cursor: str = "") -> InboxBite:
        """Register files after the key `cursor`, at most `max_files`, and about `max_bytes` (at least one file).

        Raises:
            ObjectStoreUnavailableError, FactsUnavailableError: a server is down; what was taken before stays taken.
        """
        counts = {"registered": 0, "rejected": 0, "waiting": 0}
        found = list(self._objects.list(INBOX, start_after=cursor, limit=max_files))
        taken_bytes = 0
        for position, info in enumerate(found):
            taken_bytes += info.size
            if position and taken_bytes > max_bytes:
                return InboxBite(**counts, cursor=found[position - 1].key)
            if not info.key.endswith("/"):
                counts[self._take_one(info)] += 1
        return InboxBite(**counts, cursor=found[-1].key if len(found) == max_files else "")

    def _take_one(self, info: ObjectInfo) -> str:
        kb_name, _, path = info.key.removeprefix(INBOX).partition("/")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "file"
            try:
                if not path:
                    raise InvalidFileNameError(f"files belong into a knowledge base: {INBOX}<knowledge base>/{kb_name}")
                self._download(info, local)
                self._submission.submit(kb_name, local, source_path=path, created_by="inbox")
            except DocumentBusyError:
                return "waiting"
            except (InvalidDocumentError, ResourceNotFoundError, KnowledgeBaseInactiveError) as error:
                return self._reject(info, local, str(error))
        return "registered" if self._remove(info) else "waiting"

    def _download(self, info: ObjectInfo, local: Path) -> None:
        if info.size > self._max_upload_bytes:
            raise DocumentTooLargeError(
                f"{info.key} has {info.size:,} bytes, the upload limit is {self._max_upload_bytes:,} "
                "(RAG_MAX_UPLOAD_BYTES)"
            )
        self._objects.download(info.key, local)

    def _reject(self, info: ObjectInfo, local: Path, reason: str) -> str:
        key = REJECTED + info.key.removeprefix(INBOX)
        try:
            if not local.exists():
                self._objects.download(info.key, local)
            self._objects.put(key, local)
            self._objects.put(_reason_key(key), (reason + "\n").encode(), content_type="text/plain; charset=utf-8")
        except (ResourceNotFoundError, InvalidFileNameError) as error:
            # Its owner took it away meanwhile, or its key has a segment `..`, which no request can name.
            logger.warning("%r stays in the inbox: %s", info.key, error)
            return "waiting"
        self._remove(info)
        return "rejected"

    def _remove(self, info: ObjectInfo) -> bool:
        now = self._objects.stat(info.key)
        if now is not None and now.etag != info.etag:
            return False
        self._objects.delete([info.key])
        return True


def _reason_key(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    room = LONGEST_SEGMENT - len(REASON_SUFFIX)
    return folder + slash + name.encode()[:room].decode(errors="ignore") + REASON_SUFFIX
