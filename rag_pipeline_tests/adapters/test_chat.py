from collections.abc import Iterator

import pytest

from rag_pipeline.adapters.chat import OpenAICompatibleChat
from rag_pipeline.core.ports import ChatMessage, ChatText
from rag_pipeline.errors import ModelRejectedError, ModelUnavailableError
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.model_server import ModelServer, Scripted

MESSAGES = [ChatMessage(role="system", content="rules"), ChatMessage(role="user", content="a\0 question\ud800")]
ANSWER = "订金是 400 euro [source 1]."


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(answer=ANSWER) as server:
        yield server


@pytest.fixture
def chat(server: ModelServer) -> Iterator[OpenAICompatibleChat]:
    chat = OpenAICompatibleChat(url=server.url, model="m", timeout_seconds=5, max_tokens=77)
    yield chat
    chat.close()


def test_a_whole_answer(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    assert chat.complete(MESSAGES) == ChatText(text=ANSWER)
    assert server.chats == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "rules"}, {"role": "user", "content": "a question�"}],
            "temperature": 0,
            "max_tokens": 77,
            "stream": False,
        }
    ]


def test_a_stream_comes_in_pieces(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    pieces = [piece.text for piece in chat.stream(MESSAGES)]
    assert "".join(pieces) == ANSWER
    assert len(pieces) == -(-len(ANSWER) // server.piece_characters)
    assert server.chats[0]["stream"] is True


def test_an_answer_that_reached_its_greatest_length_says_so(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    server.script_chat(
        Scripted(body='{"choices": [{"message": {"content": "cut"}, "finish_reason": "length"}]}'),
        Scripted(body='data: {"choices": [{"delta": {"content": "cut"}, "finish_reason": "length"}]}\n\n'),
    )
    assert chat.complete(MESSAGES) == ChatText(text="cut", is_cut=True)
    assert list(chat.stream(MESSAGES)) == [ChatText(text="cut", is_cut=True)]


THOUGHTS = "<think>\nThe user wants 400 <b>?\n</think>\n\n"


@pytest.mark.parametrize("piece_characters", [1, 3, 5, 1_000])
def test_thoughts_are_no_part_of_the_answer(
    chat: OpenAICompatibleChat, server: ModelServer, piece_characters: int
) -> None:
    server.answer, server.piece_characters = THOUGHTS + ANSWER, piece_characters
    assert chat.complete(MESSAGES) == ChatText(text=ANSWER)
    assert "".join(piece.text for piece in chat.stream(MESSAGES)) == ANSWER


def test_an_answer_that_is_cut_while_it_is_thought_about_is_empty(
    chat: OpenAICompatibleChat, server: ModelServer
) -> None:
    server.script_chat(
        Scripted(body='{"choices": [{"message": {"content": "<think>Hm"}, "finish_reason": "length"}]}'),
        Scripted(body='data: {"choices": [{"delta": {"content": "<think>Hm"}, "finish_reason": "length"}]}\n\n'),
    )
    assert chat.complete(MESSAGES) == ChatText(text="", is_cut=True)
    assert list(chat.stream(MESSAGES)) == [ChatText(text="", is_cut=True)]


def test_what_was_held_back_is_given_out_when_the_stream_breaks_off(
    chat: OpenAICompatibleChat, server: ModelServer
) -> None:
    server.answer = "a < b and more"
    server.piece_characters = 3
    server.script_chat(Scripted(break_off_after=2))
    pieces: list[str] = []
    with pytest.raises(ModelUnavailableError, match="broke off"):
        pieces += (piece.text for piece in chat.stream(MESSAGES))
    assert pieces == ["a ", "<"]


@pytest.mark.parametrize("body", ["{not json", '{"choices": []}', '{"choices": [{"message": {"content": null}}]}', "7"])
def test_an_answer_without_sense_is_refused(chat: OpenAICompatibleChat, server: ModelServer, body: str) -> None:
    server.script_chat(Scripted(body=body))
    with pytest.raises(ModelRejectedError, match="does not answer as expected"):
        chat.complete(MESSAGES)


def test_a_stream_that_breaks_off_is_an_error_after_its_pieces(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    server.script_chat(Scripted(break_off_after=3))
    stream = chat.stream(MESSAGES)
    assert [next(stream).text, next(stream).text] == [ANSWER[:5], ANSWER[5:10]]
    with pytest.raises(ModelUnavailableError, match="broke off"):
        next(stream)


def test_an_error_inside_a_stream_is_raised(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    server.script_chat(Scripted(body='data: {"error": {"message": "overloaded"}}\n\n'))
    with pytest.raises(ModelUnavailableError, match="overloaded"):
        list(chat.stream(MESSAGES))


def test_a_stream_is_tried_once_more_before_its_first_piece(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    server.script_chat(Scripted(status=503, headers={"Retry-After": "0"}))
    assert "".join(piece.text for piece in chat.stream(MESSAGES)) == ANSWER
    assert len(server.chats) == 2


def test_closing_a_stream_closes_the_connection(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    server.hang_after = 2
    stream = chat.stream(MESSAGES)
    assert next(stream).text == ANSWER[:5]
    stream.close()  # type: ignore[attr-defined]
    assert server.client_gone.wait(10)


def test_a_stream_of_comments_alone_is_given_up(server: ModelServer) -> None:
    chat = OpenAICompatibleChat(url=server.url, model="m", timeout_seconds=0.5)
    server.hang_after = 2
    with pytest.raises(ModelUnavailableError, match="nothing came for"):
        list(chat.stream(MESSAGES))
    chat.close()


def test_a_shorter_limit_for_one_call(chat: OpenAICompatibleChat, server: ModelServer) -> None:
    server.script_chat(Scripted(wait_seconds=60))
    with pytest.raises(ModelUnavailableError, match="Timeout"):
        chat.complete(MESSAGES, timeout_seconds=0.2)


def test_settings_name_the_service() -> None:
    assert OpenAICompatibleChat.from_settings(clean_settings()) is None
    assert OpenAICompatibleChat.from_settings(clean_settings(chat_url="http://127.0.0.1:9")) is not None
