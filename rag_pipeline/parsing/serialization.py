"""`ParsedDocument` as one Parquet file: a row per block, everything else in the file's key-value metadata.

The text is stored once: each row holds the block's text and the gap in front of it, the metadata the gap at the end.
Image bytes are not part of it: images come back with empty `content`, the bytes live in files of their own.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rag_pipeline.core.parsed_document import (
    Block,
    BlockType,
    BoundingBox,
    PageRecord,
    PageState,
    ParsedDocument,
    ParsedImage,
)
from rag_pipeline.errors import MissingArtefactError

FORMAT_VERSION = 1
"""Raised with every change of `SCHEMA` or of the keys below."""

SCHEMA = pa.schema(
    [
        pa.field("gap", pa.string(), nullable=False),  # characters between the block before and this one
        pa.field("text", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # characters, not bytes
        pa.field("end", pa.int64(), nullable=False),
        pa.field("heading_path", pa.string(), nullable=False),  # JSON list
        pa.field("level", pa.int32()),
        pa.field("page", pa.int32()),
        pa.field("page_end", pa.int32()),
        pa.field("left", pa.float64()),  # bounding box in points; the four are null together
        pa.field("top", pa.float64()),
        pa.field("right", pa.float64()),
        pa.field("bottom", pa.float64()),
        pa.field("rows", pa.string()),  # JSON list of lists; null: not a table
        pa.field("metadata", pa.string()),  # JSON object; null: empty
    ]
)
"""Nested values are JSON: it reads back several times faster than Arrow lists and any tool can open it."""

ROW_GROUP_ROWS = 10_000
"""Blocks per row group: a reader can go through a large document in pieces of a few megabytes."""

_REPEATING_COLUMNS = ["type", "heading_path"]
_DOCUMENT_KEY = b"rag_pipeline.document"


def document_to_bytes(document: ParsedDocument) -> bytes:
    """The Parquet file in memory. Raises `ValueError` if blocks overlap or are out of order."""
    buffer = BytesIO()
    _write(document, buffer)
    return buffer.getvalue()


def write_document(document: ParsedDocument, path: Path) -> None:
    """Write the Parquet file. Raises `ValueError` if blocks overlap or are out of order."""
    with path.open("wb") as file:
        _write(document, file)


def document_from_bytes(content: bytes) -> ParsedDocument:
    """The document of `document_to_bytes`. Raises `MissingArtefactError` if the bytes are no such file."""
    return _read(pa.BufferReader(content), "these bytes")


def read_document(path: Path) -> ParsedDocument:
    """The document of `write_document`. Raises `MissingArtefactError` if the file is missing or is no such file."""
    try:
        with pa.memory_map(str(path)) as source:
            return _read(source, str(path))
    except FileNotFoundError as error:
        raise MissingArtefactError(f"{path} does not exist: materialize parsed_blocks again") from error


def _write(document: ParsedDocument, file: IO[bytes]) -> None:
    blocks = document.blocks
    gaps, tail = _gaps(document)
    boxes = [block.bbox for block in blocks]
    columns = [
        gaps,
        [document.text[block.start : block.end] for block in blocks],
        [block.type.value for block in blocks],
        [block.start for block in blocks],
        [block.end for block in blocks],
        [_dump(block.heading_path) for block in blocks],
        [block.level for block in blocks],
        [block.page for block in blocks],
        [block.page_end for block in blocks],
        [box.left if box else None for box in boxes],
        [box.top if box else None for box in boxes],
        [box.right if box else None for box in boxes],
        [box.bottom if box else None for box in boxes],
        [_dump(block.rows) if block.rows else None for block in blocks],
        [_dump(block.metadata) if block.metadata else None for block in blocks],
    ]
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    # Without the Arrow schema in the footer: it would hold the document's metadata a second time.
    with pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        use_dictionary=_REPEATING_COLUMNS,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata({_DOCUMENT_KEY: _header(document, tail)})
        writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), row_group_size=ROW_GROUP_ROWS)


def _gaps(document: ParsedDocument) -> tuple[list[str], str]:
    """Text in front of each block, and text after the last."""
    gaps = []
    position = 0
    for block in document.blocks:
        if not position <= block.start <= block.end <= len(document.text):
            raise ValueError(f"block [{block.start}, {block.end}) overlaps its predecessor, which ends at {position}")
        gaps.append(document.text[position : block.start])
        position = block.end
    return gaps, document.text[position:]


def _header(document: ParsedDocument, tail: str) -> str:
    """Everything that is not a block, as JSON."""
    images = [{**_fields(image), "content": None} for image in document.images]
    return _dump(
        {
            "format": FORMAT_VERSION,
            "parser": document.parser,
            "parser_version": document.parser_version,
            "tail": tail,
            "pages": [_fields(page) for page in document.pages],
            "images": images,
            "metadata": dict(document.metadata),
            "warnings": document.warnings,
        }
    )


def _fields(value: PageRecord | ParsedImage) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in type(value).__slots__}
    if isinstance(fields.get("bbox"), BoundingBox):
        fields["bbox"] = asdict(fields["bbox"])
    return fields


def _read(source: Any, name: str) -> ParsedDocument:
    try:
        file = pq.ParquetFile(source)
        header = json.loads(file.metadata.metadata[_DOCUMENT_KEY])
        table = file.read(use_threads=False)
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise MissingArtefactError(f"{name} holds no parsed document: materialize parsed_blocks again") from error
    if header["format"] != FORMAT_VERSION:
        raise MissingArtefactError(
            f"{name} has format {header['format']}, not {FORMAT_VERSION}: materialize parsed_blocks again"
        )
    columns = {field.name: table.column(field.name).to_pylist() for field in SCHEMA}
    text = "".join(chain.from_iterable(zip(columns["gap"], columns["text"], strict=True))) + header["tail"]
    return ParsedDocument(
        text=text,
        blocks=tuple(_blocks(columns)),
        parser=header["parser"],
        parser_version=header["parser_version"],
        pages=tuple(PageRecord(**{**page, "state": PageState(page["state"])}) for page in header["pages"]),
        images=tuple(_image(fields) for fields in header["images"]),
        metadata=header["metadata"],
        warnings=tuple(header["warnings"]),
    )


def _blocks(columns: dict[str, list[Any]]) -> Iterator[Block]:
    paths: dict[str, tuple[str, ...]] = {}
    for row in zip(*(columns[name] for name in SCHEMA.names), strict=True):
        _, _, kind, start, end, path, level, page, page_end, left, top, right, bottom, rows, metadata = row
        if path not in paths:
            paths[path] = tuple(json.loads(path))
        yield Block(
            type=BlockType(kind),
            start=start,
            end=end,
            heading_path=paths[path],
            level=level,
            page=page,
            page_end=page_end,
            bbox=None if left is None else BoundingBox(left=left, top=top, right=right, bottom=bottom),
            rows=tuple(tuple(cells) for cells in json.loads(rows)) if rows else (),
            metadata=json.loads(metadata) if metadata else {},
        )


def _image(fields: dict[str, Any]) -> ParsedImage:
    bbox = fields["bbox"]
    return ParsedImage(**{**fields, "content": b"", "bbox": BoundingBox(**bbox) if bbox else None})


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
