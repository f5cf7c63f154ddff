"""Stage `parsed_blocks`: originals in, blocks and page ledger as Parquet and images as objects out.

Parsing happens in worker processes that may hang, crash or run out of memory without harm to the other documents.
"""

from collections.abc import Iterator, Mapping, Sequence

from rag_pipeline.adapters.postgres.chunk_rows import ImageRow
from rag_pipeline.core.documents import Stage
from rag_pipeline.core.partitions import artefact_key, image_id, image_key
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.core.work import OutcomeKind, StageOutcome, WorkItem
from rag_pipeline.errors import InternalError
from rag_pipeline.parsing.pool import ParseOutcome, ParserPool
from rag_pipeline.parsing.worker import ImageFile, ParseSummary
from rag_pipeline.stages.fetch import local_original
from rag_pipeline.stages.outcomes import Fence, Produced, attempt, failed, for_each, lost
from rag_pipeline.stages.workspace import Workspace

BYTES_PER_WORKER = 1_000_000
"""A process costs about a CPU second to start, as much as parsing some hundred small texts."""


def parse(workspace: Workspace, items: Sequence[WorkItem]) -> Iterator[StageOutcome]:
    """Parse the documents in the worker processes, uploading results as they come."""
    settings = workspace.services.settings
    fetched: dict[str, WorkItem] = {}
    for outcome in for_each(workspace, Stage.PARSED_BLOCKS, items, lambda item: _download(workspace, item)):
        if outcome.kind is OutcomeKind.FAILED:
            yield outcome
        else:
            fetched[outcome.item.document_id] = outcome.item
    if not fetched:
        return
    fence = Fence(workspace, list(fetched.values()))
    given_up: list[WorkItem] = []
    total_bytes = sum(item.size_bytes for item in fetched.values())
    workers = min(settings.parser_processes, len(fetched), 1 + total_bytes // BYTES_PER_WORKER)
    with ParserPool(workers=workers) as pool:
        requests = _requests(workspace, fetched, fence, given_up)
        for parsed in pool.parse(requests, workspace.scratch):
            yield _settle(workspace, fetched[parsed.key], parsed, fence)
    yield from (lost(item, Stage.PARSED_BLOCKS) for item in given_up)


def _requests(
    workspace: Workspace, fetched: Mapping[str, WorkItem], fence: Fence, given_up: list[WorkItem]
) -> Iterator[tuple[str, ParseRequest]]:
    """What the parser is to do, as it asks for more; documents that were lost meanwhile go into `given_up`."""
    for document_id, item in fetched.items():
        if fence.owns(item):
            path = local_original(workspace, item)
            limits = workspace.services.parse_limits
            yield document_id, ParseRequest(path=path, file_name=item.file_name, limits=limits)
        else:
            given_up.append(item)


def _download(workspace: Workspace, item: WorkItem) -> Produced:
    local_original(workspace, item)
    return Produced()


def _settle(workspace: Workspace, item: WorkItem, parsed: ParseOutcome, fence: Fence) -> StageOutcome:
    workspace.originals.pop(item.document_id).unlink()
    if parsed.error is not None:
        return failed(item, Stage.PARSED_BLOCKS, parsed.error, int(parsed.seconds * 1000))
    if not fence.owns(item):
        return lost(item, Stage.PARSED_BLOCKS)
    outcome = attempt(Stage.PARSED_BLOCKS, item, lambda each: _store(workspace, each, parsed))
    for path in [parsed.path, *(image.path for image in parsed.images)]:
        if path is not None:
            path.unlink(missing_ok=True)
    return outcome


def _store(workspace: Workspace, item: WorkItem, parsed: ParseOutcome) -> Produced:
    """Put the parsed document and its images into the object store."""
    if parsed.path is None or parsed.summary is None:
        raise InternalError("the parser process gave neither a document nor an error")
    key = artefact_key(item.kb_id, item.document_id, item.version, Stage.PARSED_BLOCKS, item.attempt)
    workspace.services.artefacts.put_file(key, parsed.path)
    if parsed.images or item.attempt > 1:
        rows = [_store_image(workspace, item, image) for image in parsed.images]
        workspace.services.facts.chunk_rows.upsert_images(item, rows)
    return Produced(summary=_summary(parsed.summary, parsed), artefact_key=key, is_empty=not parsed.summary.has_content)


def _store_image(workspace: Workspace, item: WorkItem, image: ImageFile) -> ImageRow:
    key = image_key(item.kb_id, item.document_id, item.version, image.position, image.media_type)
    workspace.services.objects.put(key, image.path, content_type=image.media_type)
    box = image.bbox
    return ImageRow(
        id=image_id(item.document_id, item.version, image.page, image.position),
        position=image.position,
        object_key=key,
        media_type=image.media_type,
        width=image.width,
        height=image.height,
        page=image.page,
        bbox=None if box is None else {"left": box.left, "top": box.top, "right": box.right, "bottom": box.bottom},
        description=image.description,
    )


def _summary(summary: ParseSummary, parsed: ParseOutcome) -> dict[str, object]:
    return {
        "pages": summary.pages,
        "characters": summary.characters,
        "blocks": summary.blocks,
        "images": len(parsed.images),
        "parser": f"{summary.parser} {summary.parser_version}",
        "warnings": list(summary.warnings),
        "seconds": round(parsed.seconds, 3),
        "preview": summary.excerpt,
    }
