"""A chat and rerank service on loopback, for tests: real HTTP, server-sent events included, failures by script.

The chat model answers with `answer`, or with what the callable `answer` makes of the request's messages. The reranker
scores by shared words. As a process: `python -m rag_pipeline_tests.model_server --port 8901`; it prints its URL.
"""

import argparse
import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_pipeline_tests.loopback_server import NO_SUCH_PATH, Deviation, LoopbackServer, Request

ChatAnswer = str | Callable[[list[dict[str, str]]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Deviation):
    """What the next request gets; the defaults change nothing."""

    break_off_after: int | None = None
    """Events of a stream after which the connection ends."""


class ModelServer(LoopbackServer):
    """`RAG_CHAT_URL` and `RAG_RERANK_URL` for tests."""

    def __init__(self, *, answer: ChatAnswer = "An answer.", piece_characters: int = 5, port: int = 0) -> None:
        super().__init__(port=port)
        self.answer = answer
        self.piece_characters = piece_characters
        """Characters of an event of a stream."""
        self.chats: list[dict[str, Any]] = []
        """Bodies of chat requests."""
        self.reranks: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.hang_after: int | None = None
        """Events of a stream after which nothing more comes until the client goes away."""
        self.client_gone = threading.Event()
        """Set when a client closed a stream that had not ended."""
        self._chat_script: deque[Scripted] = deque()
        self._rerank_script: deque[Scripted] = deque()

    def script_chat(self, *answers: Scripted) -> None:
        """Answer the next chat requests so, in the order in which they arrive."""
        self._chat_script.extend(answers)

    def script_rerank(self, *answers: Scripted) -> None:
        """Answer the next rerank requests so."""
        self._rerank_script.extend(answers)

    def text_for(self, messages: list[dict[str, str]]) -> str:
        """What the chat model says."""
        return self.answer if isinstance(self.answer, str) else self.answer(messages)

    def answer_request(self, request: Request, body: dict[str, Any]) -> None:
        """An answer, scores, or what the script says."""
        scripted = self._begin(request.path, body, request.authorization)
        if self.deviates(request, scripted):
            return
        if request.path == "/v1/chat/completions" and body.get("stream"):
            self._stream(request, self.text_for(body["messages"]), scripted)
        elif request.path == "/v1/chat/completions":
            text = self.text_for(body["messages"])
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            request.send(200, json.dumps({"choices": [choice]}))
        elif request.path == "/v1/rerank":
            request.send(200, _reranked(body))
        else:
            request.send(404, NO_SUCH_PATH)

    def _begin(self, path: str, body: dict[str, Any], authorization: str) -> Scripted:
        """Note a request and take its answer from the script."""
        with self.lock:
            is_chat = path.endswith("/chat/completions")
            (self.chats if is_chat else self.reranks).append(body)
            self.authorizations.append(authorization)
            script = self._chat_script if is_chat else self._rerank_script
            return script.popleft() if script else Scripted()

    def _stream(self, request: Request, text: str, scripted: Scripted) -> None:
        size = self.piece_characters
        deltas = [{"delta": {"content": text[start : start + size]}} for start in range(0, len(text), size)]
        events = [json.dumps({"choices": [delta]}) for delta in [{"delta": {"role": "assistant"}}, *deltas]]
        events += [json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}), "[DONE]"]
        request.begin_stream()
        request.send_piece(": a comment\n\n")
        for place, event in enumerate(events):
            if place == scripted.break_off_after:
                return
            if place == self.hang_after:
                self._wait_for_the_client(request)
                return
            if not request.send_piece(f"data: {event}\n\n"):
                return

    def _wait_for_the_client(self, request: Request) -> None:
        """Send comments until the client has closed the connection."""
        while request.send_piece(": still there\n\n"):
            if self.stopping.wait(0.02):
                return
        self.client_gone.set()


def shared_words(query: str, text: str) -> float:
    """Score of a passage: the share of the query's words that it has."""
    words = set(query.casefold().split())
    return len(words & set(text.casefold().split())) / max(len(words), 1)


def scores(query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """Positions and scores, best first."""
    found = [(place, shared_words(query, text)) for place, text in enumerate(texts)]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _reranked(body: dict[str, Any]) -> str:
    if "texts" in body:
        return json.dumps([{"index": place, "score": score} for place, score in scores(body["query"], body["texts"])])
    found = scores(body["query"], body["documents"])[: body["top_n"]]
    return json.dumps({"results": [{"index": place, "relevance_score": score} for place, score in found]})


def main() -> None:
    """Serve until interrupted; the chat model repeats the last message."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    ModelServer(port=parser.parse_args().port, answer=lambda messages: messages[-1]["content"]).run()


if __name__ == "__main__":
    main()
