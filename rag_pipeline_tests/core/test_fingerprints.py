import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.documents import Stage
from rag_pipeline.core.fingerprints import StageVersion, fingerprint, stage_fingerprints

VERSIONS = {stage: StageVersion(code_version="1", configuration={"option": 1}) for stage in Stage}
EVERYTHING = frozenset(Stage)
DOWNSTREAM = {
    Stage.SOURCE_DOCUMENT: EVERYTHING,
    Stage.PARSED_BLOCKS: EVERYTHING - {Stage.SOURCE_DOCUMENT},
    Stage.CHUNKS: frozenset({Stage.CHUNKS, Stage.CHUNK_SNAPSHOT, Stage.EMBEDDINGS, Stage.INDEX_WRITES}),
    Stage.CHUNK_SNAPSHOT: frozenset({Stage.CHUNK_SNAPSHOT, Stage.INDEX_WRITES}),
    Stage.EMBEDDINGS: frozenset({Stage.EMBEDDINGS, Stage.INDEX_WRITES}),
    Stage.INDEX_WRITES: frozenset({Stage.INDEX_WRITES}),
}


def fingerprints(
    *,
    sha256: str = "a" * 64,
    name: str = "a.pdf",
    metadata: Mapping[str, object] | None = None,
    versions: Mapping[Stage, StageVersion] = VERSIONS,
) -> dict[Stage, str]:
    return stage_fingerprints(sha256=sha256, file_name=name, metadata=metadata or {}, versions=versions)


def changed(before: Mapping[Stage, str], after: Mapping[Stage, str]) -> frozenset[Stage]:
    return frozenset(stage for stage in Stage if before[stage] != after[stage])


@pytest.mark.parametrize("stage", list(Stage), ids=str)
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(StageVersion(code_version="2", configuration={"option": 1}), id="code"),
        pytest.param(StageVersion(code_version="1", configuration={"option": 2}), id="configuration"),
    ],
)
def test_a_change_of_a_stage_reaches_what_is_downstream_and_nothing_else(stage: Stage, version: StageVersion) -> None:
    assert changed(fingerprints(), fingerprints(versions={**VERSIONS, stage: version})) == DOWNSTREAM[stage]


def test_other_bytes_change_every_stage() -> None:
    assert changed(fingerprints(), fingerprints(sha256="b" * 64)) == EVERYTHING


def test_other_metadata_changes_the_snapshot_and_the_index_but_no_embedding() -> None:
    after = fingerprints(metadata={"lang": "en"})
    assert changed(fingerprints(), after) == {Stage.CHUNK_SNAPSHOT, Stage.INDEX_WRITES}


def test_the_stages_of_one_document_have_different_fingerprints() -> None:
    assert len(set(fingerprints().values())) == len(Stage)


def test_the_order_of_keys_does_not_matter() -> None:
    one = {"a": 1, "b": {"c": 2, "d": 3}}
    other = {"b": {"d": 3, "c": 2}, "a": 1}
    assert fingerprints(metadata=one) == fingerprints(metadata=other)


@given(st.lists(st.lists(st.text(), max_size=3), min_size=2, max_size=4, unique_by=tuple))
def test_parts_are_kept_apart(lists: list[list[str]]) -> None:
    for one, other in itertools.combinations(lists, 2):
        assert fingerprint(*one) != fingerprint(*other)


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_has_a_fingerprint_that_stays(text: str) -> None:
    assert fingerprint(text) == fingerprint(text)
    assert len(fingerprint(text)) == 32


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    # Stored in the database: a change of this value makes every document stale.
    assert fingerprint("a", 1, {"b": "年"}) == "96cd5e1afd6a6ef3d5b5fe4c26eb4367"
