import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.batching import (
    PDF_BYTES_PER_PAGE,
    BatchLimits,
    estimated_pages,
    goes_alone,
    in_partition_order,
    plan_batches,
)
from rag_pipeline.core.work import Candidate

LIMITS = BatchLimits(documents=4, bytes=1_000_000, pages=20)


def candidate(number: int, size: int = 1_000, name: str = "a.txt") -> Candidate:
    return Candidate(
        document_id=f"d{number}",
        kb_id="kb",
        partition_key=f"key{number}",
        file_name=name,
        size_bytes=size,
        is_new=True,
    )


sizes = st.integers(min_value=1, max_value=3_000_000)
names = st.sampled_from(["a.txt", "a.pdf", "A.PDF"])
limits = st.builds(
    BatchLimits,
    documents=st.integers(1, 10),
    bytes=st.integers(1, 5_000_000),
    pages=st.integers(1, 200),
)


@st.composite
def waiting(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, int]]:
    """Candidates in any order, at places with gaps between them."""
    places = draw(st.lists(st.integers(0, 60), unique=True, max_size=40))
    candidates = [candidate(place, draw(sizes), draw(names)) for place in places]
    return candidates, {each.partition_key: place for each, place in zip(candidates, places, strict=True)}


@given(waiting(), limits)
def test_batches_hold_every_candidate_once_within_bounds_and_without_gaps(
    found: tuple[list[Candidate], dict[str, int]], bounds: BatchLimits
) -> None:
    candidates, positions = found
    plans = plan_batches(candidates, positions, bounds)
    planned = [each for plan in plans for each in plan.candidates]
    assert sorted(each.document_id for each in planned) == sorted(each.document_id for each in candidates)
    for plan in plans:
        places = [positions[each.partition_key] for each in plan.candidates]
        assert places == list(range(places[0], places[0] + len(places)))
        assert (plan.first_partition, plan.last_partition) == (f"key{places[0]}", f"key{places[-1]}")
        if any(goes_alone(each, bounds) for each in plan.candidates):
            assert len(plan.candidates) == 1
        else:
            assert len(plan.candidates) <= bounds.documents
            assert sum(each.size_bytes for each in plan.candidates) <= bounds.bytes
            assert sum(estimated_pages(each) for each in plan.candidates) <= bounds.pages


@given(waiting(), limits)
def test_no_two_neighbouring_batches_would_have_fitted_into_one(
    found: tuple[list[Candidate], dict[str, int]], bounds: BatchLimits
) -> None:
    candidates, positions = found
    plans = plan_batches(candidates, positions, bounds)
    for left, right in itertools.pairwise(plans):
        first = right.candidates[0]
        together = [*left.candidates, first]
        assert (
            positions[first.partition_key] != positions[left.last_partition] + 1
            or any(goes_alone(each, bounds) for each in together)
            or len(together) > bounds.documents
            or sum(each.size_bytes for each in together) > bounds.bytes
            or sum(estimated_pages(each) for each in together) > bounds.pages
        )


@given(st.lists(st.builds(candidate, st.integers(), sizes, names)), limits)
def test_partition_order_keeps_the_documents_and_puts_large_ones_last(
    candidates: list[Candidate], bounds: BatchLimits
) -> None:
    ordered = in_partition_order(candidates, bounds)
    small = [each for each in candidates if not goes_alone(each, bounds)]
    assert ordered == small + [each for each in candidates if goes_alone(each, bounds)]


def test_many_small_files_are_not_held_up_by_one_large() -> None:
    candidates = [candidate(1), candidate(2, size=900_000), candidate(3), candidate(4)]
    keys = [each.partition_key for each in in_partition_order(candidates, LIMITS)]
    plans = plan_batches(candidates, {key: place for place, key in enumerate(keys)}, LIMITS)
    assert [[each.document_id for each in plan.candidates] for plan in plans] == [["d1", "d3", "d4"], ["d2"]]


@pytest.mark.parametrize(
    ("size", "name", "expected"),
    [
        pytest.param(500_000, "a.txt", False, id="half of the bytes"),
        pytest.param(500_001, "a.txt", True, id="over half of the bytes"),
        pytest.param(10 * PDF_BYTES_PER_PAGE, "a.pdf", False, id="half of the pages"),
        pytest.param(11 * PDF_BYTES_PER_PAGE, "a.pdf", True, id="over half of the pages"),
        pytest.param(11 * PDF_BYTES_PER_PAGE, "a.PDF", True, id="upper case extension"),
        pytest.param(11 * PDF_BYTES_PER_PAGE, "a.docx", False, id="only pages of PDF count"),
    ],
)
def test_a_document_over_half_of_a_bound_goes_alone(size: int, name: str, expected: bool) -> None:
    assert goes_alone(candidate(1, size, name), LIMITS) is expected


def test_nothing_waiting_gives_no_batch() -> None:
    assert plan_batches([], {}, LIMITS) == []
