"""What the services on loopback share: real HTTP on a free port in a thread, answers that follow a script."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

NO_SUCH_PATH = b'{"error": {"message": "no such path"}}'
SCRIPTED_FAILURE = b'{"error": {"message": "scripted failure"}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """What the next request gets instead of the usual answer; the defaults change nothing."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str | None = None
    """Sent as it is, with `status`."""
    wait_seconds: float = 0.0
    """Before the answer begins; ended early when the server stops."""
    drop_connection: bool = False


class LoopbackServer(ABC):
    """A context manager: serves on 127.0.0.1 on a free port (or `port`) in a thread."""

    def __init__(self, *, port: int = 0) -> None:
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        """For what several requests change."""
        self._server = _HttpServer(port, self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """Base URL, as a setting names it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @abstractmethod
    def answer_request(self, request: "Request", body: dict[str, Any]) -> None:
        """Answer one request, in a thread of its own."""

    def deviates(self, request: "Request", deviation: Deviation) -> bool:
        """Do what the script says; False if it leaves the answer as usual."""
        if deviation.wait_seconds:
            self.stopping.wait(deviation.wait_seconds)
        if deviation.drop_connection:
            request.close_connection = True
            return True
        if deviation.body is not None or deviation.status != 200:
            body = SCRIPTED_FAILURE if deviation.body is None else deviation.body
            request.send(deviation.status, body, deviation.headers)
            return True
        return False

    def run(self) -> None:
        """Print the URL and serve in this thread until the process is interrupted."""
        print(self.url, flush=True)
        try:
            self._server.serve_forever()
        except KeyboardInterrupt:
            return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Request(BaseHTTPRequestHandler):
    """One POST with a JSON object."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one segment

    @property
    def authorization(self) -> str:
        """Of the request's header."""
        return str(self.headers.get("Authorization", ""))

    def do_POST(self) -> None:
        assert isinstance(self.server, _HttpServer)
        self.server.service.answer_request(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def send(self, status: int, body: bytes | str, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer; a client that has gone is none of ours."""
        content = body.encode() if isinstance(body, str) else body
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def begin_stream(self) -> None:
        """Headers of server-sent events; the connection ends with them."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_piece(self, piece: str) -> bool:
        """A part of a stream, at once; False if the client has gone."""
        try:
            self.wfile.write(piece.encode())
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, service: LoopbackServer) -> None:
        super().__init__(("127.0.0.1", port), Request)
        self.service = service
