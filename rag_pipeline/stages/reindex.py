"""What is out of date, and building the next version of it beside the live one."""

from rag_pipeline.adapters.postgres.staleness import SettledDocument
from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.core.staleness import ReindexPlan, StaleDocument, stages_of, stale_stages
from rag_pipeline.errors import DocumentBusyError
from rag_pipeline.stages.generation import plan_generation
from rag_pipeline.stages.services import Services
from rag_pipeline.stages.snapshot import restore_snapshot


def plan_reindex(services: Services, *, kb_id: str | None = None) -> ReindexPlan:
    """Compare the fingerprints of settled documents with those of the present code and configuration.

    FAILED and CANCELED documents are not in it: `retry` does for them what has become stale as well.
    """
    services = services.serving()
    examined = 0
    stale: list[StaleDocument] = []
    for page in services.facts.staleness.settled(kb_id=kb_id):
        examined += len(page)
        stale += [found for document in page if (found := _stale(services, document)) is not None]
    return ReindexPlan(
        examined=examined,
        documents=tuple(stale),
        price_per_million_tokens=services.settings.embedding_price_per_million_tokens,
        next_generation=plan_generation(services),
    )


def reindex_stale(services: Services, *, kb_id: str | None = None) -> int:
    """Queue the next version of every stale document; returns how many. The sensor does the rest, batched."""
    services = services.serving()
    queued = 0
    for page in services.facts.staleness.settled(kb_id=kb_id):
        items = [document.item for document in page if _stale(services, document) is not None]
        wanted = {item.document_id: services.fingerprints(item) for item in items}
        queued += len(services.facts.claims.open_versions(items, wanted))
    return queued


def reindex(services: Services, document: Document, *, from_stage: Stage | None, force: bool) -> None:
    """Queue the next version of one document.

    Args:
        services: adapters and settings.
        document: the document.
        from_stage: do this stage and all after it, also when nothing has changed; None: from the first stale one.
        force: do every stage; the same as `from_stage=Stage.SOURCE_DOCUMENT`.

    Without either, a READY document of which nothing is stale stays as it is; one that was rolled back answers with
    its newest version again; a FAILED or CANCELED one goes on from where it stopped.

    Raises:
        DocumentBusyError: it is being worked on, canceled or deleted.
    """
    services = services.serving()
    first = Stage.SOURCE_DOCUMENT if force else from_stage
    if not document.is_settled:
        raise _busy(document)
    item = services.facts.claims.items(partition_keys=[document.partition_key])[0]
    wanted = services.fingerprints(item)
    if first is None:
        if item.status in (Status.FAILED, Status.CANCELED):
            services.facts.documents.retry(item.document_id)
            return
        if item.status is Status.READY:
            version = services.facts.versions.roll_forward(item.document_id)
            if version is not None:
                restore_snapshot(services, SnapshotRef(kb_id=item.kb_id, document_id=item.document_id, version=version))
        have = services.facts.claims.artefacts([item.document_id]).get((item.document_id, item.version), {})
        present = {stage: artefact.fingerprint for stage, artefact in have.items()}
        if not stale_stages(present, wanted, stages_of(item.status)):
            return
    kept = {stage: value for stage, value in wanted.items() if first is None or _is_before(stage, first)}
    if not services.facts.claims.open_versions([item], {item.document_id: kept}):
        raise _busy(document)


def roll_back(services: Services, document: Document) -> int:
    """Let the newest older version that is kept answer again, at once; returns its number.

    Raises:
        DocumentBusyError, IllegalTransitionError: see `Versions.roll_back`.
    """
    version = services.facts.versions.roll_back(document.id)
    restore_snapshot(services, SnapshotRef(kb_id=document.kb_id, document_id=document.id, version=version))
    return version


def _stale(services: Services, document: SettledDocument) -> StaleDocument | None:
    item = document.item
    stages = stale_stages(document.fingerprints, services.fingerprints(item), stages_of(item.status))
    if not stages:
        return None
    return StaleDocument(
        document_id=item.document_id,
        kb_name=item.kb_name,
        source_path=item.source_path,
        version=item.version,
        stages=stages,
        tokens=document.tokens,
        milliseconds=sum(document.milliseconds.get(stage, 0) for stage in stages),
    )


def _is_before(stage: Stage, first: Stage) -> bool:
    order = list(Stage)
    return order.index(stage) < order.index(first)


def _busy(document: Document) -> DocumentBusyError:
    return DocumentBusyError(
        f"{document.source_path} is {document.status}: wait for version {document.version}, or cancel it"
    )
