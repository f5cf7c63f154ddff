"""Language models behind an OpenAI-compatible `/chat/completions` (OpenAI, DashScope, vLLM, Ollama), over `httpx`.

What a reasoning model thinks, in fields of its own or as `<think>...</think>` in the text, is no part of its answers.
"""

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from pydantic import SecretStr

from rag_pipeline.adapters.http_service import JsonService, service_message
from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.core.ports import ChatMessage, ChatModel, ChatText
from rag_pipeline.core.reasoning import ReasoningFilter
from rag_pipeline.errors import ModelUnavailableError
from rag_pipeline.settings import Settings

END_OF_STREAM = "[DONE]"
ANSWER_CHARACTERS = 100_000
"""A model that does not stop is stopped here."""


class OpenAICompatibleChat(ChatModel):
    """One request per answer, temperature 0. Safe to share between threads."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        api_key: SecretStr | None = None,
        timeout_seconds: float = 60.0,
        max_tokens: int = 1_024,
    ) -> None:
        """Call nothing yet. Raises `ConfigurationError`."""
        self._service = JsonService(
            url=url, path="/chat/completions", api_key=api_key, setting="RAG_CHAT", timeout_seconds=timeout_seconds
        )
        self._model = model
        self._max_tokens = max_tokens

    @classmethod
    def from_settings(cls, settings: Settings) -> "OpenAICompatibleChat | None":
        """The service that the settings name, None without one. Raises `ConfigurationError`."""
        if not settings.chat_url:
            return None
        return cls(
            url=settings.chat_url,
            model=settings.chat_model,
            api_key=settings.chat_api_key,
            timeout_seconds=settings.chat_timeout_seconds,
            max_tokens=settings.chat_max_tokens,
        )

    def complete(self, messages: Sequence[ChatMessage], *, timeout_seconds: float | None = None) -> ChatText:
        """The whole answer, in one request."""
        answer = self._service.post(self._body(messages, stream=False), timeout_seconds=timeout_seconds)
        choice = _choice(answer)
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise self._service.malformed(json.dumps(answer))
        thoughts = ReasoningFilter()
        text = thoughts.feed(clean_text(content[:ANSWER_CHARACTERS])) + thoughts.finish()
        return ChatText(text=text, is_cut=choice.get("finish_reason") == "length")

    def stream(self, messages: Sequence[ChatMessage]) -> Iterator[ChatText]:
        """The answer as server-sent events; a stream that ends before the model has finished is an error."""
        thoughts = ReasoningFilter()
        with contextlib.closing(self._pieces(messages)) as pieces:
            try:
                for piece in pieces:
                    text = thoughts.feed(piece.text) + (thoughts.finish() if piece.is_cut else "")
                    if text or piece.is_cut:
                        yield ChatText(text=text, is_cut=piece.is_cut)
            except ModelUnavailableError:
                yield from _rest(thoughts)
                raise
        yield from _rest(thoughts)

    def _pieces(self, messages: Sequence[ChatMessage]) -> Generator[ChatText, None, None]:
        characters = 0
        with self._service.events(self._body(messages, stream=True)) as events:
            for data in events:
                if data == END_OF_STREAM:
                    return
                choice = _choice(self._event(data))
                text = clean_text(_delta(choice))[: ANSWER_CHARACTERS - characters]
                characters += len(text)
                is_cut = choice.get("finish_reason") == "length" or characters >= ANSWER_CHARACTERS
                if text or is_cut:
                    yield ChatText(text=text, is_cut=is_cut)
                if choice.get("finish_reason") or is_cut:
                    return
        raise ModelUnavailableError(f"{self._service.shown_url}: the answer broke off")

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    def _body(self, messages: Sequence[ChatMessage], *, stream: bool) -> dict[str, object]:
        return {
            "model": self._model,
            "messages": [{"role": each.role, "content": clean_text(each.content)} for each in messages],
            "temperature": 0,
            "max_tokens": self._max_tokens,
            "stream": stream,
        }

    def _event(self, data: str) -> Any:
        try:
            event = json.loads(data)
        except ValueError as error:
            raise self._service.malformed(data) from error
        if isinstance(event, dict) and event.get("error"):
            raise ModelUnavailableError(f"{self._service.shown_url}: {service_message(data)}")
        return event


def _rest(thoughts: ReasoningFilter) -> Iterator[ChatText]:
    text = thoughts.finish()
    if text:
        yield ChatText(text=text)


def _choice(answer: Any) -> dict[str, Any]:
    """The first choice; empty where there is none (a last event with the usage only)."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _delta(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""
