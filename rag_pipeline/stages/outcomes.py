"""Turning what happens to one document into an outcome: no error of one document reaches another."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.work import OutcomeKind, StageOutcome, WorkItem
from rag_pipeline.errors import InternalError, OwnershipLostError, RagPipelineError
from rag_pipeline.stages.workspace import Workspace

logger = logging.getLogger(__name__)

FENCE_SECONDS = 0.5
INTERNAL_ERROR_CHARACTERS = 300
"""Drivers put statements with their parameters into messages: documents keep the gist, the log the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What a stage made of one document."""

    summary: Mapping[str, object] = field(default_factory=dict)
    artefact_key: str | None = None
    is_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedGroup:
    """Some items that the batch still owns, and outcomes for those it lost."""

    items: tuple[WorkItem, ...]
    lost: tuple[StageOutcome, ...]


def owned_groups(workspace: Workspace, stage: Stage, items: Sequence[WorkItem], size: int = 32) -> Iterator[OwnedGroup]:
    """Items in groups of `size`, each checked against the claim just before its external writes."""
    for start in range(0, len(items), size):
        group = items[start : start + size]
        owned = workspace.ledger.still_owned(group)
        yield OwnedGroup(
            items=tuple(item for item in group if item.document_id in owned),
            lost=tuple(lost(item, stage) for item in group if item.document_id not in owned),
        )


class Fence:
    """Which items the batch still owns, for stages whose documents come one by one: asked again every half second."""

    def __init__(self, workspace: Workspace, items: Sequence[WorkItem]) -> None:
        self._ledger = workspace.ledger
        self._items = items
        self._owned: frozenset[str] = frozenset()
        self._asked_at = -math.inf

    def owns(self, item: WorkItem) -> bool:
        """Whether the batch may write for the item."""
        now = time.monotonic()
        if now - self._asked_at > FENCE_SECONDS:
            self._owned = self._ledger.still_owned(self._items)
            self._asked_at = now
        return item.document_id in self._owned


def lost(item: WorkItem, stage: Stage) -> StageOutcome:
    """The outcome of a document that was canceled, deleted or taken over meanwhile: nothing more is written for it."""
    return StageOutcome(
        item=item,
        stage=stage,
        kind=OutcomeKind.DROPPED,
        error=OwnershipLostError(f"{item.file_name} was canceled, deleted or taken over by another run"),
    )


def produced(item: WorkItem, stage: Stage, result: Produced, milliseconds: int = 0) -> StageOutcome:
    """The outcome of a document that came through."""
    return StageOutcome(
        item=item,
        stage=stage,
        kind=OutcomeKind.EMPTY if result.is_empty else OutcomeKind.DONE,
        summary=result.summary,
        artefact_key=result.artefact_key,
        milliseconds=milliseconds,
    )


def failed(item: WorkItem, stage: Stage, error: Exception, milliseconds: int = 0) -> StageOutcome:
    """The outcome of a document that failed; an error that is not ours is a fault of ours and is logged whole."""
    if not isinstance(error, RagPipelineError):
        logger.error("%s failed for %s", stage, item.partition_key, exc_info=error)
        first_line = next(iter(str(error).splitlines()), "")[:INTERNAL_ERROR_CHARACTERS]
        error = InternalError(f"unexpected {type(error).__name__}: {first_line} (the run's log has it whole)")
    return StageOutcome(item=item, stage=stage, kind=OutcomeKind.FAILED, error=error, milliseconds=milliseconds)


def for_each(
    workspace: Workspace, stage: Stage, items: Sequence[WorkItem], work: Callable[[WorkItem], Produced]
) -> Iterator[StageOutcome]:
    """Run `work` for every item on the workspace's threads and yield the outcomes as they finish."""
    futures = [workspace.threads.submit(attempt, stage, item, work) for item in items]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def timed_together(outcomes: Iterator[StageOutcome], sizes: Mapping[str, int]) -> list[StageOutcome]:
    """Outcomes of documents that were worked on together, each with its share of the time, by its size.

    Args:
        outcomes: of the group; the work is done while they are drawn.
        sizes: by document id.
    """
    started = time.monotonic()
    found = list(outcomes)
    milliseconds = (time.monotonic() - started) * 1000
    total = sum(max(sizes[each.item.document_id], 1) for each in found)
    return [
        replace(each, milliseconds=round(milliseconds * max(sizes[each.item.document_id], 1) / total)) for each in found
    ]


def attempt(stage: Stage, item: WorkItem, work: Callable[[WorkItem], Produced]) -> StageOutcome:
    """Run `work` for one item; whatever it raises belongs to this document alone."""
    started = time.monotonic()
    try:
        result = work(item)
    except Exception as error:  # noqa: BLE001 - the boundary between documents; `failed` keeps and logs the error
        return failed(item, stage, error, _milliseconds_since(started))
    return produced(item, stage, result, _milliseconds_since(started))


def _milliseconds_since(started: float) -> int:
    return int((time.monotonic() - started) * 1000)
