from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.adapters.artefacts import (
    ArtefactStore,
    EmbeddedInputs,
    chunks_from_parquet,
    chunks_to_parquet,
    vectors_from_parquet,
    vectors_to_parquet,
)
from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.core.chunk import Chunk, PageRegion
from rag_pipeline.core.parsed_document import BoundingBox
from rag_pipeline.errors import MissingArtefactError
from rag_pipeline.settings import Settings

texts = st.text(max_size=40)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
boxes = st.builds(BoundingBox, left=numbers, top=numbers, right=numbers, bottom=numbers)
pages = st.none() | st.integers(1, 3000)
chunk_lists = st.lists(
    st.builds(
        Chunk,
        index=st.integers(0, 2**31 - 1),
        text=texts,
        start=st.integers(0, 2**40),
        end=st.integers(0, 2**40),
        tokens=st.integers(0, 8192),
        heading_path=st.lists(texts, max_size=3).map(tuple),
        section=st.integers(0, 1000),
        page=pages,
        page_end=pages,
        regions=st.lists(st.builds(PageRegion, page=st.integers(1, 9), bbox=st.none() | boxes), max_size=2).map(tuple),
        block_types=st.lists(st.sampled_from(["paragraph", "table"]), max_size=2).map(tuple),
        metadata=st.dictionaries(texts, texts, max_size=2),
    ),
    max_size=4,
)


@given(chunk_lists)
def test_chunks_come_back_as_they_were(chunks: list[Chunk]) -> None:
    assert chunks_from_parquet(chunks_to_parquet(chunks)) == chunks


@pytest.mark.parametrize(("count", "dimensions"), [(0, 384), (1, 1), (3, 384)])
def test_vectors_come_back_as_they_were(count: int, dimensions: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)
    hashes = tuple(f"h{number}" for number in range(count))
    found = vectors_from_parquet(vectors_to_parquet(EmbeddedInputs(input_hashes=hashes, vectors=vectors)))
    assert found.input_hashes == hashes
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, vectors)


def test_vectors_may_be_a_view() -> None:
    vectors = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1]
    found = vectors_from_parquet(vectors_to_parquet(EmbeddedInputs(input_hashes=("a", "b"), vectors=vectors)))
    np.testing.assert_array_equal(found.vectors, vectors)


@pytest.fixture
def objects(settings: Settings) -> MinioObjectStore:
    return MinioObjectStore.from_settings(settings)


def test_artefacts_live_in_the_object_store_and_in_memory(objects: MinioObjectStore, tmp_path: Path) -> None:
    store = ArtefactStore(objects, cached_bytes=800)
    store.put("small", b"s" * 100)
    store.put("large", b"l" * 101)
    path = tmp_path / "file"
    path.write_bytes(b"f" * 300)
    assert store.put_file("file", path) == "file"
    for key, content in (("small", b"s" * 100), ("large", b"l" * 101), ("file", b"f" * 300)):
        assert objects.get(key) == content
        assert store.get(key) == content
    objects.delete(["small", "large", "file"])
    assert store.get("small") == b"s" * 100
    for key in ("large", "file", "never"):
        with pytest.raises(MissingArtefactError, match=key):
            store.get(key)


def test_the_memory_of_the_store_is_bounded(objects: MinioObjectStore) -> None:
    store = ArtefactStore(objects, cached_bytes=800)
    keys = [f"artefact {number}" for number in range(9)]
    for key in keys:
        store.put(key, key.encode().ljust(100))
    store.get(keys[1])
    store.put("one more", b"x" * 100)
    objects.delete([*keys, "one more"])
    kept = []
    for key in [*keys, "one more"]:
        try:
            store.get(key)
        except MissingArtefactError:
            continue
        kept.append(key)
    assert kept == [keys[1], *keys[3:], "one more"]


@pytest.mark.parametrize("size", [50, 500], ids=["kept", "not kept"])
def test_memory_never_answers_with_an_older_content(objects: MinioObjectStore, tmp_path: Path, size: int) -> None:
    store = ArtefactStore(objects, cached_bytes=800)
    store.put("put", b"old")
    store.put("put", b"n" * size)
    store.put("file", b"old")
    path = tmp_path / "file"
    path.write_bytes(b"n" * size)
    store.put_file("file", path)
    assert store.get("put") == store.get("file") == b"n" * size
