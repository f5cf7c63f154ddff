"""Starting and stopping single processes, with programs that are not servers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rag_pipeline.local.log_follower import LogFollower
from rag_pipeline.local.process import ProcessIdentity, ProcessSpec, RunningProcess, recorded_process, start_process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningProcess]]:
    """Start a Python program; what still runs at the end is killed."""
    started: list[RunningProcess] = []

    def run(code: str, *, mark: tuple[str, str] | None = None) -> RunningProcess:
        spec = ProcessSpec(
            name="program",
            command=(sys.executable, "-c", code),
            environment=dict([mark] if mark else []),
            folder=tmp_path,
            log=tmp_path / "program.log",
        )
        started.append(start_process(spec, detached=False, environment_mark=mark))
        return started[-1]

    yield run
    for process in started:
        process.stop(grace_seconds=0)


def test_a_process_is_asked_to_end_first_and_its_record_goes(
    start: Callable[..., RunningProcess], tmp_path: Path
) -> None:
    process = start("print('ready'); import time\ntry: time.sleep(100)\nexcept KeyboardInterrupt: print('asked')")
    wait_for_text(tmp_path / "program.log", "ready")
    assert recorded_process(tmp_path, "program") == process
    process.stop(grace_seconds=10)
    assert (tmp_path / "program.log").read_text() == "ready\nasked\n"
    assert recorded_process(tmp_path, "program") is None


def test_a_process_that_ignores_signals_is_killed(start: Callable[..., RunningProcess], tmp_path: Path) -> None:
    process = start(
        "import signal, time\nfor number in (2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "print('ready'); time.sleep(100)"
    )
    wait_for_text(tmp_path / "program.log", "ready")
    process.stop(grace_seconds=0.1)
    assert not process.is_alive()


def test_a_recycled_pid_is_never_killed(start: Callable[..., RunningProcess], tmp_path: Path) -> None:
    process = start("print('ready'); import time; time.sleep(100)")
    wait_for_text(tmp_path / "program.log", "ready")
    stale = replace(process, identity=replace(process.identity, started="another boot/1"))
    assert not stale.is_alive()
    stale.stop(grace_seconds=0)
    assert process.is_alive()


def test_children_left_by_a_killed_process_are_ended(start: Callable[..., RunningProcess], tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "print(child.pid, 'child'); time.sleep(100)"
    )
    process = start(code, mark=("RAG_DATA_DIR", str(tmp_path)))
    child = ProcessIdentity.of(int(wait_for_text(tmp_path / "program.log", "child").split()[0]))
    assert child
    os.kill(process.identity.pid, signal.SIGKILL)
    process.stop(grace_seconds=0)
    assert not child.is_alive()


def test_an_ignored_ctrl_c_is_not_inherited(start: Callable[..., RunningProcess], tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell script's `rag-pipeline up &`
    try:
        start("import signal; print('ready', signal.getsignal(2) is signal.default_int_handler)")
    finally:
        signal.signal(signal.SIGINT, previous)
    assert wait_for_text(tmp_path / "program.log", "ready") == "ready True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
@pytest.mark.parametrize("detached", [False, True], ids=["tied", "detached"])
def test_only_a_detached_process_outlives_the_kill_of_its_starter(tmp_path: Path, detached: bool) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from rag_pipeline.local.process import ProcessSpec, start_process\n"
        "folder = Path(sys.argv[1])\n"
        "spec = ProcessSpec(name='program', command=('/bin/sleep', '100'), environment={}, folder=folder, "
        "log=folder / 'log')\n"
        f"start_process(spec, detached={detached}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    process = recorded_process(tmp_path, "program")
    assert process
    try:
        if detached:
            time.sleep(0.3)
            assert process.is_alive()
            assert not process.is_orphan()
        else:
            wait_until(lambda: not process.is_alive())
            assert process.is_orphan()
    finally:
        process.stop(grace_seconds=0)


def test_logs_are_shown_as_one_with_the_name_in_front_and_without_colours(tmp_path: Path) -> None:
    log = tmp_path / "webserver.log"
    log.write_text("an old line\n")
    shown: list[str] = []
    with LogFollower({"webserver": log, "daemon": tmp_path / "daemon.log"}, shown.append), log.open("a") as file:
        file.write("\x1b[32m2026-11-29 20:51:11 +0000\x1b[0m - dagster - \x1b[34mINFO\x1b[0m - Serv")
        file.flush()
        file.write("ing\n\n")
        (tmp_path / "daemon.log").write_text("plain\n")
    assert sorted(line[9:] for line in shown) == ["daemon    | plain", "webserver | dagster - INFO - Serving"]


def wait_for_text(path: Path, text: str) -> str:
    """The content of a file, once it has `text` and a complete last line."""
    wait_until(lambda: path.exists() and text in path.read_text() and path.read_text().endswith("\n"))
    return path.read_text()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that is bound to happen; fail after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
