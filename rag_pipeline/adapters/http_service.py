"""What the HTTP adapters of models share: addresses, `Retry-After`, messages without keys, bounded JSON requests."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import SecretStr

from rag_pipeline.errors import ConfigurationError, ModelRejectedError, ModelUnavailableError, RagPipelineError

CONNECT_SECONDS = 5.0
MESSAGE_CHARACTERS = 300
MOST_ANSWER_BYTES = 8_000_000
"""A longer answer is no answer of such a service; it is not read to its end."""
MOST_WAIT_SECONDS = 2.0
"""A longer Retry-After is not waited for: somebody is waiting for the answer."""
WAIT_SECONDS = 0.2
"""Before the second attempt when the service does not say."""
CONNECTIONS = 16
TEMPORARY_STATUS = frozenset({408, 429})
"""Besides 5xx: the same request may be answered later."""

DIRECT: Mapping[str, httpx.BaseTransport | None] = {
    "all://127.0.0.1": None,
    "all://localhost": None,
    "all://[::1]": None,
}
"""Mounts of a client: a proxy from the environment is for the internet, not for this machine."""


class JsonService:
    """Sends JSON to one address and reads JSON or server-sent events. Safe to share between threads.

    A request that fails in a passing way is sent a second time if the time allows it.
    """

    def __init__(self, *, url: str, path: str, api_key: SecretStr | None, setting: str, timeout_seconds: float) -> None:
        """Call nothing yet.

        Args:
            url: base URL; `path` is appended.
            path: e.g. `/rerank`.
            api_key: sent as a bearer token.
            setting: prefix of the variables to name in errors, e.g. `RAG_RERANK`.
            timeout_seconds: for a whole request with its second attempt; while streaming, between two pieces.

        Raises:
            ConfigurationError: the URL is not http(s), or the key cannot be sent.
        """
        self._url = service_url(url, path, setting=f"{setting}_URL")
        self._key = header_key(api_key, setting=f"{setting}_API_KEY")
        self._timeout_seconds = timeout_seconds
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
            timeout=httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)),
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            mounts=DIRECT,
        )

    @property
    def shown_url(self) -> str:
        """The address without credentials, for messages."""
        return shown_url(self._url)

    def post(self, body: Mapping[str, object], *, timeout_seconds: float | None = None) -> Any:
        """Send a request and return the parsed JSON answer.

        Args:
            body: JSON object.
            timeout_seconds: less than the service's own limit, if given.

        Raises:
            ModelUnavailableError: network, time limit, 408, 429, 5xx.
            ModelRejectedError: another status, or an answer that is not JSON or over `MOST_ANSWER_BYTES`.
        """
        deadline = time.monotonic() + min(timeout_seconds or self._timeout_seconds, self._timeout_seconds)
        with self._sent(body, deadline) as response:
            content = self._read(response, deadline)
        try:
            return json.loads(content)
        except ValueError as error:
            raise self.malformed(content.decode("utf-8", "replace")) from error

    @contextlib.contextmanager
    def events(self, body: Mapping[str, object]) -> Iterator[Iterator[str]]:
        """Send a request and read the `data` of the server-sent events of its answer, as they come.

        Leaving the context closes the connection, which stops the service's work.

        Raises:
            ModelUnavailableError: as `post`; also when the stream breaks off.
            ModelRejectedError: as `post`.
        """
        deadline = time.monotonic() + self._timeout_seconds
        with self._sent(body, deadline) as response:
            yield self._data_lines(response)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def malformed(self, answer: str) -> ModelRejectedError:
        """The error for an answer of another shape."""
        return ModelRejectedError(f"{self.shown_url} does not answer as expected: {shortened(answer, key=self._key)}")

    @contextlib.contextmanager
    def _sent(self, body: Mapping[str, object], deadline: float) -> Iterator[httpx.Response]:
        """A successful response whose body is not read yet; the second attempt is made here."""
        with contextlib.ExitStack() as stack:
            try:
                response = self._attempt(body, deadline, stack)
            except ModelUnavailableError as error:
                wait = WAIT_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
                is_slow = isinstance(error.__cause__, httpx.TimeoutException)
                if is_slow or wait > MOST_WAIT_SECONDS or time.monotonic() + wait >= deadline:
                    raise
                time.sleep(wait)
                response = self._attempt(body, deadline, stack)
            yield response

    def _attempt(self, body: Mapping[str, object], deadline: float, stack: contextlib.ExitStack) -> httpx.Response:
        left = max(deadline - time.monotonic(), 0.001)
        timeout = httpx.Timeout(left, connect=min(CONNECT_SECONDS, left))
        with self._translated():
            response = stack.enter_context(self._client.stream("POST", self._url, json=body, timeout=timeout))
        if response.status_code != httpx.codes.OK:
            raise self._from_status(response, deadline)
        return response

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        content = bytearray()
        with self._translated():
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MOST_ANSWER_BYTES:
                    raise ModelRejectedError(f"{self.shown_url}: the answer is over {MOST_ANSWER_BYTES:,} bytes")
                if time.monotonic() > deadline:
                    raise ModelUnavailableError(f"{self.shown_url}: the answer takes too long")
        return bytes(content)

    def _data_lines(self, response: httpx.Response) -> Iterator[str]:
        """`data:` lines of an event stream; other fields and comments are passed over (WHATWG HTML, 9.2.6).

        A service that keeps the connection alive with comments alone is given up like one that sends nothing.
        """
        waiting_since = time.monotonic()
        with self._translated():
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield line.removeprefix("data:").strip()
                    waiting_since = time.monotonic()
                elif time.monotonic() - waiting_since > self._timeout_seconds:
                    raise ModelUnavailableError(f"{self.shown_url}: nothing came for {self._timeout_seconds:g} s")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where errors of `httpx` become ours."""
        try:
            yield
        except (httpx.RequestError, httpx.StreamError) as error:
            reason = shortened(str(error), key=self._key)
            raise ModelUnavailableError(f"{self.shown_url}: {type(error).__name__}: {reason}") from error

    def _from_status(self, response: httpx.Response, deadline: float) -> RagPipelineError:
        self_described = service_message(self._read(response, deadline).decode("utf-8", "replace"))
        status = response.status_code
        message = f"{self.shown_url}: HTTP {status}: {shortened(self_described, key=self._key)}"
        if status in TEMPORARY_STATUS or status >= 500:
            return ModelUnavailableError(message, retry_after_seconds=retry_after(response.headers))
        return ModelRejectedError(message)


def service_url(url: str, path: str, *, setting: str) -> httpx.URL:
    """The address of a service. Raises `ConfigurationError` that names the setting."""
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"{setting} is not a URL") from error
    if base.scheme not in {"http", "https"} or not base.host:
        raise ConfigurationError(f"{setting} has to begin with http:// or https:// and a host")
    return base.copy_with(path=base.path.rstrip("/") + path)


def shown_url(url: httpx.URL) -> str:
    """The address without credentials and query, for messages."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def header_key(api_key: SecretStr | None, *, setting: str) -> str:
    """The key, "" without one. Raises `ConfigurationError` if it cannot be sent in a header."""
    key = api_key.get_secret_value() if api_key else ""
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(f"{setting} has characters that cannot be sent in a header")
    return key


def retry_after(headers: httpx.Headers) -> float | None:
    """Seconds from a `Retry-After` header (seconds or an HTTP date, RFC 9110 10.2.3); None without a usable one."""
    value = headers.get("Retry-After", "").strip()
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def service_message(body: str) -> str:
    """What a service says went wrong, out of the usual places of a JSON body."""
    try:
        found = json.loads(body)
    except ValueError:
        return body
    if isinstance(found, dict):
        error = found.get("error", found)
        if isinstance(error, dict):
            return str(error.get("message") or error.get("detail") or error.get("error") or found)
        return str(error)
    return str(found)


def shortened(text: str, *, key: str) -> str:
    """One line without the key: services quote it in their errors."""
    line = " ".join(text.split())
    if key:
        line = line.replace(key, "[key]")
    return line if len(line) <= MESSAGE_CHARACTERS else line[:MESSAGE_CHARACTERS] + "…"
