"""JSON, JSON Lines and YAML.

JSON becomes records of "path: value" lines, with escapes resolved and numbers as written; duplicate keys stay. YAML
keeps its source, comments included: its records are spans of it, so nothing is constructed and no alias is expanded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError, DocumentTooLargeError
from rag_pipeline.parsing.encoding import clean_controls, read_text
from rag_pipeline.parsing.parser import Parser
from rag_pipeline.parsing.text import add_paragraphs, add_span, new_builder

RECORD_CHARACTERS = 1500
"""An object that renders to more is divided into its members: about the size of a chunk."""
MAX_BROKEN_LINES_NAMED = 20
MAX_VALUES = 100_000
"""Values that front matter may expand to."""

_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")
_LINES = frozenset({".jsonl", ".ndjson"})
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class _Object(list[tuple[str, Any]]):
    """Members of a JSON object in order, duplicates included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    path: str
    text: str


class JsonParser(Parser):
    """json, jsonl, ndjson, geojson."""

    name: ClassVar[str] = "json"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Broken JSON is corrupt, named by line and column."""
        decoded = read_text(request)
        builder = new_builder(self, decoded)
        if is_blank(decoded.text):
            builder.warn("the file holds no visible text")
            return builder.build()
        try:
            add = _add_lines if PurePath(request.file_name).suffix.lower() in _LINES else _add_json
            add(builder, decoded.text)
        except RecursionError:
            if not _is_balanced(decoded.text):
                raise CorruptDocumentError("the JSON is broken: brackets are not closed") from None
            builder.warn("the JSON is nested too deeply for its structure to be used; it was read as plain text")
            add_paragraphs(builder, decoded.text)
        return builder.build()


class YamlParser(Parser):
    """yaml, with one or several documents."""

    name: ClassVar[str] = "yaml"
    version: ClassVar[str] = "1"

    def parse(self, request: ParseRequest) -> ParsedDocument:
        """Parse the file at `request.path`. Broken YAML is corrupt, named by line and column."""
        decoded = read_text(request)
        builder = new_builder(self, decoded)
        for start, end, metadata in _yaml_spans(decoded.text):
            add_span(builder, BlockType.RECORD, decoded.text, start, end, metadata=metadata)
        if is_blank(decoded.text):
            builder.warn("the file holds no visible text")
        return builder.build()


def load_yaml_values(text: str) -> list[Any]:
    """The documents of a small YAML text as values that JSON can hold; dates stay text, tags are ignored.

    Raises:
        CorruptDocumentError: not valid YAML.
        DocumentTooLargeError: aliases make more than `MAX_VALUES` values of it.
    """
    remaining = [MAX_VALUES]
    return [_plain_value(node, remaining) for node in _compose(text)]


def _add_json(builder: DocumentBuilder, text: str) -> None:
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        first, _, rest = text.strip().partition("\n")
        if error.pos < len(text.rstrip()) and rest.strip() and _is_json(first):
            _add_lines(builder, text)
            return
        raise _corrupt_json(error) from error
    _add_records(builder, list(_split(value, "$", "")), {})


def _add_lines(builder: DocumentBuilder, text: str) -> None:
    """JSON Lines: a broken line is left out with a warning; a file without a whole line may be one JSON text."""
    broken: list[str] = []
    found = 0
    first_error: json.JSONDecodeError | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records = list(_split(_DECODER.decode(line), "$", ""))
        except json.JSONDecodeError as error:
            first_error = first_error or error
            broken.append(f"line {number} ({error.msg}, column {error.colno})")
            continue
        found += 1
        _add_records(builder, records, {"line": str(number)})
    if first_error is not None and not found:
        try:
            value = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            raise _corrupt_json(error) from error
        _add_records(builder, list(_split(value, "$", "")), {})
    elif broken:
        more = f" and {len(broken) - MAX_BROKEN_LINES_NAMED} more" if len(broken) > MAX_BROKEN_LINES_NAMED else ""
        builder.warn(f"broken lines left out: {'; '.join(broken[:MAX_BROKEN_LINES_NAMED])}{more}")


def _is_json(line: str) -> bool:
    try:
        _DECODER.decode(line)
    except json.JSONDecodeError:
        return False
    return True


def _corrupt_json(error: json.JSONDecodeError) -> CorruptDocumentError:
    return CorruptDocumentError(f"the JSON is broken at line {error.lineno}, column {error.colno}: {error.msg}")


def _is_balanced(text: str) -> bool:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match.group() in "[{":
            depth += 1
        elif match.group() in "]}":
            depth -= 1
    return depth == 0


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_int=str, parse_float=str, parse_constant=str, strict=False)
"""Numbers stay as written: no rounding, no limit on digits, and NaN and Infinity are words."""


def _add_records(builder: DocumentBuilder, records: list[_Record], metadata: dict[str, str]) -> None:
    for record in records:
        builder.add_block(BlockType.RECORD, record.text, metadata={**metadata, "json_path": record.path})


def _split(value: Any, path: str, label: str) -> Iterator[_Record]:
    """Records of a value: objects of the outermost list one by one, else whatever fits, else its members."""
    if isinstance(value, _Object):
        text = _fitting(value, label)
        if text is None:
            yield from _split_members(_members(value, path, label), path)
        else:
            yield _Record(path=path, text=text)
    elif isinstance(value, list) and not _is_flat(value) and (not label or _fitting(value, label) is None):
        yield from _split_members(_items(value, path, label), path)
    else:
        yield _Record(path=path, text="\n".join(_lines(value, label)))


def _split_members(members: Iterable[tuple[Any, str, str, bool]], path: str) -> Iterator[_Record]:
    """Small members together, in order, up to the size of a record; large ones divided further."""
    together: list[str] = []
    size = 0
    for member, member_path, name, is_apart in members:
        text = None if is_apart else _fitting(member, name)
        if together and (text is None or size + len(text) > RECORD_CHARACTERS):
            yield _Record(path=path, text="\n".join(together))
            together, size = [], 0
        if text is None:
            yield from _split(member, member_path, name)
        else:
            together.append(text)
            size += len(text)
    if together:
        yield _Record(path=path, text="\n".join(together))


def _members(value: _Object, path: str, label: str) -> Iterator[tuple[Any, str, str, bool]]:
    """Member, its JSON path, its name in the text, and whether it is a record of its own."""
    for key, member in value:
        step = f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"
        yield member, path + step, f"{label}.{key}" if label else key, False


def _items(value: list[Any], path: str, label: str) -> Iterator[tuple[Any, str, str, bool]]:
    """The same for a list: objects are records of their own, without the index where the list is the outermost."""
    for index, item in enumerate(value):
        is_object = isinstance(item, _Object)
        yield item, f"{path}[{index}]", "" if is_object and not label else f"{label}[{index}]", is_object


def _fitting(value: Any, label: str) -> str | None:
    """The text of a value if it is no larger than a record; looks no further than that."""
    lines: list[str] = []
    size = 0
    for line in _lines(value, label):
        lines.append(line)
        size += len(line) + 1
        if size > RECORD_CHARACTERS:
            return None
    return "\n".join(lines)


def _lines(value: Any, label: str) -> Iterator[str]:
    """Lines "path: value" in document order."""
    waiting = [(value, label)]
    while waiting:
        item, name = waiting.pop()
        if isinstance(item, _Object) and item:
            waiting.extend((member, f"{name}.{key}" if name else key) for key, member in reversed(item))
        elif isinstance(item, list) and item and not _is_flat(item):
            waiting.extend((member, f"{name}[{index}]") for index, member in reversed(list(enumerate(item))))
        else:
            text = _scalar(item)
            yield clean_controls(f"{name}: {text}" if name else text)


def _is_flat(value: list[Any]) -> bool:
    """Whether a list is best read on one line: short values only."""
    return bool(value) and all(
        not isinstance(item, list) and (not isinstance(item, str) or (len(item) <= 80 and "\n" not in item))
        for item in value
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, _Object):
        return "{}"
    if isinstance(value, list):
        return ", ".join(_scalar(item) for item in value) if value else "[]"
    return json.dumps(value)


def _compose(text: str) -> Iterator[Any]:
    """Node graphs of the documents; nothing is constructed. Raises `CorruptDocumentError`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.compose_all(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise CorruptDocumentError(f"the YAML is broken{place}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise CorruptDocumentError(f"the YAML cannot be read: {error}") from error


def _yaml_spans(text: str) -> list[tuple[int, int, dict[str, str]]]:
    """Consecutive spans over the whole text, each a record, with what is in it."""
    starts: list[tuple[int, dict[str, str]]] = []
    for number, root in enumerate(_compose(text), start=1):
        document = {"document": str(number)} if number > 1 else {}
        for index, path in _yaml_starts(root):
            place = _line_start(text, index, is_first=path == "$")
            if place is not None and (not starts or place > starts[-1][0]):
                starts.append((place, {**document, "json_path": path}))
    if not starts:
        return [(0, len(text), {})]
    starts[0] = (0, starts[0][1])
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return [(start, end, metadata) for (start, metadata), end in zip(starts, ends, strict=True)]


def _yaml_starts(root: Any) -> Iterator[tuple[int, str]]:
    """Where records begin: at the document, and at the members of everything larger than a record."""
    waiting = [(root, "$", root.start_mark.index)]
    while waiting:
        node, path, index = waiting.pop()
        yield index, path
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node.value, str) or end - start <= RECORD_CHARACTERS:
            continue
        members: list[tuple[Any, str, int]] = []
        for position, member in enumerate(node.value):
            if isinstance(member, tuple):
                key = member[0].value if isinstance(member[0].value, str) else "?"
                name = f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key)}]"
                members.append((member[1], path + name, member[0].start_mark.index))
            else:
                members.append((member, f"{path}[{position}]", member.start_mark.index))
        # An alias is the node of its anchor, which lies elsewhere: it begins no record here.
        waiting.extend(item for item in reversed(members) if start <= item[2] <= end and item[0] is not node)


def _line_start(text: str, index: int, *, is_first: bool) -> int | None:
    """The start of the line of a node that is the first thing on it, with the comments above; None for any other."""
    start = text.rfind("\n", 0, index) + 1
    if text[start:index].strip(" -?\t\r"):
        return start if is_first else None
    while start:
        above = text.rfind("\n", 0, start - 1) + 1
        if not text[above:start].lstrip().startswith(("#", "---", "%")):
            break
        start = above
    return start


def _plain_value(node: Any, remaining: list[int]) -> Any:
    remaining[0] -= 1
    if remaining[0] < 0:
        raise DocumentTooLargeError(f"the YAML expands to more than {MAX_VALUES:,} values")
    if isinstance(node.value, str):
        return _typed(node.tag, node.value)
    if node.tag.endswith(":map") or (node.value and isinstance(node.value[0], tuple)):
        return {str(_plain_value(key, remaining)): _plain_value(value, remaining) for key, value in node.value}
    return [_plain_value(item, remaining) for item in node.value]


def _typed(tag: str, text: str) -> str | int | float | bool | None:
    """A scalar as JSON would have it; what is no plain number, truth value or null stays text."""
    kind = tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in {"true", "yes", "on"}
    if kind in {"int", "float"} and re.fullmatch(r"[-+]?\d{1,15}(\.\d{1,15})?", text):
        return int(text) if kind == "int" and not text.lstrip("-+").startswith("0") else float(text)
    return text
