"""The embedded Milvus Lite, as a server process."""

import sys
from pathlib import Path

import psutil

from rag_pipeline.local.credentials import HOST, accepts
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.process import ProcessSpec

NAME = "milvus"
_LISTEN = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h


def spec(folders: ServerFolders, *, port: int) -> ProcessSpec:
    """How to start the server. Its default host is 0.0.0.0."""
    arguments = ("server", "--data-dir", str(folders.servers / "milvus"), "--host", HOST, "--port", str(port))
    return ProcessSpec(
        name=NAME,
        command=(sys.executable, "-m", "milvus_lite", *arguments),
        environment={},
        folder=folders.servers,
        log=folders.log(NAME),
        port=port,
    )


def is_ready(pid: int, *, port: int) -> bool:
    """Whether the server accepts connections. It listens only after its data is open."""
    return accepts(port) and not shares_port(pid, port=port)


def shares_port(pid: int, *, port: int) -> bool:
    """Whether another process listens on the server's port too (Linux; False elsewhere).

    gRPC sets SO_REUSEPORT: a second server on a taken port starts without an error, and the kernel gives each new
    connection to either of them.
    """
    every = _listeners(port)  # before our own, so that a socket opened in between counts as ours
    try:
        own = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return False
    return every > sum(item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in own)


def _listeners(port: int) -> int:
    """How many sockets of this machine listen on a port, whoever owns them."""
    lines: list[str] = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            lines += table.read_text().splitlines()[1:]
    columns = [line.split() for line in lines]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == _LISTEN for row in columns)
