"""The command inspect, run as users run it: a process of its own, no servers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

MARKDOWN = """\
# Valves

Before the table.

| Site | Valve |
|---|---|
| North | V1 |
| South | V2 |

## Notes

The end.
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rag_pipeline.cli.main", "inspect", *map(str, arguments)]


def run(folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def lines_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_json_has_one_line_a_file_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text(MARKDOWN)
    (tmp_path / "a.csv").write_text("account,amount\nA-1,5\n")
    (tmp_path / "blank.txt").write_text(" \n\u3000\n")
    done = run(tmp_path, "--json", "b.md", "a.csv", "blank.txt")
    assert done.returncode == 0, done.stderr
    markdown, table, blank = lines_of(done)
    assert (markdown["file"], markdown["status"], markdown["error"]) == ("b.md", "ok", None)
    assert markdown["headings"] == ["Valves", "Notes"]
    assert markdown["rows"] == [["Site", "Valve"], ["North", "V1"], ["South", "V2"]]
    assert (markdown["pages"], markdown["page_texts"], markdown["sheets"]) == (None, None, None)
    assert [each["heading_path"] for each in markdown["chunks"]] == [["Valves"], ["Valves", "Notes"]]
    for each in markdown["chunks"]:
        assert each["text"] == markdown["text"][each["start"] : each["end"]]
        assert each["tokens"] > 0
    assert table["columns"] == ["account", "amount"]
    assert markdown["seconds"] >= 0
    assert markdown["rss_mb"] > 0
    assert (blank["status"], blank["chunks"]) == ("no_content", [])
    assert "no text" in blank["error"]["message"]


def test_a_file_that_fails_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 512)
    (tmp_path / "good.txt").write_text("A sentence.")
    done = run(tmp_path, "--json", "empty.txt", "old.doc", "good.txt", PATH="")  # no LibreOffice, which reads old.doc
    assert done.returncode == 1
    empty, old, good = lines_of(done)
    assert (empty["status"], empty["error"]["code"]) == ("error", "empty")
    assert (old["status"], old["error"]["code"]) == ("error", "unsupported")
    assert ".docx" in old["error"]["message"]
    assert good["status"] == "ok"


def test_the_outline_shows_headings_tables_chunks_and_errors(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text(MARKDOWN)
    (tmp_path / "empty.txt").write_bytes(b"")
    done = run(tmp_path, "b.md", "empty.txt")
    assert done.returncode == 1
    for expected in (
        "parser markdown",
        "headings (2)",
        "└── Valves",
        "3 rows x 2 columns: Site | Valve",
        "error empty",
    ):
        assert expected in done.stdout
    assert "Before the table." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_sizes_come_from_the_settings_and_impossible_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("One more sentence here. " * 100)
    done = run(
        tmp_path, "--json", "long.txt", RAG_CHUNK_TOKENS="32", RAG_CHUNK_MAX_TOKENS="40", RAG_CHUNK_OVERLAP_TOKENS="0"
    )
    [line] = lines_of(done)
    assert max(each["tokens"] for each in line["chunks"]) <= 40
    done = run(tmp_path, "--json", "long.txt", RAG_CHUNK_TOKENS="64", RAG_CHUNK_OVERLAP_TOKENS="64")
    assert done.returncode == 1
    assert "chunk_overlap_tokens" in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", "nowhere.txt")
    assert done.returncode == 2
    assert "nowhere.txt" in done.stderr


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from rag_pipeline.cli.main import app;"
        "result = CliRunner().invoke(app, ['inspect', '--json', 'a.txt']); assert result.exit_code == 0, result.output;"
        "print([name for name in ('dagster', 'pymilvus', 'onnxruntime', 'milvus_lite') if name in sys.modules])"
    )
    (tmp_path / "a.txt").write_text("A sentence.")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


def test_ctrl_c_ends_it_quietly_with_its_processes(tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("a,b\n" + "1,2\n" * 400_000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        command("--json", "big.csv"),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        children: list[psutil.Process] = []
        while not any(_is_at_work(child) for child in children):
            assert process.poll() is None
            time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode in {1, 130}
    assert "Traceback" not in errors
    psutil.wait_procs(children, timeout=60)
    assert not [child for child in children if child.is_running()]
    assert list(scratch.iterdir()) == []


def _is_at_work(child: psutil.Process) -> bool:
    """Whether a parser process has finished its start: then its watchdog thread runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return child.num_threads() > 1
    return False
