"""An answer without a chat model: the sentences of the sources that come nearest to the question, word for word."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_pipeline.core.analysis import words
from rag_pipeline.core.answers import Citation
from rag_pipeline.core.fusion import reciprocal_rank_fusion
from rag_pipeline.core.graphemes import floor_boundary
from rag_pipeline.core.markers import AnswerFilter
from rag_pipeline.core.parsed_document import is_blank
from rag_pipeline.core.ports import Embedder
from rag_pipeline.core.sentences import sentence_spans
from rag_pipeline.core.tables import table_lines
from rag_pipeline.errors import EmbeddingRejectedError, EmbeddingUnavailableError

SENTENCES = 3
"""In an answer."""
COMPARED = 32
"""Sentences that are embedded; those with words of the question first."""
SENTENCE_CHARACTERS = 500
"""Longer ones are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    key: str
    place: int
    """Over all sources, in their order."""
    number: int
    """Of its source."""
    text: str
    header: str = ""
    """Header lines of the table that it is a row of."""


def extractive_answer(question: str, citations: Sequence[Citation], embedder: Embedder) -> str:
    """The best `SENTENCES` sentences in the order of the sources, each with its citation mark.

    Sentences are ranked by the question's words, by the cosine to the question, and by their source, and the ranks are
    fused. Without the embedder, the words decide.
    """
    sentences = [sentence for citation in citations for sentence in _sentences(citation)]
    sentences = [_renumbered(sentence, place) for place, sentence in enumerate(sentences)]
    by_words = _by_words(question, sentences)
    compared = list(dict.fromkeys([*by_words, *sentences]))[:COMPARED]
    rankings = {
        "words": [sentence.key for sentence in by_words[:COMPARED]],
        "vectors": [sentence.key for sentence in _by_vectors(question, compared, embedder)],
        "sources": [sentence.key for sentence in compared if sentence.number <= SENTENCES],
    }
    best = [entry.id for entry in reciprocal_rank_fusion(rankings)[:SENTENCES]]
    chosen = sorted((sentence for sentence in compared if sentence.key in best), key=lambda each: each.place)
    return "\n\n".join(_written(sentence) for sentence in chosen)


def _sentences(citation: Citation) -> Iterator[_Sentence]:
    text = citation.text
    lines = table_lines(text, 0, len(text) if text.lstrip().startswith("|") else 0, rows=())
    header = "\n".join(text[slice(*span)] for span in lines.spans[: lines.header])
    spans = lines.spans[lines.header :] if lines.header else sentence_spans(text, 0, len(text))
    headings = {heading.casefold() for heading in citation.heading_path}
    for start, end in spans:
        # A heading holds the question's words and not its answer.
        if not is_blank(text[start:end]) and text[start:end].strip("# ").casefold() not in headings:
            yield _Sentence(key="", place=0, number=citation.number, text=text[start:end], header=header)


def _renumbered(sentence: _Sentence, place: int) -> _Sentence:
    return _Sentence(
        key=f"{place:06d}", place=place, number=sentence.number, text=sentence.text, header=sentence.header
    )


def _by_words(question: str, sentences: Sequence[_Sentence]) -> list[_Sentence]:
    """Sentences with words of the question, best first: rare words count more, long sentences less."""
    asked = set(words(question))
    found = [Counter(words(sentence.text)) for sentence in sentences]
    holding = Counter(word for counts in found for word in counts.keys() & asked)
    weight = {word: math.log(1 + len(sentences) / count) for word, count in holding.items()}
    scores = {
        sentence: sum(weight[word] for word in counts.keys() & asked) / math.log(8 + counts.total())
        for sentence, counts in zip(sentences, found, strict=True)
    }
    return sorted((each for each in sentences if scores[each] > 0), key=lambda each: (-scores[each], each.place))


def _by_vectors(question: str, sentences: Sequence[_Sentence], embedder: Embedder) -> list[_Sentence]:
    try:
        query = embedder.embed_queries([question])[0]
        vectors = embedder.embed_passages([sentence.text[:SENTENCE_CHARACTERS] for sentence in sentences])
    except (EmbeddingUnavailableError, EmbeddingRejectedError):
        return []
    cosines = vectors @ query
    return [sentences[place] for place in sorted(range(len(sentences)), key=lambda place: -float(cosines[place]))]


def _written(sentence: _Sentence) -> str:
    """The sentence with its mark. Marks, images and links of its own are the document's, not ours."""
    text = sentence.text
    if len(text) > SENTENCE_CHARACTERS:
        text = text[: floor_boundary(text, SENTENCE_CHARACTERS)].rstrip() + " …"
    text = f"{sentence.header}\n{text}\n" if sentence.header else f"{text} "
    marks = AnswerFilter(numbers=(), image_ids=(), context="")
    return f"{marks.feed(text)}{marks.finish()}[source {sentence.number}](citation://{sentence.number})"
