"""The content of a chunk snapshot."""

import json

from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.chunking import ChunkingOptions, chunk
from rag_pipeline.core.documents import Status
from rag_pipeline.core.parsed_document import BlockType, BoundingBox, DocumentBuilder, PageState, ParsedDocument
from rag_pipeline.core.snapshot import snapshot_content
from rag_pipeline.core.tokens import estimate_tokens
from rag_pipeline.core.work import WorkItem

ITEM = WorkItem(
    document_id="d1",
    kb_id="k1",
    kb_name="handbook",
    partition_key="handbook.report.pdf~d1",
    source_path="2024/report.pdf",
    file_name="report.pdf",
    status=Status.CHUNKING,
    version=3,
    live_version=2,
    attempt=1,
    batch_id="b1",
    sha256="ab" * 32,
    size_bytes=1234,
    object_key="k1/d1/v3/source.pdf",
    metadata={"team": "finance"},
)


def parsed() -> ParsedDocument:
    builder = DocumentBuilder(parser="pdf", parser_version="7")
    builder.metadata["title"] = "Report"
    builder.warn("page 2 is blank")
    builder.add_block(BlockType.HEADING, "Results", level=1, page=1)
    box = BoundingBox(left=1.0, top=2.0, right=3.0, bottom=4.0)
    builder.add_block(BlockType.PARAGRAPH, "收入增长了。", page=1, bbox=box, metadata={"language": "zh"})
    builder.add_page(state=PageState.TEXT, start=0, label="i")
    builder.add_page(state=PageState.BLANK, start=builder.length, reason="no marks")
    return builder.build()


def chunks_of(document: ParsedDocument) -> list[Chunk]:
    options = ChunkingOptions(target_tokens=320, max_tokens=480, overlap_tokens=48)
    return chunk(document, options, estimate_tokens)


def test_the_snapshot_tells_where_every_chunk_comes_from() -> None:
    document = parsed()
    content = json.loads(json.dumps(snapshot_content(ITEM, document, chunks_of(document)), ensure_ascii=False))
    assert content["format_version"] == 1
    assert content["stage"] == "chunk_snapshot"
    assert content["document"] == {
        "id": "d1",
        "version": 3,
        "knowledge_base": {"id": "k1", "name": "handbook"},
        "file_name": "report.pdf",
        "source_path": "2024/report.pdf",
        "sha256": "ab" * 32,
        "bytes": 1234,
        "metadata": {"team": "finance"},
    }
    assert content["parser"] == {"name": "pdf", "version": "7"}
    assert content["parsed_metadata"] == {"title": "Report"}
    assert content["warnings"] == ["page 2 is blank"]
    assert [(page["number"], page["label"], page["state"], page["reason"]) for page in content["pages"]] == [
        (1, "i", "text", None),
        (2, None, "blank", "no marks"),
    ]
    [only] = content["chunks"]
    assert only["id"] == "d1_3_0"
    assert only["parent_id"] == "d1_3_s0"
    assert only["text"] == "Results\n\n收入增长了。"
    assert only["heading_path"] == ["Results"]
    assert only["tokens"] > 0
    assert only["metadata"]["filename"] == "report.pdf"
    assert only["metadata"]["language"] == "zh"
    locator = only["metadata"]["source_locator"]
    assert (locator["page"], locator["page_end"], locator["start"], locator["end"]) == (1, 1, 0, len(document.text))
    assert locator["regions"] == [{"page": 1, "bbox": [1.0, 2.0, 3.0, 4.0]}]
    assert locator["block_types"] == ["heading", "paragraph"]


def test_the_snapshot_keeps_all_chunks_in_order_and_no_vectors() -> None:
    builder = DocumentBuilder(parser="text", parser_version="1")
    builder.add_block(BlockType.PARAGRAPH, "One sentence with some words in it. " * 200)
    document = builder.build()
    chunks = chunks_of(document)
    content = snapshot_content(ITEM, document, chunks)
    stored = content["chunks"]
    assert isinstance(stored, list)
    assert [each["text"] for each in stored] == [each.text for each in chunks]
    assert len(stored) > 3
    assert "embedding" not in json.dumps(content)
