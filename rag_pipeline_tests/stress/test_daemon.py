"""Kill -9 of one process at a time under the real daemon: run, daemon, code server, every server, the whole tree.

After a restart every document reaches READY, and every store agrees, within the lease and one run.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import psutil
import pytest

from rag_pipeline.core.documents import Document, Stage, Status
from rag_pipeline.local.credentials import accepts
from rag_pipeline.local.dagster import prepare_home
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings
from rag_pipeline.stages.cleanup import remove_superseded
from rag_pipeline.stages.services import Services
from rag_pipeline_tests.contents import assert_consistent
from rag_pipeline_tests.embedding_server import EmbeddingServer

KB = "killed"
DIMENSIONS = 16
LEASE_SECONDS = 15.0
DOCUMENTS = 10
SECONDS_TO_SETTLE = 420.0
"""Lease, sensor ticks, restart and two runs on a loaded machine; a document that is stuck stays so for ever."""
VICTIMS = ("run", "run", "daemon", "code server", "milvus", "s3", "postgres", "up", "everything")
FEW_SEEDS = (2,)
MANY_SEEDS = range(100, 124)


@dataclass(kw_only=True)
class Installation:
    """`rag-pipeline up` in a folder, as a user runs it."""

    folder: Path
    environment: dict[str, str]
    process: "subprocess.Popen[bytes] | None" = None
    log: Path = field(default_factory=Path)

    def up(self) -> None:
        """Start it unless it runs, and wait until it says so."""
        if self.process is not None and self.process.poll() is None:
            return
        self.log = self.folder / f"up-{time.monotonic_ns()}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rag_pipeline.cli.main", "up"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 300
        while "ready: " not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def down(self) -> None:
        """Stop whatever runs."""
        command = [sys.executable, "-m", "rag_pipeline.cli.main", "down"]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True, capture_output=True)
        if self.process is not None:
            self.process.wait(timeout=60)

    def settings(self) -> Settings:
        """Settings as they are now; ports may have changed."""
        variables = {name[4:].lower(): value for name, value in self.environment.items() if name.startswith("RAG_")}
        return Settings.load(**variables)

    def processes(self, victim: str) -> list[psutil.Process]:
        """The processes to kill."""
        assert self.process is not None
        up = psutil.Process(self.process.pid)
        tree = up.children(recursive=True)
        if victim == "up":
            return [up]
        if victim == "everything":
            return [up, *tree]
        [code_server] = [each for each in tree if " api grpc " in command_of(each)]
        if victim == "run":
            return [each for each in code_server.children() if "spawn_main" in command_of(each)]
        marks = {
            "daemon": "dagster._daemon",
            "code server": " api grpc ",
            "milvus": "milvus_lite",
            "s3": "nanio",
            "postgres": "postgres",
        }
        return [each for each in tree if marks[victim] in command_of(each)][:1]


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """One folder and one embedding service for all seeds."""
    with tempfile.TemporaryDirectory(prefix="rag-killed-") as name, EmbeddingServer(dimensions=DIMENSIONS) as embedding:
        folder = Path(name)
        folder.chmod(0o755)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAG_", "DAGSTER_"))}
        found = Installation(
            folder=folder,
            environment={
                **inherited,
                "RAG_DATA_DIR": str(folder / "data"),
                "RAG_EMBEDDER": "openai",
                "RAG_EMBEDDING_URL": embedding.url,
                "RAG_EMBEDDING_MODEL": "loopback",
                "RAG_EMBEDDING_DIMENSIONS": str(DIMENSIONS),
                "RAG_WEBSERVER_PORT": "0",
                "RAG_LEASE_SECONDS": str(LEASE_SECONDS),
                "RAG_RETRY_BASE_SECONDS": "1",
                "RAG_MAX_ATTEMPTS": "5",
            },
        )
        try:
            yield found
        finally:
            found.down()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_killed_process_under_the_daemon_leaves_nothing_stuck(installation: Installation, seed: int) -> None:
    kill_and_recover(installation, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_many_killed_processes_under_the_daemon_leave_nothing_stuck(installation: Installation, seed: int) -> None:
    kill_and_recover(installation, seed)


def kill_and_recover(installation: Installation, seed: int) -> None:
    """Submit, kill something at a random moment, start what is needed again, and look at the end."""
    chance = random.Random(seed)
    victim = VICTIMS[seed % len(VICTIMS)]
    where = f"seed {seed}, {victim}"
    installation.up()
    with client_of(installation) as client:
        client.create_knowledge_base(KB)
        submitted = [
            client.submit(KB, f"Text {number} of seed {seed}. ".encode() * 40, filename=f"{seed}-{number}.txt")
            for number in range(DOCUMENTS)
        ]
    wait_for_moment(installation, victim, chance)
    for process in installation.processes(victim):
        process.send_signal(signal.SIGKILL)
    wait_for_consequences(installation, victim)
    installation.up()
    with client_of(installation) as client:
        done = client.wait(submitted, timeout_seconds=SECONDS_TO_SETTLE)
        assert {document.status for document in done} == {Status.READY}, f"{where}: {failures(done)}"
        assert len(client.documents(KB, page_size=1000)) == client.count_by_status(KB)[Status.READY], where
    with Services.from_settings(installation.settings()) as services:
        remove_superseded(services, limit=1000, kept_seconds=0)
        assert_consistent(services, where=where)
    assert_green(installation, done, where)


def assert_green(installation: Installation, ready: Sequence[Document], where: str) -> None:
    """Every asset of every READY document has been materialized, as Dagster tells it."""
    settings = installation.settings()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in settings.as_environment().items():
            environment.setenv(name, value)
        with dg.DagsterInstance.from_config(str(prepare_home(settings))) as instance:
            wanted = {document.partition_key for document in ready}
            deadline = time.monotonic() + SECONDS_TO_SETTLE
            for stage in Stage:  # the last events come after READY
                while missing := wanted - instance.get_materialized_partitions(dg.AssetKey(stage.value)):
                    assert time.monotonic() < deadline, f"{where}: {stage} of {sorted(missing)} is not green"
                    time.sleep(0.5)


def wait_for_moment(installation: Installation, victim: str, chance: random.Random) -> None:
    """A random time; for a run, until one works."""
    deadline = time.monotonic() + 120
    while victim == "run" and not installation.processes(victim):
        assert time.monotonic() < deadline, "no run was started"
        time.sleep(0.1)
    time.sleep(chance.random() * 8)


def wait_for_consequences(installation: Installation, victim: str) -> None:
    """`up` ends by itself when a server or a part of Dagster has ended; after `up` itself, its children do."""
    assert installation.process is not None
    if victim != "run":
        installation.process.wait(timeout=120)


@contextmanager
def client_of(installation: Installation) -> Iterator[RagClient]:
    """A client for the ports of now."""
    settings = installation.settings()
    deadline = time.monotonic() + 60
    while not accepts(int(str(settings.milvus_uri).rpartition(":")[2])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with RagClient(settings) as client:
        yield client


def failures(documents: list[Document]) -> list[str]:
    """What went wrong, for the message."""
    return [f"{each.source_path} {each.status} {each.error}" for each in documents if each.status is not Status.READY]


def command_of(process: psutil.Process) -> str:
    """Its command line, empty when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
