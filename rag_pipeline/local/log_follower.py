"""Show several processes' logs as one: new lines as they come, with the time and the process's name in front.

Routine lines of Dagster, a sensor's reason to skip that it gave before, and the stacks of failures that name their
documents, are left out; the files have them.
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
_SKIPPED = re.compile(r"(?P<sensor>\S+ \S+) skipped: (?P<reason>.*)")
_DOCUMENTS_FAILED = re.compile(r"^dagster\._core\.definitions\.events\.Failure: ")
_STACK = re.compile(r"^\s*Stack Trace:")


class _StackFilter:
    """Drops the stack under a failure that was raised on purpose: a corrupt file is no fault of the program."""

    def __init__(self) -> None:
        self._is_on_purpose = False
        self._is_in_stack = False

    def drops(self, line: str) -> bool:
        """Whether the next line of the log belongs to such a stack."""
        if self._is_in_stack and (not line or line[0].isspace()):
            return True
        self._is_in_stack = self._is_on_purpose and _STACK.match(line) is not None
        if self._is_in_stack:
            self._is_on_purpose = False
        elif _DOCUMENTS_FAILED.match(line):
            self._is_on_purpose = True
        return self._is_in_stack


class _SkipFilter:
    """Drops the reason that a sensor or schedule gives for skipping while it stays the same."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def drops(self, line: str) -> bool:
        """Whether the next line of the log says what this sensor said last."""
        found = _SKIPPED.search(line)
        if found is None:
            return False
        before = self._reasons.get(found["sensor"])
        self._reasons[found["sensor"]] = found["reason"]
        return before == found["reason"]


class LogFollower:
    """Follows files from their present end, in a thread, until the context ends."""

    def __init__(self, logs: Mapping[str, Path], write: Callable[[str], None]) -> None:
        self._logs = logs
        self._write = write
        self._width = max(map(len, logs), default=0)
        self._positions = {name: path.stat().st_size if path.exists() else 0 for name, path in logs.items()}
        self._partial = dict.fromkeys(logs, "")
        self._stacks = {name: _StackFilter() for name in logs}
        self._skips = _SkipFilter()
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
                plain = _COLOUR.sub("", line)
                text = _OWN_TIME.sub("", plain).rstrip()
                is_noise = self._stacks[name].drops(plain) or self._skips.drops(text) or _ROUTINE.search(text)
                if text and not is_noise:
                    self._write(f"{time.strftime('%H:%M:%S')} {name:<{self._width}} | {text}")
