"""What is out of date after a change of code or configuration, and what bringing it up to date costs. Pure values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rag_pipeline.core.documents import Stage, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleDocument:
    """A settled document of which some stages would come out differently now."""

    document_id: str
    kb_name: str
    source_path: str
    version: int
    stages: tuple[Stage, ...]
    """In order; the first is where a re-index begins."""
    tokens: int
    """Of its chunks when they were last cut."""
    milliseconds: int
    """What the stale stages took last time, together."""

    @property
    def first_stage(self) -> Stage:
        """Where a re-index begins."""
        return self.stages[0]

    @property
    def tokens_to_embed(self) -> int:
        """Upper bound: texts that come out the same are not paid for again."""
        return self.tokens if Stage.EMBEDDINGS in self.stages else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """What moving the knowledge to the embedder and the analyzer of the RAG_NEXT_ settings still takes."""

    embedder: str
    """Key of the next embedder."""
    analyzer: str
    is_started: bool
    refusal: str | None
    """Why the switch was refused."""
    documents: int
    """Live versions that are not in the next collection yet."""
    tokens_to_embed: int
    """Upper bound: texts that this embedder has seen before are not paid for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexPlan:
    """What `reindex` of everything stale would do, before anything runs."""

    examined: int
    """Settled documents looked at."""
    documents: tuple[StaleDocument, ...]
    price_per_million_tokens: float
    """Of the embedding service, in whatever currency the setting is."""
    next_generation: GenerationPlan | None = None
    """None when no RAG_NEXT_ setting is set, or the knowledge is there already. Not part of the figures below."""

    @property
    def documents_by_stage(self) -> Mapping[Stage, int]:
        """How many documents each stage would be done for; stages that are fresh everywhere are left out."""
        counts = {stage: sum(stage in each.stages for each in self.documents) for stage in Stage}
        return {stage: count for stage, count in counts.items() if count}

    @property
    def tokens_to_embed(self) -> int:
        """Upper bound of what the embedder would be sent."""
        return sum(each.tokens_to_embed for each in self.documents)

    @property
    def cost(self) -> float:
        """Upper bound, in the currency of the price."""
        return self.tokens_to_embed / 1e6 * self.price_per_million_tokens

    @property
    def seconds(self) -> float:
        """As long as the stale stages took last time, one document after the other."""
        return sum(each.milliseconds for each in self.documents) / 1000


def stages_of(status: Status) -> tuple[Stage, ...]:
    """The stages that a settled document has gone through: one without content ends early."""
    return tuple(Stage) if status is Status.READY else (Stage.SOURCE_DOCUMENT, Stage.PARSED_BLOCKS)


def stale_stages(have: Mapping[Stage, str], wanted: Mapping[Stage, str], stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Those of the stages whose fingerprint is missing or another one than wanted, in order."""
    return tuple(stage for stage in stages if have.get(stage) != wanted[stage])
