"""Citations of a passage that the context had no room for to its end."""

from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.core.documents import Document
from rag_pipeline.parsing.serialization import document_from_bytes
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.settings import Settings
from rag_pipeline_tests.parsing.pdf.pdf_files import Page, lines, pdf
from rag_pipeline_tests.stages.runner import KB, Runner, running

LINES = 34
PAGES = 2
COLORS = ("red", "blue", "grey", "white")


def manual(name: str) -> bytes:
    """Two full pages of text, about 3,500 characters: four of them are too much for the context."""
    return pdf(
        *(
            Page(
                content=lines(
                    72,
                    720,
                    [f"The {name} pump, page {page}, line {line}: its valve is tight." for line in range(LINES)],
                )
            )
            for page in range(1, PAGES + 1)
        )
    )


def parsed_text(runner: Runner, facts: Facts, document: Document) -> str:
    (item,) = facts.claims.items(partition_keys=[document.partition_key])
    artefacts = facts.claims.artefacts([item.document_id])[item.document_id, 1]
    return document_from_bytes(runner.services.artefacts.get(str(list(artefacts.values())[1].artefact_key))).text


def test_a_cut_passage_is_cited_as_far_as_the_model_saw_it(settings: Settings) -> None:
    with running(settings) as runner:
        client = runner.system.client
        documents = [client.submit(KB, manual(name), filename=f"{name}.pdf") for name in COLORS]
        assert runner.run(*documents).ready == len(documents)
        options = RetrievalOptions(top_k=len(COLORS), mode="bm25", expand=True, expanded_characters=10_000)
        answer = client.ask(KB, " ".join((*COLORS, "pump")), options=options)
        *_, whole, cut = answer.citations
        *_, before, result = answer.results
        assert (whole.text, whole.end, whole.page_end) == (before.text, before.end, PAGES)
        assert (result.page_end, 0 < len(cut.text) < len(result.text)) == (PAGES, True)
        assert (cut.start, cut.page, cut.page_end, cut.location) == (result.start, 1, 1, "page 1")
        found = next(each for each in documents if each.id == cut.document_id)
        seen = parsed_text(runner, runner.services.facts, found)[cut.start : cut.end]
        assert seen[-200:] == cut.text[-200:]
