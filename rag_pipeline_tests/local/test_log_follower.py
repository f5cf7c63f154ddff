"""What `up` shows of the logs: a real failed run of Dagster, printed as its processes print it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rag_pipeline.local.log_follower import LogFollower

RUN = """
import dagster as dg

@dg.op
def stage():
    raise {error}

@dg.job
def documents_job():
    stage()

documents_job.execute_in_process(raise_on_error=False)
"""


@pytest.mark.parametrize(
    ("error", "shown", "has_stack"),
    [
        (
            "dg.Failure(description='1 of 2 documents failed:\\nkb.a.pdf at parsed_blocks: broken')",
            "kb.a.pdf at",
            False,
        ),
        ("ZeroDivisionError('a fault of the program')", "a fault of the program", True),
    ],
    ids=["failed documents", "fault of the program"],
)
def test_only_faults_of_the_program_show_a_stack(tmp_path: Path, error: str, shown: str, has_stack: bool) -> None:
    log = tmp_path / "code-server.log"
    log.touch()
    lines: list[str] = []
    with LogFollower({"code-server": log}, lines.append):
        with log.open("ab") as output:
            subprocess.run([sys.executable, "-c", RUN.format(error=error)], stderr=output, stdout=output, check=True)
        time.sleep(0.1)
    text = "\n".join(lines)
    assert shown in text
    assert ('File "' in text) is has_stack
    assert "RUN_FAILURE" in text


def test_a_reason_to_skip_is_shown_when_it_changes(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.touch()
    lines: list[str] = []
    with LogFollower({"daemon": log}, lines.append), log.open("a") as output:
        for reason in ("2 batches wait", "2 batches wait", "1 batch waits", "2 batches wait"):
            for sensor in ("waiting_documents", "recovery"):
                said = f"dagster.daemon.SensorDaemon - INFO - Sensor {sensor} skipped: {reason}"
                output.write(f"2026-11-30 08:00:00 +0000 - {said}\n")
    shown = [line.partition("Sensor ")[2] for line in lines]
    assert shown == [
        f"{sensor} skipped: {reason}"
        for reason in ("2 batches wait", "1 batch waits", "2 batches wait")
        for sensor in ("waiting_documents", "recovery")
    ]
