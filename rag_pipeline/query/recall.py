"""Recall: the channels of one query, side by side, each over all variants of the query.

A channel that fails is left out; what it found before it failed stays.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

from rag_pipeline.core.ports import CollectionGeneration, Embedder, SearchScope, VectorHit, VectorIndex, Vectors
from rag_pipeline.errors import RagPipelineError
from rag_pipeline.query.results import ChannelTrace, Degradation, rounded

REWRITTEN = ":rewritten"
"""Behind the name of a channel: its ranking for the rewritten query."""


class Recall:
    """The channels of one query."""

    def __init__(
        self,
        variants: Sequence[str],
        channels: Sequence[str],
        *,
        scope: SearchScope,
        index: VectorIndex,
        generation: CollectionGeneration,
        embedder: Embedder,
        threads: Executor,
    ) -> None:
        """Ask nobody yet.

        Args:
            variants: the query, and its rewritten form if there is one.
            channels: `dense`, `bm25` or both.
            scope: what may be found; see `restrict`.
            index: vectors and BM25.
            generation: the collection that answers; `embedder` is the one it was filled by.
            embedder: for the dense channel.
            threads: for all channels but one, which is asked in the caller's thread.
        """
        self._variants = variants
        self._channels = channels
        self._scope = scope
        self._index = index
        self._generation = generation
        self._embedder = embedder
        self._vectors: Vectors | None = None
        self._milliseconds = dict.fromkeys(channels, 0.0)
        self._found: dict[str, list[str]] = {}
        self.words: dict[str, tuple[str, ...]] = {}
        """What BM25 counts of the chunks found, by id, as far as the index tells."""
        self._errors: dict[str, RagPipelineError] = {}
        self._threads = threads

    def restrict(self, scope: SearchScope) -> None:
        """Search another scope from now on."""
        self._scope = scope

    def search(self, limit: int) -> dict[str, list[str]]:
        """Chunk ids by ranking (channel and variant), best first, at most `limit` each.

        Raises:
            RagPipelineError: no channel has ever found anything; the error is that of the first.
        """
        working = [channel for channel in self._channels if channel not in self._errors]
        futures = [self._threads.submit(self._ask, channel, limit) for channel in working[1:]]
        # Cancellation comes through here at once; whoever cancels is not kept waiting for the other channel.
        for channel in working[:1]:
            self._ask(channel, limit)
        for future in futures:
            future.result()
        if not self._found:
            raise self._errors[self._channels[0]]
        return {name: self._found[name] for name in self._rankings() if name in self._found}

    def is_exhausted(self, limit: int) -> bool:
        """Whether the last search, for `limit` hits per ranking, found all there is."""
        return all(
            len(found) < limit for name, found in self._found.items() if name.partition(":")[0] not in self._errors
        )

    def traces(self) -> Iterator[ChannelTrace]:
        """One per channel."""
        for channel in self._channels:
            error = self._errors.get(channel)
            yield ChannelTrace(
                name=channel,
                milliseconds=rounded(self._milliseconds[channel]),
                hits=len({hit for name, found in self._found.items() if name.startswith(channel) for hit in found}),
                error=None if error is None else f"{error.code}: {error}",
            )

    def degradations(self) -> Iterator[Degradation]:
        """The channels that failed."""
        for channel in self._channels:
            if channel in self._errors:
                error = self._errors[channel]
                yield Degradation(step=channel, code=error.code, message=str(error))

    def _rankings(self) -> Iterator[str]:
        for place in range(len(self._variants)):
            for channel in self._channels:
                yield ranking_name(channel, place)

    def _ask(self, channel: str, limit: int) -> None:
        began = time.perf_counter()
        try:
            for place in range(len(self._variants)):
                hits = self._dense(place, limit) if channel == "dense" else self._bm25(place, limit)
                self._found[ranking_name(channel, place)] = [hit.chunk_id for hit in hits]
                self.words.update({hit.chunk_id: hit.words for hit in hits if hit.words is not None})
        except RagPipelineError as error:
            self._errors[channel] = error
        self._milliseconds[channel] += (time.perf_counter() - began) * 1000.0

    def _dense(self, place: int, limit: int) -> list[VectorHit]:
        if self._vectors is None:
            self._vectors = self._embedder.embed_queries(self._variants)
        return self._index.search_dense(self._generation, self._vectors[place], scope=self._scope, limit=limit)

    def _bm25(self, place: int, limit: int) -> list[VectorHit]:
        return self._index.search_text(self._generation, self._variants[place], scope=self._scope, limit=limit)


def ranking_name(channel: str, place: int) -> str:
    """Of a channel's hits for the variant at that place; the first is the query itself."""
    return channel + REWRITTEN * (place > 0)
