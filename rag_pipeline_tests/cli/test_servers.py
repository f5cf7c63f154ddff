"""`up` and `down` as a user runs them: processes, signals, exit codes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

CODE = "import typer; from rag_pipeline.cli.servers import register; app = typer.Typer(); register(app); app()"


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data folder; everything that runs on it is stopped at the end."""
    parent = Path(tempfile.mkdtemp(prefix="rag-up-"))
    parent.chmod(0o755)
    yield parent / "the data"
    down(parent / "the data")
    shutil.rmtree(parent)


def test_up_serves_the_page_until_ctrl_c_then_ends_with_0_and_nothing_is_left(data_dir: Path) -> None:
    command, log = up(data_dir)
    url = wait_until_ready(command, log)
    assert httpx.get(url, trust_env=False).status_code == httpx.codes.OK
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=180) == 0, log.read_text()
    lines = log.read_text().splitlines()
    assert re.search(r"^\d\d:\d\d:\d\d webserver +\| ", log.read_text(), re.MULTILINE)
    assert re.fullmatch(r"[\d:]+ up +\| stopped", lines[-1])
    assert left_running(data_dir) == []


def test_up_after_kill_9_starts_again_a_second_up_is_refused_and_down_ends_the_first(data_dir: Path) -> None:
    command, log = up(data_dir)
    wait_until_ready(command, log)
    command.kill()
    command.wait()
    deadline = time.monotonic() + 120
    while left_running(data_dir):
        assert time.monotonic() < deadline, left_running(data_dir)
        time.sleep(0.2)

    again, log = up(data_dir)
    url = wait_until_ready(again, log)
    refused, refusal = up(data_dir)
    assert refused.wait(timeout=180) == 1
    assert f"already runs for {data_dir}: {url}" in refusal.read_text()
    assert again.poll() is None

    assert down(data_dir).startswith("stopped: up")
    assert again.wait(timeout=60) == 0
    assert left_running(data_dir) == []
    assert down(data_dir).startswith("nothing runs")


def test_servers_only_returns_and_leaves_servers_that_down_stops(data_dir: Path) -> None:
    command, log = up(data_dir, "--servers-only")
    assert command.wait(timeout=180) == 0, log.read_text()
    assert f"DAGSTER_HOME='{data_dir}/dagster_home'" in log.read_text()
    assert len(left_running(data_dir)) >= 3
    assert down(data_dir) == "stopped: milvus, s3, postgres\n"
    assert left_running(data_dir) == []


def test_up_ends_with_1_when_a_server_dies(data_dir: Path) -> None:
    command, log = up(data_dir)
    wait_until_ready(command, log)
    s3 = next(process for process in left_running(data_dir) if "nanio" in process.cmdline())
    s3.kill()
    assert command.wait(timeout=180) == 1
    assert "s3 ended by itself" in log.read_text()
    assert left_running(data_dir) == []


def environment(data_dir: Path) -> dict[str, str]:
    """No setting from outside but the data folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAG_", "DAGSTER_"))}
    return {**inherited, "RAG_DATA_DIR": str(data_dir)}


def up(data_dir: Path, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `rag-pipeline up`; returns the process and what it prints."""
    log = data_dir.with_name(f"up-{time.monotonic_ns()}.log")
    with log.open("wb") as output:
        command = subprocess.Popen(
            [sys.executable, "-c", CODE, "up", *options],
            cwd=data_dir.parent,
            env=environment(data_dir),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return command, log


def down(data_dir: Path) -> str:
    """Run `rag-pipeline down` and return what it prints."""
    command = [sys.executable, "-c", CODE, "down"]
    return subprocess.run(
        command, cwd=data_dir.parent, env=environment(data_dir), capture_output=True, text=True, check=True
    ).stdout


def wait_until_ready(command: subprocess.Popen[bytes], log: Path) -> str:
    """The address that `up` prints at the end of its start."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if found := re.search(r"ready: (http://127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        assert command.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def left_running(data_dir: Path) -> list[psutil.Process]:
    """Processes whose command line or environment names the data folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("RAG_DATA_DIR", "")]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(word.startswith(str(data_dir)) for word in words):
            found.append(process)
    return found
