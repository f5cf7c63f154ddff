"""Random schedules of kills, broken servers, wrong answers, cancels and deletes against the stages and the stores.

`make stress` runs 300; `-k SEED` repeats one. Whatever happened: no document is lost, doubled or stuck, nothing is left
over in any store, nothing partial or stale is found.
"""

import pytest

from rag_pipeline_tests.stress.schedules import Laboratory, Schedule

FEW_SEEDS = range(8)
MANY_SEEDS = range(1_000, 1_300)


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_few_random_schedules_leave_everything_right(laboratory: Laboratory, seed: int) -> None:
    Schedule(laboratory, seed).execute()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", MANY_SEEDS)
def test_many_random_schedules_leave_everything_right(laboratory: Laboratory, seed: int) -> None:
    Schedule(laboratory, seed).execute()
