"""CPU time and memory of a tree of processes, by sampling; ended processes keep what they had used when last seen."""

import threading
import time
from types import TracebackType
from typing import Self

import psutil

SAMPLE_SECONDS = 0.5


class ProcessTree:
    """Watches this process and all below it until the block ends."""

    def __init__(self, *, leave_out: frozenset[int] = frozenset()) -> None:
        self._leave_out = leave_out
        self._cpu: dict[tuple[int, float], float] = {}
        self._names: dict[tuple[int, float], str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._own_seconds = 0.0
        self.peak_memory_bytes = 0
        """Largest sum of resident memory seen; shared pages count in every process that maps them."""

    def cpu_seconds(self) -> float:
        """User and system time used so far by every process seen, without the watching itself."""
        self._sample()
        return sum(self._cpu.values()) - self._own_seconds

    def cpu_by_name(self) -> dict[str, float]:
        """CPU seconds by a short name of the process."""
        found: dict[str, float] = {}
        for key, seconds in self._cpu.items():
            found[self._names[key]] = found.get(self._names[key], 0.0) + seconds
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        began = time.thread_time()
        self._look()
        self._own_seconds += time.thread_time() - began

    def _look(self) -> None:
        memory = 0
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                with process.oneshot():
                    if process.pid in self._leave_out:
                        continue
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                    if key not in self._names:
                        self._names[key] = _short_name(process.cmdline())
                    self._cpu[key] = times.user + times.system
                    memory += process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory)


def _short_name(command: list[str]) -> str:
    line = " ".join(command)
    for mark, name in (
        ("postgres", "postgres"),
        ("nanio", "s3 (nanio)"),
        ("milvus_lite", "milvus-lite"),
        ("dagster_webserver", "dagster webserver"),
        ("dagster-webserver", "dagster webserver"),
        ("_daemon", "dagster daemon"),
        ("api grpc", "dagster code server"),
        ("execute_run", "run"),
        ("spawn_main", "run and parser processes"),
        ("embedding_server", "embedding service"),
        ("benchmarks", "benchmark (submits and waits)"),
    ):
        if mark in line:
            return name
    return line[:40] or "?"


def wait_idle(tree: ProcessTree, seconds: float) -> float:
    """CPU seconds per second of the tree while nothing is to do."""
    before = tree.cpu_seconds()
    time.sleep(seconds)
    return (tree.cpu_seconds() - before) / seconds
