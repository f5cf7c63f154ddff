import pytest

from rag_pipeline.adapters.embedders.openai import OpenAICompatibleEmbedder
from rag_pipeline.core.answers import Citation
from rag_pipeline.query.extractive import SENTENCE_CHARACTERS, SENTENCES, extractive_answer
from rag_pipeline_tests.embedding_server import Answer, EmbeddingServer


def citation(number: int, text: str, *, heading_path: tuple[str, ...] = ()) -> Citation:
    return Citation(
        number=number,
        kb_id="kb",
        document_id="a",
        version=1,
        file_name="a.md",
        source_path="a.md",
        chunk_id=f"a_1_{number}",
        page=None,
        page_end=None,
        heading_path=heading_path,
        location="",
        text=text,
        start=0,
        end=len(text),
        is_cited=False,
    )


def answer(question: str, *citations: Citation, is_embedder_down: bool = True) -> list[str]:
    """Paragraphs of the answer; without the embedder the words alone decide."""
    with EmbeddingServer(dimensions=16) as server:
        if is_embedder_down:
            server.script(*[Answer(status=401)] * 20)
        embedder = OpenAICompatibleEmbedder(url=server.url, model="m", dimensions=16)
        text = extractive_answer(question, citations, embedder)
        embedder.close()
    return text.split("\n\n")


FILLER = "The office opens at nine. Coffee is free. Bikes stand in the yard. Visitors sign the book. "


def test_the_sentence_with_the_rare_words_of_the_question_comes_with_its_source() -> None:
    found = answer("How long is the warranty?", citation(1, FILLER), citation(2, FILLER + "The warranty is two years."))
    assert found == ["The warranty is two years. [source 2](citation://2)"]


def test_sentences_stand_in_the_order_of_their_sources() -> None:
    texts = ["The pump weighs nine kilos.", "A pump costs 400 euro.", "Pump oil is changed yearly."]
    found = answer("pump", *(citation(number, text) for number, text in enumerate(texts, 1)))
    assert found == [f"{text} [source {number}](citation://{number})" for number, text in enumerate(texts, 1)]


def test_a_row_of_a_table_comes_with_the_header() -> None:
    table = "| part | euro |\n| --- | --- |\n| pump | 1200 |\n| blade | 35 |\n| hose | 20 |\n| valve | 70 |"
    found = answer("price of the blade", citation(1, table))
    assert "| part | euro |\n| --- | --- |\n| blade | 35 |\n[source 1](citation://1)" in found


def test_a_heading_is_no_answer() -> None:
    text = "Who approves a trip\n\nThe department head approves trips."
    found = answer("Who approves a trip?", citation(1, text, heading_path=("Travel", "Who approves a trip")))
    assert found == ["The department head approves trips. [source 1](citation://1)"]


def test_long_sentences_are_cut() -> None:
    (found,) = answer("word", citation(1, "word " * 1_000))
    assert len(found) < SENTENCE_CHARACTERS + 40
    assert "… [source 1]" in found


@pytest.mark.parametrize("is_embedder_down", [False, True])
def test_a_question_without_common_words_still_gets_sentences(is_embedder_down: bool) -> None:
    found = answer("押金是多少？", citation(1, FILLER), is_embedder_down=is_embedder_down)
    assert 1 <= len(found) <= SENTENCES
    assert all(paragraph.endswith("[source 1](citation://1)") for paragraph in found)
