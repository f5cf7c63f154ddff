"""One server process: start with a log file, identity that survives pid re-use, stop by signals in rising order.

Nothing here knows which server it is. A started process is recorded in `{folder}/{name}.process.json`, so that a later
command finds what a killed one left behind.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from rag_pipeline.local.files import write_private

_LAUNCHER = Path(__file__).with_name("launch.py")
_POLL_SECONDS = 0.05
_LOG_ROTATE_BYTES = 20_000_000
_FOREIGN_VARIABLES = ("PG", "NANIO_", "MILVUS_")
"""Variables with these prefixes would reconfigure an embedded server from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process for ever: the kernel gives its number to another one some day, the start time never comes back."""

    pid: int
    started: str
    """Linux: boot id and start time in clock ticks since boot; elsewhere the creation time of psutil."""

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The identity of a live process; None when it is gone or a zombie."""
        if Path("/proc/self/stat").exists():
            return cls._of_linux(pid)
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid=pid, started=f"{process.create_time():.3f}")
        except psutil.NoSuchProcess:
            return None

    @classmethod
    def _of_linux(cls, pid: int) -> "ProcessIdentity | None":
        # psutil's creation time moves with the wall clock; the ticks since boot do not.
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        threads = int(fields[17])
        # A dying process with threads shows as a zombie while the last of them still hold its files and ports.
        if fields[0] in "ZX" and threads <= 1:
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(pid=pid, started=f"{boot}/{fields[19]}")

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class UserIds:
    """Whom a process runs as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to start."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to the environment of this process; secrets go here, never into `command`."""
    folder: Path
    """Holds the process record."""
    log: Path
    port: int = 0
    """Where it will listen; 0: nowhere."""
    working_dir: Path = Path("/")
    user: UserIds | None = None
    """None: the same user."""
    death_signal: signal.Signals = signal.SIGINT
    """What the kernel sends it when this process dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """A process that was started by this or an earlier command."""

    name: str
    identity: ProcessIdentity
    owner: ProcessIdentity | None
    """The process it was meant to end with; None for a detached server."""
    port: int
    record: Path
    environment_mark: tuple[str, str] | None = None
    """A variable and value that the process and its children carry; proves that a member of its session is ours."""

    def is_alive(self) -> bool:
        """Whether it still runs. Reaps it if it is a dead child of ours."""
        _reap(self.identity.pid)
        return self.identity.is_alive()

    def is_orphan(self) -> bool:
        """Whether the command it was meant to end with is gone."""
        return self.owner is not None and not self.owner.is_alive()

    def stop(self, *, grace_seconds: float) -> None:
        """SIGINT, which all our servers take as "finish and end", then SIGTERM, then SIGKILL; then its children.

        Returns when the process and what it left in its session are gone. Does nothing to a recycled pid.
        """
        for number, seconds in ((signal.SIGINT, grace_seconds), (signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
            if not self.is_alive():
                break
            _signal(self.identity.pid, number)
            _wait_until_gone(self, seconds)
        _reap(self.identity.pid)
        self._stop_session()
        self.record.unlink(missing_ok=True)

    def _stop_session(self) -> None:
        """End what the process left behind: its session keeps its number while a member lives."""
        if self.environment_mark is None or ProcessIdentity.of(self.identity.pid) is not None:
            return
        members = [process for process in psutil.process_iter() if self._is_left_behind(process)]
        for process in members:
            _signal(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(members, timeout=10)
        for process in alive:
            _signal(process.pid, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=5)

    def _is_left_behind(self, process: psutil.Process) -> bool:
        name, value = self.environment_mark or ("", "")
        try:
            return os.getsid(process.pid) == self.identity.pid and process.environ().get(name) == value
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
            return False


def start_process(
    spec: ProcessSpec, *, detached: bool, environment_mark: tuple[str, str] | None = None
) -> RunningProcess:
    """Start a process in a session of its own (a terminal's Ctrl-C does not reach it) and record it.

    Args:
        spec: what to start.
        detached: False: the kernel sends it `spec.death_signal` when this process dies, even by SIGKILL (Linux).
        environment_mark: see `RunningProcess`.
    """
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER)]
    if not detached:
        launcher += ["--parent", str(os.getpid()), "--death-signal", str(int(spec.death_signal))]
    if spec.user:
        launcher += ["--user", str(spec.user.uid), str(spec.user.gid)]
    with _open_log(spec.log) as log:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [*launcher, "--", *spec.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=spec.working_dir,
            env=child_environment(spec.environment),
            start_new_session=True,
        )
    identity = ProcessIdentity.of(process.pid) or ProcessIdentity(pid=process.pid, started="ended at once")
    # Popen warns about a live child when it is collected; `_reap` and the kernel look after it instead.
    process.returncode = 0
    running = RunningProcess(
        name=spec.name,
        identity=identity,
        owner=None if detached else ProcessIdentity.of(os.getpid()),
        port=spec.port,
        record=record_path(spec.folder, spec.name),
        environment_mark=environment_mark,
    )
    write_private(running.record, json.dumps(asdict(running), default=str))
    return running


def recorded_process(folder: Path, name: str) -> RunningProcess | None:
    """What the record says was started last; it may be dead."""
    path = record_path(folder, name)
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    mark = found["environment_mark"]
    return RunningProcess(
        name=name,
        identity=ProcessIdentity(**found["identity"]),
        owner=ProcessIdentity(**found["owner"]) if found["owner"] else None,
        port=found["port"],
        record=path,
        environment_mark=(mark[0], mark[1]) if mark else None,
    )


def record_path(folder: Path, name: str) -> Path:
    """Where a process is recorded."""
    return folder / f"{name}.process.json"


def child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what would reconfigure a server, and with `added`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
    return {**kept, "PYTHONUNBUFFERED": "1", **added}


def _open_log(path: Path) -> BinaryIO:
    """Open for appending; a large log is kept once as `.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _LOG_ROTATE_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


def log_tail(path: Path, *, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def run_to_end(
    command: Sequence[str], *, launcher: Sequence[str], working_dir: Path
) -> subprocess.CompletedProcess[str]:
    """Run a tool through the launcher and return its output."""
    return subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-I", "-S", str(_LAUNCHER), *launcher, "--", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=working_dir,
        env=child_environment({}),
        check=False,
    )


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _wait_until_gone(process: RunningProcess, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
