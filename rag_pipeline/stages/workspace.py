"""The room a batch works in: services, scratch folder, artefacts of its documents, and the fence before writes."""

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rag_pipeline.adapters.artefacts import chunks_from_parquet
from rag_pipeline.adapters.postgres.ledger import StageLedger
from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.work import StageArtefact, WorkItem
from rag_pipeline.errors import MissingArtefactError
from rag_pipeline.stages.services import Services

_CACHED_CHARACTERS = 50_000_000


@dataclass(kw_only=True)
class Workspace:
    """State of one running batch. Stages read their input here and say where their output lies."""

    services: Services
    ledger: StageLedger
    scratch: Path
    threads: ThreadPoolExecutor
    artefacts: dict[tuple[str, Stage], StageArtefact] = field(default_factory=dict)
    """Winning artefacts of the batch's document versions, by document id and stage."""
    originals: dict[str, Path] = field(default_factory=dict)
    """Originals downloaded to the scratch folder, by document id."""
    collection: str = ""
    """The one that the batch has written to; set by the stage `index_writes`."""
    _chunks: "OrderedDict[str, list[Chunk]]" = field(default_factory=OrderedDict)
    _characters: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def input_key(self, item: WorkItem, stage: Stage) -> str:
        """Key of a stage's winning artefact.

        Raises:
            MissingArtefactError: the stage has not run for this version.
        """
        artefact = self.artefacts.get((item.document_id, stage))
        if artefact is None or artefact.artefact_key is None:
            raise MissingArtefactError(f"{item.file_name} has no {stage} yet: materialize from {stage}")
        return artefact.artefact_key

    def chunks(self, item: WorkItem) -> list[Chunk]:
        """The chunks of an item, from memory or from the artefact."""
        found = self._chunks.get(item.document_id)
        if found is None:
            found = chunks_from_parquet(self.services.artefacts.get(self.input_key(item, Stage.CHUNKS)))
            self.keep_chunks(item, found)
        return found

    def keep_chunks(self, item: WorkItem, chunks: list[Chunk]) -> None:
        """Remember chunks for the stages that follow in this run, within a bound."""
        with self._lock:
            self._characters += _characters(chunks) - _characters(self._chunks.pop(item.document_id, []))
            self._chunks[item.document_id] = chunks
            while self._characters > _CACHED_CHARACTERS and len(self._chunks) > 1:
                _, dropped = self._chunks.popitem(last=False)
                self._characters -= _characters(dropped)


@contextmanager
def open_workspace(services: Services, ledger: StageLedger) -> Iterator[Workspace]:
    """A workspace whose scratch folder and threads are gone afterwards."""
    parent = services.settings.data_dir / "scratch"
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=parent))
    try:
        with ThreadPoolExecutor(max_workers=8, thread_name_prefix="stage") as threads:
            yield Workspace(services=services, ledger=ledger, scratch=scratch, threads=threads)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def in_groups(items: Iterable[WorkItem], sizes: Mapping[str, int], limit: int) -> Iterator[list[WorkItem]]:
    """Consecutive items whose sizes (by document id) add up to at most `limit`; a larger item goes alone."""
    group: list[WorkItem] = []
    total = 0
    for item in items:
        size = sizes[item.document_id]
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def _characters(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.text) for chunk in chunks)
