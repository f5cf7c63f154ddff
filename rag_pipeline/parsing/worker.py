"""What runs inside a parser process: one file in, a Parquet file and image files out, under limits.

The process holds no connections and imports none of Dagster, SQLAlchemy and pymilvus.
"""

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import cast

from rag_pipeline.core.parsed_document import BoundingBox, ParsedDocument
from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import DocumentTooLargeError, InternalError, RagPipelineError

logger = logging.getLogger(__name__)

EXIT_OVER_MEMORY = 77
"""Exit code of a worker that ended itself because a file took more memory than it may."""
EXIT_ORPHANED = 78
"""Exit code of a worker whose parent has died."""

EXCERPT_CHARACTERS = 300

_WATCH_SECONDS = 0.05
_DEADLINE_GRACE_SECONDS = 10.0
"""A worker that native code keeps from being stopped for this long after its time limit kills itself."""
_ADDRESS_HEADROOM_BYTES = 1_000_000_000
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/tiff": "tif", "image/bmp": "bmp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """An image of a document, its bytes in a file beside the Parquet file."""

    path: Path
    position: int
    media_type: str
    width: int
    height: int
    page: int | None = None
    bbox: BoundingBox | None = None
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseSummary:
    """What the pipeline needs to know about a parsed document without reading it."""

    pages: int | None
    """None where the format has no pages."""
    characters: int
    blocks: int
    images: int
    parser: str
    parser_version: str
    has_content: bool
    excerpt: str
    """The first `EXCERPT_CHARACTERS` of the text."""
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """What passes the pipe: paths and small values."""

    error: RagPipelineError | None = None
    summary: ParseSummary | None = None
    images: tuple[ImageFile, ...] = ()
    seconds: float = 0.0
    peak_memory_bytes: int = 0


def initialize() -> None:
    """Start the watchdog of a new worker; pebble calls it once per process."""
    import_module("rag_pipeline.parsing.serialization")  # now, or its memory would count as the first file's
    _WATCHDOG.start()


def run(parse_function: str, request: ParseRequest, target: Path) -> WorkerReply:
    """Parse one file into `target` (Parquet) and image files beside it.

    Args:
        parse_function: "module:function", from `ParseRequest` to `ParsedDocument`.
        request: the file and its limits.
        target: the Parquet file to write; images are `{stem}.image{position}.{extension}`.
    """
    started = time.monotonic()
    summary: ParseSummary | None = None
    images: tuple[ImageFile, ...] = ()
    error: RagPipelineError | None = None
    with enforced(request.limits):
        try:
            document = _load(parse_function)(request)
            summary, images = _store(document, target)
        except RagPipelineError as raised:
            error = raised.with_traceback(None)
        except MemoryError:
            error = too_much_memory(request.limits)
        except RecursionError:
            error = DocumentTooLargeError("the document is nested too deeply to be read")
        except Exception as raised:
            # One file's fault must not end the others; it is logged here and reported with the document.
            logger.warning("parsing %s failed", request.file_name, exc_info=True)
            error = InternalError(f"{type(raised).__name__}: {raised}")
    return WorkerReply(
        error=error,
        summary=summary,
        images=images,
        seconds=time.monotonic() - started,
        peak_memory_bytes=peak_memory(),
    )


@contextlib.contextmanager
def enforced(limits: ParseLimits) -> Iterator[None]:
    """End this process if what is done inside takes too much memory, or far longer than it may."""
    with _WATCHDOG.watching(limits), _deadline(limits.seconds):
        yield


def too_much_memory(limits: ParseLimits) -> DocumentTooLargeError:
    """The error for a file that takes more memory than it may."""
    return DocumentTooLargeError(
        f"reading the file took more than {limits.memory_bytes / 1e6:,.0f} MB of memory: split it into several files"
    )


def resident_memory() -> int:
    """Resident memory of this process in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read twenty times a second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        import psutil

        return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """Highest resident memory of this process so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


class _Watchdog:
    """A thread that ends the process when its file takes too much memory, or when the parent has died.

    Ending the process is the only way that always works: an exception cannot reach native code. The address space is
    limited too, generously, for code that allocates while it holds the interpreter lock and keeps this thread waiting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parent = 0
        self._ceiling: int | None = None

    def start(self) -> None:
        self._parent = os.getppid()
        threading.Thread(target=self._watch, name="parser-watchdog", daemon=True).start()

    @contextlib.contextmanager
    def watching(self, limits: ParseLimits) -> Iterator[None]:
        with _limited_address_space(limits.memory_bytes):
            self._ceiling = resident_memory() + limits.memory_bytes
            try:
                yield
            finally:
                # The lock keeps the thread from ending the process while the reply is being sent.
                with self._lock:
                    self._ceiling = None

    def _watch(self) -> None:
        while True:
            time.sleep(_WATCH_SECONDS)
            if os.getppid() != self._parent:
                os._exit(EXIT_ORPHANED)
            with self._lock:
                if self._ceiling is not None and resident_memory() > self._ceiling:
                    os._exit(EXIT_OVER_MEMORY)


_WATCHDOG = _Watchdog()


@contextlib.contextmanager
def _limited_address_space(memory_bytes: int) -> Iterator[None]:
    """Limit private writable memory to what is in use, plus twice the limit, plus headroom for thread stacks."""
    try:
        import resource

        status = Path("/proc/self/status").read_text()
    except (ImportError, FileNotFoundError):
        yield
        return
    used = int(next(line for line in status.splitlines() if line.startswith("VmData:")).split()[1]) * 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + 2 * memory_bytes + _ADDRESS_HEADROOM_BYTES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """End the process some time after its limit even if native code holds the interpreter lock and the parent is gone.

    The parent's own limit comes first. `faulthandler` is the one timer that needs no interpreter.
    """
    with Path(os.devnull).open("w") as nowhere:
        faulthandler.dump_traceback_later(seconds + _DEADLINE_GRACE_SECONDS, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _load(parse_function: str) -> Callable[[ParseRequest], ParsedDocument]:
    module, name = parse_function.split(":")
    return cast("Callable[[ParseRequest], ParsedDocument]", getattr(import_module(module), name))


def _store(document: ParsedDocument, target: Path) -> tuple[ParseSummary, tuple[ImageFile, ...]]:
    from rag_pipeline.parsing.serialization import write_document

    write_document(document, target)
    images = []
    for image in document.images:
        extension = _EXTENSIONS.get(image.media_type, "bin")
        path = target.with_name(f"{target.stem}.image{image.position}.{extension}")
        path.write_bytes(image.content)
        images.append(
            ImageFile(
                path=path,
                position=image.position,
                media_type=image.media_type,
                width=image.width,
                height=image.height,
                page=image.page,
                bbox=image.bbox,
                description=image.description,
            )
        )
    summary = ParseSummary(
        pages=len(document.pages) or None,
        characters=len(document.text),
        blocks=len(document.blocks),
        images=len(document.images),
        parser=document.parser,
        parser_version=document.parser_version,
        has_content=document.has_content,
        excerpt=document.text[:EXCERPT_CHARACTERS],
        warnings=document.warnings,
        metadata=document.metadata,
    )
    return summary, tuple(images)
