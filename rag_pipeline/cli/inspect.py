"""Command inspect: what a file would look like in a knowledge base. Parses and chunks; no server, nothing stored."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.parsed_document import BlockType, ParsedDocument
from rag_pipeline.parsing.pool import ParseOutcome
from rag_pipeline.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(inspect)


def inspect(
    files: Annotated[list[Path], typer.Argument(help="Files to look at.", exists=True, dir_okay=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a file and line, for scripts.")] = False,
    password: Annotated[str | None, typer.Option(help="For encrypted files.")] = None,
) -> None:
    """Parse and chunk files without storing anything: pages, headings, tables, warnings, chunks, errors."""
    settings = Settings.load()
    failed = False
    for path, outcome, document in _parsed(files, settings, password):
        chunks = _chunks(document, settings) if document else []
        failed = failed or outcome.error is not None
        if as_json:
            print(json.dumps(json_line(path, outcome, document, chunks)), flush=True)
        else:
            from rag_pipeline.cli.outline import print_outline

            print_outline(path, outcome, document, chunks)
    if failed:
        raise typer.Exit(1)


def json_line(
    path: Path, outcome: ParseOutcome, document: ParsedDocument | None, chunks: Sequence[Chunk]
) -> dict[str, object]:
    """What `--json` prints for one file; offsets are characters of `text`."""
    line: dict[str, object] = {
        "file": str(path),
        "status": "error" if outcome.error else "ok" if chunks else "no_content",
        "error": _error(outcome, document, chunks),
        "seconds": round(outcome.seconds, 3),
        "rss_mb": None if outcome.peak_memory_bytes is None else round(outcome.peak_memory_bytes / 1e6, 1),
    }
    if document is None:
        return line
    return line | {
        "parser": document.parser,
        "pages": len(document.pages) or None,
        "page_texts": [document.text[page.start : page.end] for page in document.pages] or None,
        "text": document.text,
        "rows": [list(row) for block in document.blocks for row in block.rows],
        "sheets": document.metadata.get("sheets"),
        "headings": [block.heading_path[-1] for block in document.blocks if block.type is BlockType.HEADING],
        "columns": document.metadata.get("columns"),
        "warnings": list(document.warnings),
        "chunks": [
            {
                "index": chunk.index,
                "text": chunk.text,
                "start": chunk.start,
                "end": chunk.end,
                "page": chunk.page,
                "page_end": chunk.page_end,
                "heading_path": list(chunk.heading_path),
                "tokens": chunk.tokens,
            }
            for chunk in chunks
        ],
    }


def _error(outcome: ParseOutcome, document: ParsedDocument | None, chunks: Sequence[Chunk]) -> dict[str, str] | None:
    """Code and message of an error, or why there is nothing to find; None if all is well."""
    if outcome.error is not None:
        return {"code": outcome.error.code, "message": str(outcome.error)}
    if document is None or chunks:
        return None
    return {"code": "no_content", "message": "; ".join(["no text was found", *document.warnings])}


def _parsed(
    files: Sequence[Path], settings: Settings, password: str | None
) -> Iterator[tuple[Path, ParseOutcome, ParsedDocument | None]]:
    """Outcomes in the order of the files; files are parsed at the same time, in processes under limits."""
    from rag_pipeline.core.ports import ParseRequest
    from rag_pipeline.parsing.limits import limits_of
    from rag_pipeline.parsing.pool import ParserPool
    from rag_pipeline.parsing.serialization import read_document

    limits = limits_of(settings)
    requests = [
        (str(number), ParseRequest(path=path, file_name=path.name, password=password, limits=limits))
        for number, path in enumerate(files)
    ]
    finished: dict[str, ParseOutcome] = {}
    following = 0
    with (
        TemporaryDirectory(prefix="rag-pipeline-inspect-") as scratch,
        ParserPool(min(settings.parser_processes, len(files))) as pool,
    ):
        for outcome in pool.parse(requests, Path(scratch)):
            finished[outcome.key] = outcome
            while str(following) in finished:
                ready = finished.pop(str(following))
                yield files[following], ready, read_document(ready.path) if ready.path else None
                following += 1


def _chunks(document: ParsedDocument, settings: Settings) -> list[Chunk]:
    from rag_pipeline.core.chunking import ChunkingOptions, chunk
    from rag_pipeline.core.tokens import estimate_tokens

    options = ChunkingOptions(
        target_tokens=settings.chunk_tokens,
        max_tokens=settings.chunk_max_tokens,
        overlap_tokens=settings.chunk_overlap_tokens,
    )
    return chunk(document, options, estimate_tokens)
