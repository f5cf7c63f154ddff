"""The embedded Milvus Lite, as a server process."""

import sys

import psutil

from rag_pipeline.local.credentials import HOST, accepts
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.process import ProcessSpec

NAME = "milvus"


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
    """Whether another process listens on the server's port too.

    gRPC sets SO_REUSEPORT: a second server on a taken port starts without an error, and the kernel gives each new
    connection to either of them.
    """
    if sys.platform != "linux":  # other systems show foreign sockets to root only
        return False
    listening = [
        connection
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    ]
    return any(connection.pid != pid for connection in listening)
