"""Show several processes' logs as one: new lines as they come, with the time and the process's name in front.

Routine lines of Dagster are left out; the files have them.
"""

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_POLL_SECONDS = 0.2
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OWN_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [+-]\d{4})? - ")
"""What Dagster puts in front of a line."""
_ROUTINE = re.compile(
    r" - DEBUG - |MonitoringDaemon - INFO - |SensorDaemon - INFO - Checking for new runs"
    r"|skipped: (?:No document is waiting|The inbox is empty|Nothing to put right)"
)
"""Lines that come every few seconds while nothing happens, and every event of every run: they stay in the log file."""


class LogFollower:
    """Follows files from their present end, in a thread, until the context ends."""

    def __init__(self, logs: Mapping[str, Path], write: Callable[[str], None]) -> None:
        self._logs = logs
        self._write = write
        self._width = max(map(len, logs), default=0)
        self._positions = {name: path.stat().st_size if path.exists() else 0 for name, path in logs.items()}
        self._partial = dict.fromkeys(logs, "")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            self._show_new_lines()
        self._show_new_lines()

    def _show_new_lines(self) -> None:
        for name, path in self._logs.items():
            if not path.exists():
                continue
            if path.stat().st_size < self._positions[name]:  # rotated
                self._positions[name] = 0
            with path.open("rb") as file:
                file.seek(self._positions[name])
                added = file.read()
            self._positions[name] += len(added)
            *lines, self._partial[name] = (self._partial[name] + added.decode(errors="replace")).split("\n")
            for line in lines:
                text = _OWN_TIME.sub("", _COLOUR.sub("", line)).rstrip()
                if text and not _ROUTINE.search(text):
                    self._write(f"{time.strftime('%H:%M:%S')} {name:<{self._width}} | {text}")
