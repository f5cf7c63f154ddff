"""Parse functions for the pool's tests; the content of the file says what to do."""

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, ParsedImage
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import CorruptDocumentError


def parse(request: ParseRequest) -> ParsedDocument:
    """Do what the first word of the file says, with the rest of it."""
    word, _, rest = request.path.read_text().partition(" ")
    action = _ACTIONS.get(word)
    if action:
        action(rest)
    builder = DocumentBuilder(parser="misbehaving", parser_version="7")
    builder.add_block(BlockType.PARAGRAPH, rest if word == "say" else _report(word, request))
    if word == "picture":
        builder.images.append(ParsedImage(position=0, media_type="image/png", content=b"pixels", width=3, height=2))
    return builder.build()


def _report(word: str, request: ParseRequest) -> str:
    if word == "pid":
        return str(os.getpid())
    if word == "threads":
        return str(request.limits.threads)
    if word == "modules":
        return " ".join(sorted({name.partition(".")[0] for name in sys.modules} & _UNWANTED))
    if word == "descriptors":
        return " ".join(_descriptors())
    return word


def _descriptors() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        # The descriptor of this listing is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def _kill(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(code: str) -> None:
    os._exit(int(code))


def _segfault(_: str) -> None:
    ctypes.string_at(0)


def _hang(pid_file: str) -> None:
    if pid_file:
        Path(pid_file).write_text(str(os.getpid()))
    time.sleep(600)


def _hang_with_lock(_: str) -> None:
    """Keep the interpreter lock for minutes: no thread and no signal handler of this process runs."""
    re.match(r"(a+)+$", "a" * 40 + "b")


def _hog(_: str) -> None:
    """Grow in steps that are too small to fail."""
    kept = []
    while True:
        kept.append(bytearray(b"x") * 5_000_000)
        time.sleep(0.001)


def _hog_at_once(_: str) -> None:
    bytearray(b"x") * 100_000_000_000


def _recurse(_: str) -> None:
    def deeper() -> None:
        deeper()

    deeper()


def _corrupt(message: str) -> None:
    raise CorruptDocumentError(message)


def _fault(message: str) -> None:
    raise ZeroDivisionError(message)


def _leave(_: str) -> None:
    raise SystemExit(3)


def _local_error(_: str) -> None:
    class UnpicklableError(Exception):
        pass

    raise UnpicklableError("cannot be pickled")


_UNWANTED = {"dagster", "pymilvus", "sqlalchemy", "grpc", "psycopg2", "onnxruntime"}
_ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _kill,
    "exit": _exit,
    "segfault": _segfault,
    "hang": _hang,
    "hang_with_lock": _hang_with_lock,
    "hog": _hog,
    "hog_at_once": _hog_at_once,
    "recurse": _recurse,
    "corrupt": _corrupt,
    "fault": _fault,
    "leave": _leave,
    "local_error": _local_error,
}
