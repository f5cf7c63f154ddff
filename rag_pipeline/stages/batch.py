"""Taking a batch of documents through the stages: claims, fingerprints, the stages themselves, READY, and the report.

What a run does with each document of its partitions:

| the document is                     | it is            | every selected asset logs                              |
|-------------------------------------|------------------|--------------------------------------------------------|
| PENDING, FAILED                     | worked on        | a materialization per finished stage                   |
| CANCELED, a person's run            | worked on        | a materialization per finished stage                   |
| CANCELED, the sensor's run          | left alone       | an observation that says so                            |
| READY or NO_CONTENT, nothing stale  | left alone       | a materialization with the old metadata                |
| found to have no content            | NO_CONTENT       | a materialization that says so                         |
| READY or NO_CONTENT, stale, forced  | a new version    | a materialization per finished stage                   |
| owned by another live batch         | left alone       | an observation that says so                            |
| CANCELING, DELETING, without a row  | left alone       | an observation that says so                            |

A document that fails gets an observation with the reason on the failing asset, and nothing after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rag_pipeline.core.documents import FINISHED, Stage, Status
from rag_pipeline.core.staleness import stages_of, stale_stages
from rag_pipeline.core.work import OutcomeKind, StageArtefact, StageOutcome, WorkItem
from rag_pipeline.errors import GenerationSwitchedError, MissingArtefactError, OwnershipLostError
from rag_pipeline.stages.cancel import settle_canceled
from rag_pipeline.stages.chunk import chunk_documents
from rag_pipeline.stages.embed import embed
from rag_pipeline.stages.fetch import fetch
from rag_pipeline.stages.heartbeat import heartbeat
from rag_pipeline.stages.index import index
from rag_pipeline.stages.outcomes import failed, lost
from rag_pipeline.stages.parse import parse
from rag_pipeline.stages.services import Services
from rag_pipeline.stages.snapshot import write_snapshots
from rag_pipeline.stages.workspace import Workspace, open_workspace

StageFunction = Callable[[Workspace, Sequence[WorkItem]], Iterator[StageOutcome]]

STAGE_FUNCTIONS: Mapping[Stage, StageFunction] = {
    Stage.SOURCE_DOCUMENT: fetch,
    Stage.PARSED_BLOCKS: parse,
    Stage.CHUNKS: chunk_documents,
    Stage.CHUNK_SNAPSHOT: write_snapshots,
    Stage.EMBEDDINGS: embed,
    Stage.INDEX_WRITES: index,
}
OUTCOMES_PER_RECORD = 64
"""Outcomes written down and reported together: a crash loses at most the record of these, never their artefacts."""

Report = Callable[[Stage, Sequence[StageOutcome]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """What a run was asked to do."""

    run_id: str
    partition_keys: tuple[str, ...]
    stages: tuple[Stage, ...]
    batch_id: str | None = None
    """Set by the sensor; None when a person started the run."""
    force: bool = False
    """Do every selected stage again although nothing changed."""


@dataclass(kw_only=True)
class BatchResult:
    """What became of the documents."""

    ready: int = 0
    failures: list[StageOutcome] = field(default_factory=list)
    left_alone: int = 0
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class _Plan:
    mine: list[WorkItem]
    settled: list[WorkItem]
    """Nothing to do: their old metadata is logged."""
    elsewhere: list[WorkItem]
    """Owned by another batch, or on the way out."""


def run_batch(services: Services, request: BatchRequest, report: Report) -> BatchResult:
    """Do the selected stages for the documents of the partitions.

    Args:
        services: adapters and settings.
        request: documents and stages.
        report: called with outcomes as they are written down, grouped by stage.

    Raises:
        TemporaryError: the facts database is down; what was recorded before stays recorded, the recovery does the rest.
    """
    services = services.serving()
    result = BatchResult()
    items = services.facts.claims.items(partition_keys=request.partition_keys)
    owner, items, opened = _claim(services, request, items)
    plan = _split(items, owner)
    artefacts = services.facts.claims.artefacts([item.document_id for item in items])
    _report_left_alone(request, plan, artefacts, report)
    result.left_alone = len(plan.settled) + len(plan.elsewhere)
    ledger = services.facts.ledger(batch_id=owner, run_id=request.run_id)
    try:
        with (
            heartbeat(services.facts.claims, owner, lease_seconds=services.settings.lease_seconds),
            open_workspace(services, ledger) as workspace,
        ):
            for item in plan.mine:
                for stage, artefact in artefacts.get((item.document_id, item.version), {}).items():
                    workspace.artefacts[item.document_id, stage] = artefact
            _BatchRun(workspace, request, opened, report, result).run(plan.mine)
    finally:
        services.facts.claims.finish(owner)
    return result


def _claim(
    services: Services, request: BatchRequest, items: list[WorkItem]
) -> tuple[str, list[WorkItem], frozenset[str]]:
    """Own what can be owned; returns the owner, the items as they are now, and the documents with a new version."""
    claims = services.facts.claims
    opened: frozenset[str] = frozenset()
    if request.batch_id and claims.begin_queued(request.batch_id, request.run_id):
        owner = request.batch_id
    else:
        stale = _stale(services, request, items)
        rebuilt = [item for item in stale if item.status in FINISHED]
        opened = claims.open_versions(rebuilt, {item.document_id: services.fingerprints(item) for item in rebuilt})
        owner = claims.begin_manual(request.run_id, [item.document_id for item in stale])
    return owner, claims.items(partition_keys=request.partition_keys), opened


def _stale(services: Services, request: BatchRequest, items: Sequence[WorkItem]) -> list[WorkItem]:
    """The items for which something is to do."""
    artefacts = services.facts.claims.artefacts([item.document_id for item in items])
    # A batch whose documents were canceled before it began does not bring them back.
    startable = {Status.PENDING, Status.FAILED} | (set() if request.batch_id else {Status.CANCELED})
    found = []
    for item in items:
        if item.batch_id is None and item.status in startable:
            found.append(item)
        elif item.status in FINISHED:
            wanted = services.fingerprints(item)
            have = artefacts.get((item.document_id, item.version), {})
            present = {stage: artefact.fingerprint for stage, artefact in have.items()}
            stages = [stage for stage in request.stages if stage in stages_of(item.status)]
            if request.force or stale_stages(present, wanted, stages):
                found.append(item)
    return found


def _split(items: Sequence[WorkItem], owner: str) -> _Plan:
    mine = [item for item in items if item.batch_id == owner]
    others = [item for item in items if item.batch_id != owner]
    is_settled = [item.batch_id is None and item.status in FINISHED for item in others]
    return _Plan(
        mine=mine,
        settled=[item for item, settled in zip(others, is_settled, strict=True) if settled],
        elsewhere=[item for item, settled in zip(others, is_settled, strict=True) if not settled],
    )


def _report_left_alone(
    request: BatchRequest,
    plan: _Plan,
    artefacts: Mapping[tuple[str, int], Mapping[Stage, StageArtefact]],
    report: Report,
) -> None:
    for stage in request.stages:
        outcomes = []
        for item in plan.settled:
            artefact = artefacts.get((item.document_id, item.version), {}).get(stage)
            outcomes.append(_nothing(item, stage) if artefact is None else _unchanged(item, artefact))
        for item in plan.elsewhere:
            reason = f"it is {item.status}" + (f" in the batch {item.batch_id}" if item.batch_id else "")
            error = OwnershipLostError(f"{item.file_name} was left alone: {reason}")
            outcomes.append(StageOutcome(item=item, stage=stage, kind=OutcomeKind.DROPPED, error=error))
        if outcomes:
            report(stage, outcomes)


def _unchanged(item: WorkItem, artefact: StageArtefact) -> StageOutcome:
    return StageOutcome(
        item=item,
        stage=artefact.stage,
        kind=OutcomeKind.UNCHANGED,
        summary=artefact.summary,
        artefact_key=artefact.artefact_key,
    )


def _nothing(item: WorkItem, stage: Stage) -> StageOutcome:
    """A document without content ends early, and that is no failure: its later assets say so."""
    return StageOutcome(item=item, stage=stage, kind=OutcomeKind.EMPTY, summary={"content": "none"})


class _BatchRun:
    """The documents of one batch on their way through the stages."""

    def __init__(
        self,
        workspace: Workspace,
        request: BatchRequest,
        opened: frozenset[str],
        report: Report,
        result: BatchResult,
    ) -> None:
        self._workspace = workspace
        self._request = request
        self._opened = opened
        self._report = report
        self._result = result
        self._wanted: dict[str, dict[Stage, str]] = {}

    def run(self, items: Sequence[WorkItem]) -> None:
        alive = list(items)
        self._wanted = {item.document_id: self._workspace.services.fingerprints(item) for item in items}
        for stage in Stage:
            due = self._due(stage, alive)
            if due:
                ended = {item.document_id for item in due} - {item.document_id for item in self._run_stage(stage, due)}
                alive = [item for item in alive if item.document_id not in ended]
        self._workspace.ledger.hand_back(alive)

    def _due(self, stage: Stage, alive: list[WorkItem]) -> list[WorkItem]:
        """Those that the run does the stage for: all, if it is selected.

        A version that the run has opened has no snapshot of its own yet, and needs it before anything is paid for.
        """
        if stage in self._request.stages:
            return alive
        pays = not {Stage.EMBEDDINGS, Stage.INDEX_WRITES}.isdisjoint(self._request.stages)
        if stage is Stage.CHUNK_SNAPSHOT and pays:
            return [item for item in alive if item.document_id in self._opened]
        return []

    def _run_stage(self, stage: Stage, items: list[WorkItem]) -> list[WorkItem]:
        """Do one stage and return the documents that go on."""
        to_do, unchanged, refused = self._sort(stage, items)
        self._report_all(stage, unchanged)
        owned = self._workspace.ledger.begin(stage, [*to_do, *(outcome.item for outcome in refused)])
        self._report_lost(stage, [item for item in to_do if item.document_id not in owned])
        alive = {outcome.item.document_id for outcome in unchanged}
        outcomes = list(refused)
        for outcome in STAGE_FUNCTIONS[stage](self._workspace, [item for item in to_do if item.document_id in owned]):
            outcomes.append(outcome)
            if len(outcomes) >= OUTCOMES_PER_RECORD:
                alive |= self._record(stage, outcomes)
                outcomes = []
        alive |= self._record(stage, outcomes)
        return [item for item in items if item.document_id in alive]

    def _sort(
        self, stage: Stage, items: Sequence[WorkItem]
    ) -> tuple[list[WorkItem], list[StageOutcome], list[StageOutcome]]:
        """To do, nothing to do, and not possible because the upstream artefact is missing or out of date."""
        to_do, unchanged, refused = [], [], []
        for item in items:
            artefact = self._workspace.artefacts.get((item.document_id, stage))
            is_same = artefact is not None and artefact.fingerprint == self._wanted[item.document_id][stage]
            if artefact and is_same and stage is not Stage.INDEX_WRITES and not self._request.force:
                unchanged.append(_unchanged(item, artefact))
            elif (missing := self._missing_upstream(stage, item)) is not None:
                error = MissingArtefactError(
                    f"{missing} of {item.file_name} is missing or out of date: materialize from {missing}"
                )
                refused.append(failed(item, stage, error))
            else:
                to_do.append(item)
        return to_do, unchanged, refused

    def _missing_upstream(self, stage: Stage, item: WorkItem) -> Stage | None:
        """The first stage before this one whose artefact is not there in its present form."""
        for upstream in Stage:
            if upstream is stage:
                return None
            artefact = self._workspace.artefacts.get((item.document_id, upstream))
            if artefact is None or artefact.fingerprint != self._wanted[item.document_id][upstream]:
                return upstream
        return None

    def _record(self, stage: Stage, outcomes: Sequence[StageOutcome]) -> set[str]:
        """Write outcomes down, report them, and return the documents that go on."""
        if not outcomes:
            return set()
        wanted = {outcome.item.document_id: self._wanted[outcome.item.document_id][stage] for outcome in outcomes}
        going_on = self._workspace.ledger.record(stage, outcomes, wanted)
        for outcome in outcomes:
            if outcome.item.document_id in going_on:
                self._workspace.artefacts[outcome.item.document_id, stage] = StageArtefact(
                    stage=stage,
                    fingerprint=wanted[outcome.item.document_id],
                    artefact_key=outcome.artefact_key,
                    summary=outcome.summary,
                )
        if stage is Stage.INDEX_WRITES:
            published, outcomes = self._publish(outcomes, going_on, wanted)
            going_on_after: set[str] = set()
        else:
            published, going_on_after = going_on, set(going_on)
        gone = self._let_go([each.item for each in outcomes if each.item.document_id not in published])
        self._report_all(stage, [self._true_outcome(outcome, published, gone) for outcome in outcomes])
        self._report_nothing_after(stage, [each.item for each in outcomes if each.kind is OutcomeKind.EMPTY])
        return going_on_after

    def _report_nothing_after(self, stage: Stage, items: Sequence[WorkItem]) -> None:
        stages = list(Stage)
        for later in stages[stages.index(stage) + 1 :]:
            if later in self._request.stages:
                self._report_all(later, [_nothing(item, later) for item in items])

    def _publish(
        self, outcomes: Sequence[StageOutcome], going_on: frozenset[str], wanted: Mapping[str, str]
    ) -> tuple[frozenset[str], Sequence[StageOutcome]]:
        """Make the documents that go on READY; returns them, and the outcomes as they are now."""
        ledger = self._workspace.ledger
        items = [each.item for each in outcomes if each.item.document_id in going_on]
        try:
            published = ledger.publish(items, collection=self._workspace.collection)
        except GenerationSwitchedError as error:
            refused = [failed(item, Stage.INDEX_WRITES, error) for item in items]
            ledger.record(Stage.INDEX_WRITES, refused, wanted)
            return frozenset(), [*refused, *(each for each in outcomes if each.item.document_id not in going_on)]
        self._result.ready += len(published)
        return published, outcomes

    def _true_outcome(self, outcome: StageOutcome, kept: frozenset[str], gone: frozenset[str]) -> StageOutcome:
        """What a stage did for a document that the batch has lost meanwhile does not count, neither does its failure.

        `gone`: those of the lost ones that were canceled or deleted.
        """
        is_lost = outcome.kind is OutcomeKind.DONE and outcome.item.document_id not in kept
        return lost(outcome.item, outcome.stage) if is_lost or outcome.item.document_id in gone else outcome

    def _report_lost(self, stage: Stage, items: Sequence[WorkItem]) -> None:
        self._let_go(items)
        self._report_all(stage, [lost(item, stage) for item in items])

    def _let_go(self, items: Sequence[WorkItem]) -> frozenset[str]:
        """Give up documents with which this batch is done, if they were canceled or deleted; returns those."""
        gone = self._workspace.ledger.let_go(items)
        settle_canceled(self._workspace.services, document_ids=gone)
        return gone

    def _report_all(self, stage: Stage, outcomes: Sequence[StageOutcome]) -> None:
        if not outcomes:
            return
        self._result.failures.extend(outcome for outcome in outcomes if outcome.kind is OutcomeKind.FAILED)
        self._result.lost += sum(outcome.kind is OutcomeKind.DROPPED for outcome in outcomes)
        if stage in self._request.stages:
            self._report(stage, outcomes)
