"""Answers with citations: retrieval, context, model, checks, record. Streaming shares all but the model call.

Without evidence no model is asked. Without a model, or when it fails before it has said anything, the answer is made of
the sources' own sentences and marked as such.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rag_pipeline.adapters.postgres.conversations import Conversations
from rag_pipeline.adapters.postgres.passages import Passages
from rag_pipeline.core.answers import AnswerKind, Citation, Turn
from rag_pipeline.core.context import ContextPassage, ContextSource, build_context, location_text
from rag_pipeline.core.filters import DocumentScope
from rag_pipeline.core.markers import AnswerFilter
from rag_pipeline.core.parsed_document import ParsedDocument
from rag_pipeline.core.passages import StoredImage
from rag_pipeline.core.ports import ChatMessage, ChatText, ObjectStore
from rag_pipeline.errors import ModelRejectedError, ModelUnavailableError, RagPipelineError, ResourceNotFoundError
from rag_pipeline.query.answers import Answer
from rag_pipeline.query.extractive import extractive_answer
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.prompts import answer_messages, no_evidence_answer
from rag_pipeline.query.results import Degradation, RetrievalResult, RetrievalRun, beginning_of
from rag_pipeline.query.retriever import Retriever
from rag_pipeline.query.verification import with_quotes

ANSWER_OPTIONS = RetrievalOptions(top_k=6, expand=True, expanded_characters=1_900)
"""Six passages of this length, with their headers, fill the context."""


class AnswerStream(Iterator[str]):
    """The text of an answer piece by piece; afterwards, `answer` is the whole of it. Close it to stop early."""

    def __init__(self, pieces: "_Pieces") -> None:
        self._pieces = pieces
        self._iterator = pieces.run()

    @property
    def answer(self) -> Answer:
        """The answer as `ask` would have given it. Raises `RuntimeError` before the last piece."""
        if self._pieces.answer is None:
            raise RuntimeError("the answer is not complete yet: read the stream to its end first")
        return self._pieces.answer

    def __next__(self) -> str:
        return next(self._iterator)

    def close(self) -> None:
        """Stop: the connection to the model is closed, and nothing is recorded."""
        self._iterator.close()

    def __enter__(self) -> "AnswerStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Answering:
    """Asks and streams over one retriever."""

    def __init__(self, *, retriever: Retriever, objects: ObjectStore, conversations: Conversations) -> None:
        self._retriever = retriever
        self._objects = objects
        self._conversations = conversations

    def ask(
        self, kb: str, question: str, *, options: RetrievalOptions | None = None, conversation_id: str | None = None
    ) -> Answer:
        """Answer a question from a knowledge base.

        Args:
            kb: its name.
            question: in any language; the answer is in the same.
            options: how to search; None: `ANSWER_OPTIONS`, with rewriting in a conversation that has turns.
            conversation_id: the turns so far are taken into account, and this one is recorded with its evidence.

        Raises:
            ResourceNotFoundError: no such knowledge base, or no such conversation about it.
            RagPipelineError: as `Retriever.retrieve`.
        """
        stream = AnswerStream(self._prepared(kb, question, options, conversation_id, is_streaming=False))
        for _ in stream:
            pass
        return stream.answer

    def stream(
        self, kb: str, question: str, *, options: RetrievalOptions | None = None, conversation_id: str | None = None
    ) -> AnswerStream:
        """As `ask`, with the text as it comes; retrieval is done when this returns."""
        return AnswerStream(self._prepared(kb, question, options, conversation_id, is_streaming=True))

    def _prepared(
        self,
        kb: str,
        question: str,
        options: RetrievalOptions | None,
        conversation_id: str | None,
        *,
        is_streaming: bool,
    ) -> "_Pieces":
        """Everything before the model call."""
        earlier = self._earlier_turns(kb, conversation_id, options)
        chosen = options or replace(ANSWER_OPTIONS, rewrite=bool(earlier) and self._retriever.engine.chat is not None)
        run = self._retriever.retrieve(
            kb, question, options=chosen, earlier_questions=[turn.question for turn in earlier]
        )
        visible = self._visible(run, chosen.scope)
        degradations: list[Degradation] = []
        images = _images_of(run.results, visible, degradations)
        context = build_context([_context_passage(result, images[result.chunk_id]) for result in run.results])
        return _Pieces(
            question=run.trace.query,
            retrieval=run,
            retriever=self._retriever,
            objects=self._objects,
            conversations=self._conversations,
            conversation_id=conversation_id,
            visible=visible,
            context_text=context.text,
            citations=tuple(
                _citation(result, source, images[result.chunk_id])
                for result, source in zip(run.results, context.sources, strict=False)
            ),
            messages=answer_messages(run.trace.query, context, earlier),
            is_streaming=is_streaming,
            degradations=degradations,
        )

    def _earlier_turns(self, kb: str, conversation_id: str | None, options: RetrievalOptions | None) -> list[Turn]:
        if conversation_id is None:
            return []
        conversation = self._conversations.get(conversation_id)
        if conversation.kb_id != self._retriever.facts.knowledge_bases.active(kb).id:
            raise ResourceNotFoundError(f"there is no conversation {conversation_id!r} about {kb!r}")
        principals = None if options is None else options.principals
        return self._conversations.turns(conversation_id, principals=principals)

    def _visible(self, run: RetrievalRun, scope: DocumentScope) -> Passages | None:
        return self._retriever.passages(run.results[0].kb_id, scope) if run.results else None


@dataclass(kw_only=True)
class _Pieces:
    """One answer on its way: what the model gets, what came of it."""

    question: str
    retrieval: RetrievalRun
    retriever: Retriever
    objects: ObjectStore
    conversations: Conversations
    conversation_id: str | None
    visible: Passages | None
    context_text: str
    citations: tuple[Citation, ...]
    messages: Sequence[ChatMessage]
    is_streaming: bool
    degradations: list[Degradation]
    notes: list[str] = field(default_factory=list)
    answer: Answer | None = None

    def run_model(self) -> Iterator[ChatText]:
        """The model's answer, whole or in pieces; nothing without a model."""
        chat = self.retriever.engine.chat
        if chat is None:
            return
        if self.is_streaming:
            yield from chat.stream(self.messages)
        else:
            yield chat.complete(self.messages)

    def run(self) -> Generator[str, None, None]:
        """The text as it becomes certain; the answer is complete when this ends."""
        if not self.citations:
            text = no_evidence_answer(self.question)
            yield text
            self._finish(text, "no_evidence", ())
            return
        marks = AnswerFilter(
            numbers=[citation.number for citation in self.citations],
            image_ids=[image.id for citation in self.citations for image in citation.images],
            context=self.context_text,
        )
        said: list[str] = []
        for piece in self._generated(marks):
            said.append(piece)
            yield piece
        if "".join(said).strip():
            self._finish("".join(said), "generated", marks.cited)
            return
        text = extractive_answer(self.question, self.citations, self.retriever.embedder())
        marks.feed(text)
        marks.finish()
        yield text
        self._finish(text, "extractive", marks.cited)

    def _generated(self, marks: AnswerFilter) -> Iterator[str]:
        """The model's text with its marks checked. A failure is noted; what was said before it stays."""
        try:
            for piece in self.run_model():
                if piece.is_cut:
                    self.notes.append("the answer was cut at its greatest length (RAG_CHAT_MAX_TOKENS)")
                yield marks.feed(piece.text)
        except (ModelUnavailableError, ModelRejectedError) as error:
            self.degradations.append(Degradation(step="answer", code=error.code, message=str(error)))
            self.notes.append("the chat model failed: " + error.code)
        yield marks.finish()
        self.notes += [f"taken out of the answer: {mark}" for mark in marks.dropped]

    def _finish(self, text: str, kind: AnswerKind, cited: Mapping[int, None] | Sequence[int]) -> None:
        """Check the quotations, put the answer together, record it."""
        citations = tuple(replace(citation, is_cited=citation.number in cited) for citation in self.citations)
        if kind == "generated":
            citations, doubts = with_quotes(text, citations, self._load_document)
            self.notes += doubts
            if not cited:
                self.notes.append("the answer cites no source")
        self._record(text, kind, citations)
        trace = replace(self.retrieval.trace, degradations=(*self.retrieval.trace.degradations, *self.degradations))
        self.answer = Answer(
            text=text,
            kind=kind,
            citations=citations,
            results=self.retrieval.results,
            trace=trace,
            notes=tuple(self.notes),
            conversation_id=self.conversation_id,
        )

    def _record(self, text: str, kind: AnswerKind, citations: Sequence[Citation]) -> None:
        """Keep the turn. An answer that could not be recorded is still an answer."""
        if self.conversation_id is None:
            return
        try:
            self.conversations.add(
                self.conversation_id,
                question=self.question,
                answer=text,
                kind=kind,
                citations=citations,
                notes=self.notes,
            )
        except RagPipelineError as error:
            self.degradations.append(Degradation(step="conversation", code=error.code, message=str(error)))
            self.notes.append("the answer could not be recorded: " + error.code)

    def _load_document(self, document_id: str, version: int) -> ParsedDocument | None:
        from rag_pipeline.parsing.serialization import document_from_bytes

        key = None if self.visible is None else self.visible.parsed_artefact(document_id, version)
        return None if key is None else document_from_bytes(self.objects.get(key))


def _images_of(
    results: Sequence[RetrievalResult], visible: Passages | None, degradations: list[Degradation]
) -> dict[str, tuple[StoredImage, ...]]:
    """The images beside each result, by chunk id: on its pages, or named by its locator."""
    stored: Mapping[str, Sequence[StoredImage]] = {}
    if visible is not None:
        try:
            stored = visible.images(sorted({result.document_id for result in results}))
        except RagPipelineError as error:
            degradations.append(Degradation(step="images", code=error.code, message=str(error)))
    return {
        result.chunk_id: tuple(image for image in stored.get(result.document_id, ()) if is_beside(image, result))
        for result in results
    }


def is_beside(image: StoredImage, result: RetrievalResult) -> bool:
    """Whether an image of the result's document stands on its pages, or is the one that its locator names."""
    if result.metadata.get("image") == str(image.position):
        return True
    return (
        image.page is not None
        and result.page is not None
        and result.page <= image.page <= (result.page_end or result.page)
    )


def _context_passage(result: RetrievalResult, images: tuple[StoredImage, ...]) -> ContextPassage:
    return ContextPassage(document=result.source_path, location=_location(result), content=result.text, images=images)


def _citation(whole: RetrievalResult, source: ContextSource, images: Sequence[StoredImage]) -> Citation:
    result = beginning_of(whole, source.characters)  # what the context had no room for is not cited
    return Citation(
        number=source.number,
        kb_id=result.kb_id,
        document_id=result.document_id,
        version=result.version,
        file_name=result.file_name,
        source_path=result.source_path,
        chunk_id=result.chunk_id,
        page=result.page,
        page_end=result.page_end,
        heading_path=result.heading_path,
        location=_location(result),
        text=result.text,
        start=result.start,
        end=result.end,
        is_cited=False,
        images=tuple(image for image in images if image.id in source.image_ids and is_beside(image, result)),
    )


def _location(result: RetrievalResult) -> str:
    return location_text(
        page=result.page, page_end=result.page_end, heading_path=result.heading_path, metadata=result.metadata
    )
