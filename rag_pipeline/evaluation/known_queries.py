"""An embedder that has computed the vectors of all questions of a set beforehand, together."""

from collections.abc import Sequence

import numpy as np

from rag_pipeline.core.ports import Embedder, EmbedderIdentity, Vectors


class KnownQueries(Embedder):
    """Passes everything else on to the embedder, which is not closed with it."""

    def __init__(self, embedder: Embedder, queries: Sequence[str]) -> None:
        """Embed the queries. Raises as `embed_queries`."""
        self._embedder = embedder
        known = [" ".join(query.split()) for query in queries]
        self._vectors = dict(zip(known, embedder.embed_queries(known), strict=True))

    @property
    def identity(self) -> EmbedderIdentity:
        """That of the embedder."""
        return self._embedder.identity

    def passage_input(self, text: str) -> str:
        """By the embedder."""
        return self._embedder.passage_input(text)

    def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """By the embedder."""
        return self._embedder.embed_passages(texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Known vectors, or by the embedder."""
        if all(text in self._vectors for text in texts):
            return np.stack([self._vectors[text] for text in texts])
        return self._embedder.embed_queries(texts)
