import itertools

import pytest

from rag_pipeline.core.documents import (
    SETTLED,
    STATUS_DURING,
    TRANSITIONS,
    WORKING,
    Stage,
    Status,
    allowed_from,
    check_transition,
)
from rag_pipeline.errors import IllegalTransitionError


def test_every_status_has_a_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_every_status_is_reachable_from_pending() -> None:
    reached = {Status.PENDING}
    while more := {target for status in reached for target in TRANSITIONS[status]} - reached:
        reached |= more
    assert reached == set(Status)


def test_every_status_can_be_left_towards_deleting_except_deleting_itself() -> None:
    for start in Status:
        reached = {start}
        while more := {target for status in reached for target in TRANSITIONS[status]} - reached:
            reached |= more
        assert Status.DELETING in reached


def test_allowed_from_is_the_table_read_backwards() -> None:
    for current, target in itertools.product(Status, Status):
        assert (current in allowed_from(target)) == (target in TRANSITIONS[current])


@pytest.mark.parametrize(("current", "target"), list(itertools.product(Status, Status)), ids=str)
def test_check_transition_raises_exactly_where_the_table_forbids(current: Status, target: Status) -> None:
    if target in TRANSITIONS[current]:
        check_transition(current, target)
    else:
        with pytest.raises(IllegalTransitionError, match=f"{current} cannot become {target}"):
            check_transition(current, target)


def test_only_a_document_that_is_indexing_becomes_ready() -> None:
    assert allowed_from(Status.READY) == (Status.INDEXING,)


def test_any_later_stage_may_follow_when_those_between_have_nothing_to_do() -> None:
    order = list(dict.fromkeys(STATUS_DURING[stage] for stage in Stage))
    for position, status in enumerate(order):
        assert set(order[position:]) <= TRANSITIONS[status]
        assert not set(order[:position]) & TRANSITIONS[status]


def test_a_document_on_its_way_out_is_never_worked_on_again() -> None:
    for status in (Status.CANCELING, Status.DELETING):
        assert not TRANSITIONS[status] & (WORKING | {Status.PENDING, Status.READY, Status.FAILED})


def test_what_is_settled_is_neither_working_nor_waiting() -> None:
    assert not SETTLED & (WORKING | {Status.PENDING, Status.CANCELING, Status.DELETING})


def test_upstream_follows_the_order_of_the_stages() -> None:
    assert [stage.upstream for stage in Stage] == [None, *list(Stage)[:-1]]
