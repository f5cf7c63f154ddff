"""A chat and rerank service on loopback, for tests: real HTTP, server-sent events included, failures by script.

The chat model answers with `answer`, or with what the callable `answer` makes of the request's messages. The reranker
scores by shared words. As a process: `python -m rag_pipeline_tests.model_server --port 8901`; it prints its URL.
"""

import argparse
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ChatAnswer = str | Callable[[list[dict[str, str]]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """What the next request gets; the defaults change nothing."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent as it is, with `status`."""
    wait_seconds: float = 0.0
    """Before the answer begins; ended early when the server stops."""
    drop_connection: bool = False
    break_off_after: int | None = None
    """Events of a stream after which the connection ends."""


class ModelServer:
    """A context manager: serves on 127.0.0.1 on a free port (or `port`) in a thread."""

    def __init__(self, *, answer: ChatAnswer = "An answer.", piece_characters: int = 5, port: int = 0) -> None:
        self.answer = answer
        self.piece_characters = piece_characters
        """Characters of an event of a stream."""
        self.chats: list[dict[str, Any]] = []
        """Bodies of chat requests."""
        self.reranks: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.stopping = threading.Event()
        self.hang_after: int | None = None
        """Events of a stream after which nothing more comes until the client goes away."""
        self.client_gone = threading.Event()
        """Set when a client closed a stream that had not ended."""
        self._chat_script: deque[Scripted] = deque()
        self._rerank_script: deque[Scripted] = deque()
        self._lock = threading.Lock()
        self._server = _HttpServer(port, self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """Base URL for `RAG_CHAT_URL` and `RAG_RERANK_URL`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def script_chat(self, *answers: Scripted) -> None:
        """Answer the next chat requests so, in the order in which they arrive."""
        self._chat_script.extend(answers)

    def script_rerank(self, *answers: Scripted) -> None:
        """Answer the next rerank requests so."""
        self._rerank_script.extend(answers)

    def serve_forever(self) -> None:
        """Serve in this thread until the process is interrupted."""
        self._server.serve_forever()

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, path: str, body: dict[str, Any], authorization: str) -> Scripted:
        """Note a request and take its answer from the script."""
        with self._lock:
            is_chat = path.endswith("/chat/completions")
            (self.chats if is_chat else self.reranks).append(body)
            self.authorizations.append(authorization)
            script = self._chat_script if is_chat else self._rerank_script
            return script.popleft() if script else Scripted()

    def text_for(self, messages: list[dict[str, str]]) -> str:
        """What the chat model says."""
        return self.answer if isinstance(self.answer, str) else self.answer(messages)


def shared_words(query: str, text: str) -> float:
    """Score of a passage: the share of the query's words that it has."""
    words = set(query.casefold().split())
    return len(words & set(text.casefold().split())) / max(len(words), 1)


def scores(query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """Positions and scores, best first."""
    found = [(place, shared_words(query, text)) for place, text in enumerate(texts)]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, model: ModelServer) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.model = model


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        assert isinstance(self.server, _HttpServer)
        model = self.server.model
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scripted = model.begin(self.path, body, self.headers.get("Authorization", ""))
        if scripted.wait_seconds:
            model.stopping.wait(scripted.wait_seconds)
        if scripted.drop_connection:
            self.close_connection = True
        elif scripted.body is not None or scripted.status != 200:
            self._send(scripted.status, scripted.body or '{"error": {"message": "scripted failure"}}', scripted.headers)
        elif self.path == "/v1/chat/completions" and body.get("stream"):
            self._stream(model, model.text_for(body["messages"]), scripted)
        elif self.path == "/v1/chat/completions":
            text = model.text_for(body["messages"])
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self._send(200, json.dumps({"choices": [choice]}), {})
        elif self.path == "/v1/rerank":
            self._send(200, self._reranked(body), {})
        else:
            self._send(404, '{"error": {"message": "no such path"}}', {})

    def _reranked(self, body: dict[str, Any]) -> str:
        if "texts" in body:
            return json.dumps(
                [{"index": place, "score": score} for place, score in scores(body["query"], body["texts"])]
            )
        found = scores(body["query"], body["documents"])[: body["top_n"]]
        return json.dumps({"results": [{"index": place, "relevance_score": score} for place, score in found]})

    def _stream(self, model: ModelServer, text: str, scripted: Scripted) -> None:
        size = model.piece_characters
        deltas = [{"delta": {"content": text[start : start + size]}} for start in range(0, len(text), size)]
        events = [json.dumps({"choices": [delta]}) for delta in [{"delta": {"role": "assistant"}}, *deltas]]
        events += [json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}), "[DONE]"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b": a comment\n\n")
        for place, event in enumerate(events):
            if place == scripted.break_off_after:
                return
            if place == model.hang_after:
                self._wait_for_the_client(model)
                return
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()

    def _wait_for_the_client(self, model: ModelServer) -> None:
        """Send comments until the client has closed the connection."""
        while not model.stopping.is_set():
            try:
                self.wfile.write(b": still there\n\n")
                self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                model.client_gone.set()
                return
            time.sleep(0.02)

    def _send(self, status: int, body: str, headers: dict[str, str]) -> None:
        content = body.encode()
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


def main() -> None:
    """Serve until interrupted; the chat model repeats the last message."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    server = ModelServer(port=parser.parse_args().port, answer=lambda messages: messages[-1]["content"])
    print(server.url, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
