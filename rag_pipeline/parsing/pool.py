"""Parser processes that survive the death, the hang and the greed of any of them.

Each process is its own one-worker pebble pool: pebble's workers share one locked pipe, and a worker killed while it
holds the lock would stop all others. A slot that breaks is replaced; the others never notice.
"""

import contextlib
import importlib.machinery
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.errors import InternalError, ParserCrashedError, ParseTimeoutError, RagPipelineError
from rag_pipeline.parsing import worker
from rag_pipeline.parsing.worker import EXIT_OVER_MEMORY, ImageFile, ParseSummary, WorkerReply, too_much_memory

FILES_PER_WORKER = 300
"""Files after which a process is replaced by a fresh one: native libraries leak a little."""
STOP_GRACE_SECONDS = 30.0
"""How long after a file's time limit a slot that still does not answer is given up. Covers the start of the process
and pebble's own attempts to stop it."""

_POLL_SECONDS = 1.0
_MAX_STARTS = 3
"""How often a file is handed to a fresh process because the one before died idle, before it had begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseOutcome:
    """What became of one file."""

    key: str
    """As given with the request."""
    seconds: float
    """Wall time in the worker; for a file whose worker died, until that was noticed."""
    error: RagPipelineError | None = None
    path: Path | None = None
    """The Parquet file (`serialization.read_document`); None with an error."""
    summary: ParseSummary | None = None
    images: tuple[ImageFile, ...] = ()
    peak_memory_bytes: int | None = None
    """Highest resident memory of the worker so far (it has parsed other files before); None if it died."""


@dataclass(slots=True, kw_only=True)
class _Task:
    key: str
    request: ParseRequest
    target: Path
    slot: "_Slot"
    started: float
    starts: int = 1


class ParserPool:
    """Parses files in worker processes; use it as a context manager.

    A process is started when the first file needs it, so a pool for one file costs one start.
    """

    def __init__(
        self,
        workers: int,
        *,
        parse_function: str = "rag_pipeline.parsing.registry:parse_file",
        files_per_worker: int = FILES_PER_WORKER,
        stop_grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        """Prepare the pool; nothing is started yet.

        Args:
            workers: processes, and files in flight at a time.
            parse_function: "module:function" from `ParseRequest` to `ParsedDocument`, imported in the workers.
            files_per_worker: files after which a process is replaced.
            stop_grace_seconds: see `STOP_GRACE_SECONDS`.
        """
        if workers < 1:
            raise ValueError(f"a pool needs at least one worker, not {workers}")
        self._parse_function = parse_function
        self._stop_grace_seconds = stop_grace_seconds
        self._slots = [_Slot(files_per_worker) for _ in range(workers)]
        self._threads = max((os.cpu_count() or 1) // workers, 1)
        self._files = 0
        self._is_busy = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for slot in self._slots:
            slot.stop()

    def parse(self, requests: Iterable[tuple[str, ParseRequest]], output_dir: Path) -> Iterator[ParseOutcome]:
        """Parse files and yield their outcomes as they finish.

        Requests are taken from the iterable only when a worker is free. Closing the iterator stops what is running.

        Args:
            requests: key and request of each file.
            output_dir: an existing folder; every outcome's files have names of their own, so calls may share it.

        Raises:
            RuntimeError: another iteration over this pool has not ended.
        """
        if self._is_busy:
            raise RuntimeError("this pool is parsing already: end that iteration first or use a second pool")
        self._is_busy = True
        waiting = iter(requests)
        running: dict[Future[WorkerReply], _Task] = {}
        idle = list(self._slots)
        try:
            while True:
                while idle and (item := next(waiting, None)) is not None:
                    self._start(idle.pop(), *item, output_dir, running)
                if not running:
                    return
                for future in wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    outcome = self._finish(task, future, running)
                    if outcome is not None:
                        idle.append(task.slot)
                        yield outcome
                for future, task in self._overdue(running):
                    del running[future]
                    idle.append(task.slot)
                    yield self._give_up(task)
        finally:
            for task in running.values():
                task.slot.stop()
                _remove_output(task)
            self._is_busy = False

    def _start(
        self,
        slot: "_Slot",
        key: str,
        request: ParseRequest,
        output_dir: Path,
        running: dict[Future[WorkerReply], _Task],
    ) -> None:
        self._files += 1
        request = replace(request, limits=replace(request.limits, threads=self._threads))
        target = output_dir / f"{id(self):x}-{self._files:06d}.parquet"
        task = _Task(key=key, request=request, target=target, slot=slot, started=time.monotonic())
        running[slot.schedule(self._parse_function, request, target)] = task

    def _finish(
        self, task: _Task, future: Future[WorkerReply], running: dict[Future[WorkerReply], _Task]
    ) -> ParseOutcome | None:
        """The outcome of a future that is done; None if the file was handed to a fresh process."""
        failure = future.exception() if not future.cancelled() else CancelledError()
        if failure is None:
            reply = future.result()
            if reply.error is not None:
                _remove_output(task)
            return ParseOutcome(
                key=task.key,
                seconds=reply.seconds,
                error=reply.error,
                path=None if reply.error else task.target,
                summary=reply.summary,
                images=reply.images,
                peak_memory_bytes=reply.peak_memory_bytes,
            )
        if isinstance(failure, BrokenProcessPool):
            task.slot.stop()
            if task.starts < _MAX_STARTS:
                task.starts += 1
                running[task.slot.schedule(self._parse_function, task.request, task.target)] = task
                return None
        _remove_output(task)
        error = _error_of(failure, task.request)
        return ParseOutcome(key=task.key, seconds=time.monotonic() - task.started, error=error)

    def _overdue(self, running: dict[Future[WorkerReply], _Task]) -> list[tuple[Future[WorkerReply], _Task]]:
        now = time.monotonic()
        return [
            (future, task)
            for future, task in running.items()
            if now - task.started > task.request.limits.seconds + self._stop_grace_seconds and not future.done()
        ]

    def _give_up(self, task: _Task) -> ParseOutcome:
        task.slot.stop()
        _remove_output(task)
        return ParseOutcome(
            key=task.key,
            seconds=time.monotonic() - task.started,
            error=ParserCrashedError("the parser process stopped answering and was replaced; the file can be retried"),
        )


class _Slot:
    """One worker process, replaced when it breaks."""

    def __init__(self, files_per_worker: int) -> None:
        self._files_per_worker = files_per_worker
        self._pool: ProcessPool | None = None

    def schedule(self, parse_function: str, request: ParseRequest, target: Path) -> Future[WorkerReply]:
        if self._pool is None or not self._pool.active:
            self.stop()
            self._pool = ProcessPool(
                max_workers=1,
                max_tasks=self._files_per_worker,
                initializer=worker.initialize,
                context=WorkerContext(),
            )
        future: Future[WorkerReply] = self._pool.schedule(
            worker.run, args=(parse_function, request, target), timeout=request.limits.seconds
        )
        return future

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()


def _error_of(failure: BaseException, request: ParseRequest) -> RagPipelineError:
    limits = request.limits
    if isinstance(failure, TimeoutError):
        return ParseTimeoutError(
            f"reading the file took longer than {limits.seconds:g} s: split it, or raise the time limit"
        )
    if isinstance(failure, ProcessExpired):
        if failure.exitcode == EXIT_OVER_MEMORY:
            return too_much_memory(limits)
        return ParserCrashedError(f"the parser process died while it read the file ({_death(failure.exitcode)})")
    if isinstance(failure, BrokenProcessPool | CancelledError):
        return ParserCrashedError("the parser process could not be started or died before it read the file")
    return InternalError(f"{type(failure).__name__}: {failure}")


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exitcode).name
    return f"exit code {exitcode}"


def _remove_output(task: _Task) -> None:
    for path in task.target.parent.glob(f"{task.target.stem}.*"):
        path.unlink(missing_ok=True)


class _WorkerProcess(SpawnProcess):
    """A spawned process that does not import the program's main module and never sees Ctrl-C.

    The main module of a Dagster process imports Dagster, that of a notebook or a script may run anything. The signal
    mask is inherited, so Ctrl-C cannot hit a worker while it starts either.
    """

    _spawn_lock = threading.Lock()

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - the hook of multiprocessing
        multiprocessing.resource_tracker.ensure_running()  # starting it would unblock the signal again
        main = sys.modules["__main__"]
        with _WorkerProcess._spawn_lock:
            specification = main.__spec__
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            main.__spec__ = importlib.machinery.ModuleSpec("rag_pipeline.__main__", None)
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                main.__spec__ = specification
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class WorkerContext(SpawnContext):
    """Makes such processes, for every pool that hands files to native code."""

    Process = _WorkerProcess
