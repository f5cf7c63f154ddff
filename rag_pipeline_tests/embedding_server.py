"""An OpenAI-compatible embedding service on loopback, for tests and benchmarks: real HTTP, deterministic vectors.

As a process: `python -m rag_pipeline_tests.embedding_server --port 8900 --dimensions 384 --base64`; it prints its URL.
"""

import argparse
import base64
import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_pipeline_tests.loopback_server import NO_SUCH_PATH, Deviation, LoopbackServer, Request

POISON = "POISON"
"""A request with a text that has this in it is refused with HTTP 400."""
NOT_A_NUMBER = "NOT-A-NUMBER"
"""The vector of a text that has this in it is NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Deviation):
    """What the next request gets instead of its vectors; the defaults change nothing."""

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


class EmbeddingServer(LoopbackServer):
    """`RAG_EMBEDDING_URL` for tests."""

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
        super().__init__(port=port)
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

    def script(self, *answers: Answer) -> None:
        """Answer the next requests so, in the order in which they arrive."""
        self._answers.extend(answers)

    def forget_script(self) -> None:
        """Answer everything as usual from now on."""
        self._answers.clear()

    def answer_request(self, request: Request, body: dict[str, Any]) -> None:
        """Vectors, unless the script or a text says otherwise."""
        texts = body["input"]
        answer = self._begin(texts, request.authorization)
        try:
            if request.path != "/v1/embeddings":
                request.send(404, NO_SUCH_PATH)
            elif not self.deviates(request, answer):
                refusal = self.refusal(texts)
                if refusal is not None:
                    request.send(400, json.dumps({"error": {"message": refusal}}), answer.headers)
                    return
                in_base64 = self.base64_vectors or body.get("encoding_format") == "base64"
                request.send(200, _payload(self, texts, answer, base64_vectors=in_base64), answer.headers)
        finally:
            with self.lock:
                self._in_flight -= 1

    def _begin(self, texts: Sequence[str], authorization: str) -> Answer:
        """Count a request and take its answer from the script."""
        with self.lock:
            self.requests += 1
            self.texts += len(texts)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            if self._keep_requests:
                self.received.append(Received(texts=tuple(texts), authorization=authorization))
            return self._answers.popleft() if self._answers else Answer()

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
    server.run()


if __name__ == "__main__":
    main()
