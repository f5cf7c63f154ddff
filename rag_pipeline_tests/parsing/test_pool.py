import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rag_pipeline.core.ports import ParseLimits, ParseRequest
from rag_pipeline.errors import (
    CorruptDocumentError,
    DocumentTooLargeError,
    EmptyDocumentError,
    InternalError,
    ParserCrashedError,
    ParseTimeoutError,
    RagPipelineError,
)
from rag_pipeline.parsing.pool import ParseOutcome, ParserPool
from rag_pipeline.parsing.serialization import read_document

MISBEHAVING = "rag_pipeline_tests.parsing.misbehaving:parse"


@pytest.fixture(scope="module")
def pool() -> Iterator[ParserPool]:
    with ParserPool(1, parse_function=MISBEHAVING) as shared:
        yield shared


def request(folder: Path, content: str, *, seconds: float = 60.0) -> tuple[str, ParseRequest]:
    path = folder / f"{len(list(folder.iterdir()))}.txt"
    path.write_text(content)
    limits = ParseLimits(seconds=seconds, memory_bytes=150_000_000)
    return content, ParseRequest(path=path, file_name="file.txt", limits=limits)


def parse(pool: ParserPool, folder: Path, *contents: str, seconds: float = 60.0) -> dict[str, ParseOutcome]:
    requests = [request(folder, content, seconds=seconds) for content in contents]
    return {outcome.key: outcome for outcome in pool.parse(requests, folder)}


def said(pool: ParserPool, folder: Path, content: str) -> str:
    outcome = parse(pool, folder, content)[content]
    assert outcome.summary is not None, outcome.error
    return outcome.summary.excerpt


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if is_gone(pid):
            return True
        time.sleep(0.05)
    return False


def wait_for_pid(path: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} was never written")


def test_outcome_names_the_parquet_file_and_sums_it_up(pool: ParserPool, tmp_path: Path) -> None:
    outcome = parse(pool, tmp_path, "say hello world")["say hello world"]
    assert outcome.error is None
    assert outcome.path is not None
    assert outcome.summary is not None
    assert read_document(outcome.path).text == "hello world"
    assert (outcome.summary.parser, outcome.summary.parser_version) == ("misbehaving", "7")
    assert (outcome.summary.blocks, outcome.summary.characters, outcome.summary.pages) == (1, 11, None)
    assert outcome.summary.has_content
    assert outcome.peak_memory_bytes is not None
    assert outcome.peak_memory_bytes > 10_000_000


def test_images_are_files_beside_the_document(pool: ParserPool, tmp_path: Path) -> None:
    (image,) = parse(pool, tmp_path, "picture")["picture"].images
    assert image.path.read_bytes() == b"pixels"
    assert (image.position, image.media_type, image.width, image.height) == (0, "image/png", 3, 2)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        pytest.param("kill", ParserCrashedError, "SIGKILL", id="killed"),
        pytest.param("exit 3", ParserCrashedError, "exit code 3", id="exits"),
        pytest.param("segfault", ParserCrashedError, "SIGSEGV", id="native-crash"),
        pytest.param("hog", DocumentTooLargeError, "150 MB of memory", id="memory-hog"),
        pytest.param("hog_at_once", DocumentTooLargeError, "150 MB of memory", id="one-huge-allocation"),
        pytest.param("recurse", DocumentTooLargeError, "nested too deeply", id="endless-recursion"),
        pytest.param("corrupt bad table", CorruptDocumentError, "^bad table$", id="own-error"),
        pytest.param("fault by zero", InternalError, "ZeroDivisionError: by zero", id="unexpected-error"),
        pytest.param("leave", InternalError, "SystemExit", id="system-exit"),
        pytest.param("local_error", InternalError, "UnpicklableError: cannot be pickled", id="unpicklable-error"),
    ],
)
def test_bad_file_fails_alone(
    pool: ParserPool, tmp_path: Path, content: str, error: type[RagPipelineError], message: str
) -> None:
    outcomes = parse(pool, tmp_path, content, "say fine")
    with pytest.raises(error, match=message):
        raise outcomes[content].error or AssertionError("no error")
    assert outcomes[content].path is None
    assert outcomes["say fine"].error is None


@pytest.mark.parametrize("content", ["hang", "hang_with_lock"])
def test_hanging_file_is_stopped_at_its_time_limit(pool: ParserPool, tmp_path: Path, content: str) -> None:
    assert said(pool, tmp_path, "say warm") == "warm"
    outcomes = parse(pool, tmp_path, content, seconds=0.5)
    assert isinstance(outcomes[content].error, ParseTimeoutError)
    assert said(pool, tmp_path, "say fine") == "fine"


def test_worker_killed_in_the_middle_fails_its_file_only(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    requests = [request(tmp_path, content) for content in (f"hang {pid_file}", "say one", "say two")]
    with ParserPool(2, parse_function=MISBEHAVING) as pool:
        iterator = pool.parse(requests, tmp_path)
        outcomes = [next(iterator), next(iterator)]
        os.kill(wait_for_pid(pid_file), signal.SIGKILL)
        outcomes.extend(iterator)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), type(None), ParserCrashedError]


def test_worker_killed_while_idle_is_replaced(pool: ParserPool, tmp_path: Path) -> None:
    pid = int(said(pool, tmp_path, "pid"))
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid)
    assert int(said(pool, tmp_path, "pid")) != pid


def test_worker_is_reused_and_recycled(tmp_path: Path) -> None:
    with ParserPool(1, parse_function=MISBEHAVING, files_per_worker=2) as pool:
        pids = [said(pool, tmp_path, "pid") for _ in range(4)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert pids[1] != pids[2]


def test_failed_file_leaves_no_output(pool: ParserPool, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    contents = ("corrupt x", "kill", "fault x")
    outcomes = list(pool.parse([request(tmp_path, content) for content in contents], output))
    assert len(outcomes) == 3
    assert list(output.iterdir()) == []


def test_requests_are_taken_when_a_worker_is_free(pool: ParserPool, tmp_path: Path) -> None:
    taken = []

    def requests() -> Iterator[tuple[str, ParseRequest]]:
        for number in range(10):
            taken.append(number)
            yield request(tmp_path, f"say {number}")

    iterator = pool.parse(requests(), tmp_path)
    next(iterator)
    assert len(taken) == 1
    assert len(list(iterator)) == 9


def test_closing_the_iterator_stops_running_files(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with ParserPool(2, parse_function=MISBEHAVING) as pool:
        requests = [request(tmp_path, content) for content in (f"hang {pid_file}", "say one")]
        iterator = pool.parse(requests, tmp_path)
        next(iterator)
        pid = wait_for_pid(pid_file)
        iterator.close()  # type: ignore[attr-defined]
        assert wait_until_gone(pid)
        assert said(pool, tmp_path, "say again") == "again"


def test_second_iteration_at_a_time_is_refused(pool: ParserPool, tmp_path: Path) -> None:
    iterator = pool.parse([request(tmp_path, f"say {number}") for number in range(2)], tmp_path)
    next(iterator)
    with pytest.raises(RuntimeError, match="already"):
        next(pool.parse([request(tmp_path, "say x")], tmp_path))
    assert len(list(iterator)) == 1


def test_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ParserPool(0)


@pytest.mark.parametrize(("workers", "threads"), [(1, 3), (2, 1), (4, 1)])
def test_native_threads_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, threads: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with ParserPool(workers, parse_function=MISBEHAVING) as pool:
        assert said(pool, tmp_path, "threads") == str(threads)


def test_worker_imports_no_servers_and_no_orchestrator(tmp_path: Path) -> None:
    import dagster  # noqa: F401 - the parent has it, the worker must not

    with ParserPool(1, parse_function=MISBEHAVING) as pool:
        outcome = parse(pool, tmp_path, "modules")["modules"]
    assert outcome.summary is not None
    assert outcome.summary.excerpt == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_worker_inherits_no_connections(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    os.set_inheritable(left.fileno(), True)
    with left, right, ParserPool(1, parse_function=MISBEHAVING) as pool:
        assert "socket:" not in said(pool, tmp_path, "descriptors")


def test_default_parse_function_is_the_registry(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Title\n\nText.\n")
    (tmp_path / "b.md").write_text("")
    requests = [(name, ParseRequest(path=tmp_path / name, file_name=name)) for name in ("a.md", "b.md")]
    with ParserPool(1) as pool:
        outcomes = {outcome.key: outcome for outcome in pool.parse(requests, tmp_path)}
    assert outcomes["a.md"].summary is not None
    assert outcomes["a.md"].summary.metadata["title"] == "Title"
    assert isinstance(outcomes["b.md"].error, EmptyDocumentError)


PARENT = """
import sys
from pathlib import Path
from rag_pipeline.core.ports import ParseRequest
from rag_pipeline.parsing.pool import ParserPool

folder = Path(sys.argv[1])
with ParserPool(1, parse_function="rag_pipeline_tests.parsing.misbehaving:parse") as pool:
    list(pool.parse([("hang", ParseRequest(path=folder / "hang.txt", file_name="hang.txt"))], folder))
"""


def start_parent(folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """A program whose only worker hangs; its process and the worker's pid."""
    pid_file = folder / "pid"
    (folder / "hang.txt").write_text(f"hang {pid_file}")
    script = folder / "parent.py"
    script.write_text(PARENT)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return parent, wait_for_pid(pid_file)


def test_worker_dies_with_a_killed_parent(tmp_path: Path) -> None:
    parent, worker = start_parent(tmp_path)
    with parent:
        parent.kill()
        parent.communicate()
    assert wait_until_gone(worker)


def test_interrupt_shows_the_traceback_of_the_parent_only(tmp_path: Path) -> None:
    parent, worker = start_parent(tmp_path)
    with parent:
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=60)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert wait_until_gone(worker)
