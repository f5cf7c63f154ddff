"""An OpenAI-compatible embedding service on loopback, for tests and benchmarks: real HTTP, deterministic vectors.

As a process: `python -m rag_pipeline_tests.embedding_server --port 8900 --dimensions 384 --base64`; it prints its URL.
"""

import argparse
import base64
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import numpy.typing as npt

POISON = "POISON"
"""A request with a text that has this in it is refused with HTTP 400."""
NOT_A_NUMBER = "NOT-A-NUMBER"
"""The vector of a text that has this in it is NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the next request gets instead of its vectors; the defaults change nothing."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent as it is, with `status`."""
    wait_seconds: float = 0.0
    """Before the answer begins."""
    drop_connection: bool = False
    leave_out: int = 0
    """Vectors missing at the end."""
    reverse: bool = False
    """Vectors in reverse order, with the right `index`."""
    dimensions: int | None = None
    zero: bool = False
    """All vectors are zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it arrived."""

    texts: tuple[str, ...]
    authorization: str


class EmbeddingServer:
    """A context manager: serves on 127.0.0.1 on a free port (or `port`) in a thread."""

    def __init__(
        self,
        *,
        dimensions: int = 16,
        port: int = 0,
        base64_vectors: bool = False,
        most_texts: int = 10_000,
        refuse_everything: bool = False,
        keep_requests: bool = True,
    ) -> None:
        self.dimensions = dimensions
        self.base64_vectors = base64_vectors
        self.most_texts = most_texts
        self.refuse_everything = refuse_everything
        self.refuses_poison = True
        self.requests = 0
        self.texts = 0
        self.received: list[Received] = []
        self.most_in_flight = 0
        self._keep_requests = keep_requests
        self._in_flight = 0
        self._answers: deque[Answer] = deque()
        self._lock = threading.Lock()
        self._server = _HttpServer(port, self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """Base URL for `RAG_EMBEDDING_URL`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def script(self, *answers: Answer) -> None:
        """Answer the next requests so, in the order in which they arrive."""
        self._answers.extend(answers)

    def forget_script(self) -> None:
        """Answer everything as usual from now on."""
        self._answers.clear()

    def serve_forever(self) -> None:
        """Serve in this thread until the process is interrupted."""
        self._server.serve_forever()

    def __enter__(self) -> "EmbeddingServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, texts: Sequence[str], authorization: str) -> Answer:
        """Count a request and take its answer from the script."""
        with self._lock:
            self.requests += 1
            self.texts += len(texts)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            if self._keep_requests:
                self.received.append(Received(texts=tuple(texts), authorization=authorization))
            return self._answers.popleft() if self._answers else Answer()

    def end(self) -> None:
        """Count a request as answered."""
        with self._lock:
            self._in_flight -= 1

    def refusal(self, texts: Sequence[str]) -> str | None:
        """Why a request is answered with HTTP 400; None when it is not."""
        if self.refuse_everything:
            return "model not found"
        if len(texts) > self.most_texts:
            return f"batch size is invalid, it should not be larger than {self.most_texts}"
        poisoned = [text for text in texts if POISON in text] if self.refuses_poison else []
        return f"the input is not allowed: {poisoned[0]}" if poisoned else None


def unit_vector(text: str, dimensions: int) -> npt.NDArray[np.float32]:
    """The vector of a text: its SHA-256 as seed of signs, so that it costs microseconds; length 1."""
    seed = np.frombuffer(hashlib.shake_128(text.encode("utf-8", "surrogatepass")).digest(dimensions), dtype=np.int8)
    values = seed.astype(np.float32) + 0.5
    return values / np.float32(np.linalg.norm(values))


def _payload(server: EmbeddingServer, texts: Sequence[str], answer: Answer, *, base64_vectors: bool) -> bytes:
    dimensions = answer.dimensions or server.dimensions
    data: list[dict[str, Any]] = []
    for index, text in enumerate(texts[: len(texts) - answer.leave_out]):
        vector = unit_vector(text, dimensions)
        if answer.zero:
            vector = np.zeros_like(vector)
        if NOT_A_NUMBER in text:
            vector = np.full_like(vector, np.nan)
        embedding = base64.b64encode(vector.tobytes()).decode() if base64_vectors else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    if answer.reverse:
        data.reverse()
    return json.dumps({"object": "list", "data": data, "model": "test"}).encode()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, embedding: EmbeddingServer) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.embedding = embedding


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one segment

    def do_POST(self) -> None:
        assert isinstance(self.server, _HttpServer)
        embedding = self.server.embedding
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = embedding.begin(request["input"], self.headers.get("Authorization", ""))
        try:
            time.sleep(answer.wait_seconds)
            if answer.drop_connection:
                self.close_connection = True
            else:
                self._send(*self._answer(embedding, request, answer), answer.headers)
        finally:
            embedding.end()

    def _answer(self, embedding: EmbeddingServer, request: dict[str, Any], answer: Answer) -> tuple[int, bytes]:
        texts = request["input"]
        if self.path != "/v1/embeddings":
            return 404, b'{"error": {"message": "no such path"}}'
        if answer.body is not None:
            return answer.status, answer.body
        if answer.status != 200:
            return answer.status, b'{"error": {"message": "scripted failure"}}'
        refusal = embedding.refusal(texts)
        if refusal is not None:
            return 400, json.dumps({"error": {"message": refusal}}).encode()
        in_base64 = embedding.base64_vectors or request.get("encoding_format") == "base64"
        return 200, _payload(embedding, texts, answer, base64_vectors=in_base64)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--base64", action="store_true", help="answer with base64 vectors, unasked")
    arguments = parser.parse_args()
    server = EmbeddingServer(
        dimensions=arguments.dimensions,
        port=arguments.port,
        base64_vectors=arguments.base64,
        keep_requests=False,
    )
    print(server.url, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
