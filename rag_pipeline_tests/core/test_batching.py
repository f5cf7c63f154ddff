import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.batching import (
    LONGEST_RANGE,
    PDF_BYTES_PER_PAGE,
    BatchLimits,
    estimated_pages,
    goes_alone,
    in_partition_order,
    keys_between,
    plan_batches,
)
from rag_pipeline.core.work import Candidate

LIMITS = BatchLimits(documents=4, bytes=1_000_000, pages=20)


def candidate(
    number: int, size: int = 1_000, name: str = "a.txt", *, kb_id: str = "kb", died_runs: int = 0
) -> Candidate:
    return Candidate(
        document_id=f"d{number}",
        kb_id=kb_id,
        partition_key=f"key{number}",
        file_name=name,
        size_bytes=size,
        died_runs=died_runs,
    )


sizes = st.integers(min_value=1, max_value=3_000_000)
names = st.sampled_from(["a.txt", "a.pdf", "A.PDF"])
limits = st.builds(
    BatchLimits,
    documents=st.integers(1, 10),
    bytes=st.integers(1, 5_000_000),
    pages=st.integers(1, 200),
)


ORDER = [f"key{place}" for place in range(61)]


@st.composite
def waiting(draw: st.DrawFn) -> tuple[list[Candidate], frozenset[str]]:
    """Candidates in any order with gaps between them, and the partitions in the gaps that may be passed over."""
    places = draw(st.lists(st.integers(0, 60), unique=True, max_size=40))
    candidates = [candidate(place, draw(sizes), draw(names)) for place in places]
    others = sorted(set(ORDER) - {each.partition_key for each in candidates})
    return candidates, frozenset(draw(st.lists(st.sampled_from(others))) if others else [])


@given(waiting(), limits)
def test_batches_hold_every_candidate_once_within_bounds_and_cover_nothing_else_but_what_is_passed_over(
    found: tuple[list[Candidate], frozenset[str]], bounds: BatchLimits
) -> None:
    candidates, passable = found
    plans = plan_batches(candidates, ORDER, bounds, passable)
    planned = [each for plan in plans for each in plan.candidates]
    assert sorted(each.document_id for each in planned) == sorted(each.document_id for each in candidates)
    for plan in plans:
        keys = [each.partition_key for each in plan.candidates]
        covered = ORDER[ORDER.index(plan.first_partition) : ORDER.index(plan.last_partition) + 1]
        assert [key for key in covered if key in keys] == keys
        assert set(covered) - set(keys) <= passable
        if any(goes_alone(each, bounds) for each in plan.candidates):
            assert len(plan.candidates) == 1
        else:
            assert len(plan.candidates) <= bounds.documents
            assert sum(each.size_bytes for each in plan.candidates) <= bounds.bytes
            assert sum(estimated_pages(each) for each in plan.candidates) <= bounds.pages


@given(waiting(), limits)
def test_no_two_neighbouring_batches_would_have_fitted_into_one(
    found: tuple[list[Candidate], frozenset[str]], bounds: BatchLimits
) -> None:
    candidates, passable = found
    plans = plan_batches(candidates, ORDER, bounds, passable)
    for left, right in itertools.pairwise(plans):
        first = right.candidates[0]
        together = [*left.candidates, first]
        between = ORDER[ORDER.index(left.last_partition) + 1 : ORDER.index(first.partition_key)]
        assert (
            not passable.issuperset(between)
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
    plans = plan_batches(candidates, keys, LIMITS)
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
    assert plan_batches([], [], LIMITS) == []


def test_scattered_documents_share_runs_across_settled_ones() -> None:
    order = [f"key{place}" for place in range(10_000)]
    candidates = [candidate(place) for place in range(0, 10_000, 20)]
    settled = frozenset(order) - {each.partition_key for each in candidates}
    bounds = BatchLimits(documents=256, bytes=1_000_000_000, pages=1_000)
    assert set(keys_between(candidates, order)) == settled - set(order[9_981:])
    plans = plan_batches(candidates, order, bounds, settled)
    assert len(plans) == 10
    assert max(order.index(plan.last_partition) - order.index(plan.first_partition) for plan in plans) < LONGEST_RANGE


def test_a_gap_longer_than_a_range_is_not_looked_at() -> None:
    order = [f"key{place}" for place in range(5_000)]
    candidates = [candidate(0), candidate(4_999)]
    assert keys_between(candidates, order) == []
    assert len(plan_batches(candidates, order, LIMITS, frozenset(order))) == 2


def test_a_document_whose_run_died_is_tried_in_a_smaller_batch_and_then_alone() -> None:
    bounds = BatchLimits(documents=8, bytes=1_000_000, pages=20)
    for died_runs, sizes_of_batches in ((0, [8, 4]), (1, [2] * 6), (2, [1] * 12)):
        found = [candidate(number, died_runs=died_runs) for number in range(12)]
        plans = plan_batches(found, ORDER, bounds)
        assert [len(plan.candidates) for plan in plans] == sizes_of_batches


def test_one_dead_run_does_not_drag_in_documents_beside_it() -> None:
    bounds = BatchLimits(documents=8, bytes=1_000_000, pages=20)
    found = [candidate(0), candidate(1, died_runs=2), candidate(2)]
    assert [len(plan.candidates) for plan in plan_batches(found, ORDER, bounds)] == [1, 1, 1]


def test_a_scan_of_hundreds_of_pages_has_a_lane_of_its_own() -> None:
    bounds = BatchLimits(documents=256, bytes=64_000_000, pages=2_000)
    found = [candidate(0), candidate(1, 15_000_000, "scan.pdf"), candidate(2)]
    assert [plan.is_large for plan in plan_batches(found, ORDER, bounds)] == [False, True, False]


def test_partitions_of_one_knowledge_base_are_added_side_by_side() -> None:
    found = [candidate(number, kb_id=f"kb{number % 2}") for number in range(6)]
    assert [each.kb_id for each in in_partition_order(found, LIMITS)] == ["kb0"] * 3 + ["kb1"] * 3
