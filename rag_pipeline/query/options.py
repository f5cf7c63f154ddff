"""How to search: the options of one query, checked when they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rag_pipeline.core.filters import DocumentScope, parse_filters
from rag_pipeline.core.partitions import has_control_characters
from rag_pipeline.errors import ConfigurationError

MOST_CANDIDATES = 100
"""Candidates that are reranked, and results, at most."""
EXPANDED_CHARACTERS = 4_000
"""Of one expanded passage: a third of the answer context, so that three sections fit."""

Mode = Literal["hybrid", "dense", "bm25"]
CHANNELS: Mapping[Mode, tuple[str, ...]] = {"hybrid": ("dense", "bm25"), "dense": ("dense",), "bm25": ("bm25",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalOptions:
    """How to search. Raises `ConfigurationError` for values out of range."""

    top_k: int = 5
    """Results wanted, 1 to `MOST_CANDIDATES`."""
    candidates: int = 30
    """Hits asked of each channel and passages that are reranked, 1 to `MOST_CANDIDATES`; at least `top_k` are."""
    mode: Mode = "hybrid"
    rewrite: bool = False
    """Search a rewritten form of the question as well, if there is a chat endpoint."""
    rerank: bool | None = None
    """None: if there is an endpoint. True without one is noted in the trace."""
    expand: bool = False
    """Give the section around each hit, not the hit alone; hits of one section become one result."""
    expanded_characters: int = EXPANDED_CHARACTERS
    """Longest expanded passage; a hit that is longer itself stays whole."""
    document_ids: tuple[str, ...] | None = None
    """None: all documents of the knowledge base; empty: nothing."""
    filters: Mapping[str, object] = field(default_factory=dict)
    """On the metadata of documents, see `parse_filters`."""
    principals: tuple[str, ...] | None = None
    """Who asks: only documents whose metadata `allowed_to` names one of them, or is not set. None: not checked."""

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= MOST_CANDIDATES:
            raise ConfigurationError(f"top_k={self.top_k}: 1 to {MOST_CANDIDATES}")
        if not 1 <= self.candidates <= MOST_CANDIDATES:
            raise ConfigurationError(f"candidates={self.candidates}: 1 to {MOST_CANDIDATES}")
        if self.mode not in CHANNELS:
            raise ConfigurationError(f"mode={self.mode!r}: one of {', '.join(CHANNELS)}")
        if self.expanded_characters < 1:
            raise ConfigurationError(f"expanded_characters={self.expanded_characters}: at least 1")
        for name in ("document_ids", "principals"):
            values = getattr(self, name)
            if isinstance(values, str):
                raise ConfigurationError(f"{name} is a list, not one text: put it into brackets")
            if values and has_control_characters("".join(values)):
                raise ConfigurationError(f"{name}: no name or id holds control characters")
        parse_filters(self.filters)

    @property
    def scope(self) -> DocumentScope:
        """Which documents may be used."""
        return DocumentScope(
            document_ids=None if self.document_ids is None else tuple(self.document_ids),
            conditions=parse_filters(self.filters),
            principals=None if self.principals is None else tuple(self.principals),
        )

    @property
    def width(self) -> int:
        """Candidates asked for."""
        return max(self.candidates, self.top_k)
