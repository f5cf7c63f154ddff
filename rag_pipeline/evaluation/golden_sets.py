"""Golden sets: attaching a test set to a knowledge base, and asking its questions of what answers queries there.

Nothing is ingested: the documents are those of the knowledge base, found by the names that the set judges. One that is
not there counts as not found, and is named.
"""

from dataclasses import dataclass, replace

import regex

from rag_pipeline.adapters.postgres.passages import Passages
from rag_pipeline.core.golden import (
    LEGS,
    Fall,
    Figures,
    GoldenQuestion,
    GoldenResult,
    GoldenSet,
    Leg,
    document_of,
    falls,
    is_as_good,
)
from rag_pipeline.core.ports import Embedder
from rag_pipeline.errors import ConfigurationError, VectorStoreUnavailableError
from rag_pipeline.evaluation.dataset import Dataset, texts
from rag_pipeline.evaluation.known_queries import KnownQueries
from rag_pipeline.evaluation.measures import hit_at, judged_units, mean, ranking_measures, visible_text
from rag_pipeline.query.options import RetrievalOptions
from rag_pipeline.query.results import RetrievalResult
from rag_pipeline.query.retrieval import SearchEngine, retrieve
from rag_pipeline.stages.generation import SearchableGeneration
from rag_pipeline.stages.services import Services

MOST_QUESTIONS = 2_000
"""Of one set: three searches of about 30 ms each make three minutes."""
WIDTH = 100
"""Candidates and results, as `evaluate` asks for, so that the figures can be compared: ten passages may be of one
document."""
LATE_DOCUMENTS = 10_000
"""Looked at, at most, of those that came while the next collection was asked."""
NAMES_SHOWN = 5

_PAGE = regex.compile(r".+#p\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the answers to a set stand."""

    golden: GoldenSet
    newest: GoldenResult | None
    """None before the first."""
    accepted: GoldenResult | None
    """What the newest is compared with; it may be the same."""
    fallen: tuple[Fall, ...]
    """What is lower by more than the setting allows."""


def attach(services: Services, kb: str, dataset: Dataset) -> GoldenSet:
    """Attach a test set to a knowledge base, in the place of one that is attached.

    Raises:
        ResourceNotFoundError: no such knowledge base.
        KnowledgeBaseInactiveError: it is being deleted.
        ConfigurationError: it has too many questions, or judges pages and whole documents.
    """
    if len(dataset.queries) > MOST_QUESTIONS:
        raise ConfigurationError(
            f"{dataset.name} has {len(dataset.queries)} questions; attach at most {MOST_QUESTIONS}, "
            f"e.g. with --queries {MOST_QUESTIONS}"
        )
    answers = _answers(dataset)
    questions = [
        GoldenQuestion(id=each, text=text, relevant=dataset.relevant[each], answer=answers.get(each))
        for each, text in dataset.queries.items()
    ]
    units = [unit for question in questions for unit in question.relevant]
    pages = [unit for unit in units if _PAGE.fullmatch(unit)]
    if pages and len(pages) < len(units):
        document = next(unit for unit in units if unit not in pages)
        raise ConfigurationError(
            f"{dataset.name} judges pages ({pages[0]!r}) and whole documents ({document!r}): make two sets of it"
        )
    return services.facts.golden_sets.attach(kb, name=dataset.name, has_pages=bool(pages), questions=questions)


def missing_documents(services: Services, golden: GoldenSet) -> tuple[str, ...]:
    """Names of documents with answers that are not in the knowledge base, or not READY yet."""
    names = sorted(golden.documents)
    there = services.facts.golden_sets.document_ids(golden.kb_id, names)
    return tuple(name for name in names if name not in there)


def measure(services: Services, golden: GoldenSet) -> Standing:
    """Ask a set of the knowledge base it is attached to, and keep the result.

    The first result of a set is accepted, and each later one that is not lower anywhere; what is lower waits for
    somebody to accept it.

    Raises:
        ConfigurationError: nothing is indexed, or the settings do not name what filled the collection that answers.
        TemporaryError: a store or the embedder is down.
    """
    serving = services.serving()
    live = serving.check_generation()
    if live is None:
        raise ConfigurationError("nothing has been indexed yet: there is nothing to ask")
    figures, missing = ask(golden, SearchableGeneration(services=serving, generation=live))
    kept = services.facts.golden_sets
    before = kept.accepted(golden)
    kept.add_result(
        golden,
        figures=figures,
        missing=missing,
        collection=live.collection,
        embedder=serving.embedder.identity.key,
        is_accepted=before is None or is_as_good(before.figures, figures),
    )
    return standing(services, golden)


def standing(services: Services, golden: GoldenSet) -> Standing:
    """How the newest result of a set compares with the one that is accepted."""
    kept = services.facts.golden_sets
    newest, accepted = kept.newest(golden), kept.accepted(golden)
    fallen: tuple[Fall, ...] = ()
    if newest is not None and accepted is not None:
        fallen = falls(accepted.figures, newest.figures, most=services.settings.golden_max_drop)
    return Standing(golden=golden, newest=newest, accepted=accepted, fallen=fallen)


def refusal(old: SearchableGeneration, new: SearchableGeneration) -> str | None:
    """Why queries must not go over to another collection: with it a set would be answered worse; None if none is.

    The hybrid search decides, because that is what queries get. Both collections are asked now, so that what has come
    to the knowledge base or gone from it since an earlier result makes no difference.
    """
    facts, most = old.services.facts, old.services.settings.golden_max_drop
    reasons = []
    for golden in facts.golden_sets.all():
        fallen = _fallen(golden, old, new, most)
        if fallen:
            # What has been published since the collection was filled is not in it yet, and is no fault of its own.
            complete = _without_late_documents(golden, new)
            if complete.questions != golden.questions:
                fallen = _fallen(complete, old, new, most) if complete.questions else ()
        if fallen:
            reasons.append(f"{golden.name} on {golden.kb_name}: {', '.join(map(str, fallen))}")
    if not reasons:
        return None
    return f"answers would get worse by more than RAG_GOLDEN_MAX_DROP={most:g}: {'; '.join(reasons)}"


def _fallen(golden: GoldenSet, old: SearchableGeneration, new: SearchableGeneration, most: float) -> tuple[Fall, ...]:
    before, _ = ask(golden, old, legs=("hybrid",))
    now, _ = ask(golden, new, legs=("hybrid",))
    return falls(before, now, most=most)


def _without_late_documents(golden: GoldenSet, new: SearchableGeneration) -> GoldenSet:
    """The questions whose documents are all in the next collection."""
    facts = new.services.facts
    waiting, _ = facts.next_generations.waiting(new.generation.collection, after=None, limit=LATE_DOCUMENTS)
    late = {item.document_id for item in waiting}
    ids = facts.golden_sets.document_ids(golden.kb_id, sorted(golden.documents))

    def is_there(question: GoldenQuestion) -> bool:
        names = {document_of(unit, has_pages=golden.has_pages) for unit in question.relevant}
        return late.isdisjoint(each for name in names for each in ids.get(name, ()))

    return replace(golden, questions=tuple(filter(is_there, golden.questions)))


def ask(
    golden: GoldenSet, where: SearchableGeneration, *, legs: tuple[Leg, ...] = LEGS
) -> tuple[Figures, tuple[str, ...]]:
    """Ask a set of one collection.

    Returns:
        Means of nDCG@10, recall@10, hit@1, and answer_hit@1 and @10 where answers are known, by leg; and the documents
        that the knowledge base does not have.

    Raises:
        TemporaryError: a store or the embedder is down; what one leg alone finds is no figure of both.
    """
    names = sorted(golden.documents)
    ids = where.services.facts.golden_sets.document_ids(golden.kb_id, names)
    embedder: Embedder = where.services.embedder
    if legs != ("bm25",):
        embedder = KnownQueries(embedder, [question.text for question in golden.questions])
    asking = _Asking(golden, where, ids, SearchEngine(index=where.services.vectors, embedder=embedder))
    try:
        figures: Figures = {leg: asking.figures(leg) for leg in legs}
    finally:
        asking.engine.threads.shutdown()
    return figures, tuple(name for name in names if name not in ids)


class _Asking:
    """One set and one collection."""

    def __init__(
        self,
        golden: GoldenSet,
        where: SearchableGeneration,
        ids: dict[str, tuple[str, ...]],
        engine: SearchEngine,
    ) -> None:
        self.engine = engine
        self._golden = golden
        self._where = where
        self._relevant = {question.id: _units(question, ids, golden.has_pages) for question in golden.questions}

    def figures(self, leg: Leg) -> dict[str, float]:
        """Means over the questions."""
        rankings: dict[str, list[str]] = {}
        answered: list[list[bool]] = []
        for question in self._golden.questions:
            results = self._results(question, leg)
            relevant = self._relevant[question.id]
            units = [judged_units(each.document_id, each, has_pages=self._golden.has_pages) for each in results]
            rankings[question.id] = list(dict.fromkeys(unit for found in units for unit in found))
            if question.answer is not None:
                answer = visible_text(question.answer)
                answered.append(
                    [
                        not relevant.keys().isdisjoint(found) and answer in visible_text(result.text)
                        for found, result in zip(units[:10], results, strict=False)
                    ]
                )
        measures = ranking_measures(rankings, self._relevant)
        found = {name: mean(measures[name]) for name in ("ndcg@10", "recall@10", "hit@1")}
        if answered:
            found |= {f"answer_hit@{n}": mean([hit_at(flags, n) for flags in answered]) for n in (1, 10)}
        return {name: round(value, 4) for name, value in found.items()}

    def _results(self, question: GoldenQuestion, leg: Leg) -> tuple[RetrievalResult, ...]:
        options = RetrievalOptions(top_k=WIDTH, candidates=WIDTH, mode=leg, rerank=False)
        run = retrieve(
            question.text,
            kb_id=self._golden.kb_id,
            engine=self.engine,
            generation=self._where.generation,
            passages=Passages(self._where.services.facts.engine, kb_id=self._golden.kb_id, scope=options.scope),
            options=options,
        )
        for failed in run.trace.degradations:
            raise VectorStoreUnavailableError(f"{self._golden.name} was not asked to the end: {failed.message}")
        return run.results


def names_shown(names: tuple[str, ...]) -> str:
    """The first few of them, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _units(question: GoldenQuestion, ids: dict[str, tuple[str, ...]], has_pages: bool) -> dict[str, int]:
    """Grades by document id, or by document id and page; a missing document keeps its name, which nothing has."""
    units: dict[str, int] = {}
    for unit, grade in question.relevant.items():
        name = document_of(unit, has_pages=has_pages)
        page = f"#p{int(unit.rpartition('#p')[2]):04d}" if has_pages else ""
        units |= {f"{each}{page}": grade for each in ids.get(name, (name,))}
    return units


def _answers(dataset: Dataset) -> dict[str, str]:
    """Answers by question: as the file says them, else cut from the corpus."""
    known = {each: span.text for each, span in dataset.spans.items() if span.text}
    unknown = {each: span for each, span in dataset.spans.items() if not span.text}
    if unknown and (dataset.folder / "corpus.jsonl").is_file():
        corpus = texts(dataset, [span.document for span in unknown.values()])
        cut = {each: corpus.get(span.document, "")[span.start : span.end] for each, span in unknown.items()}
        known |= {each: text for each, text in cut.items() if text.strip()}
    return known
