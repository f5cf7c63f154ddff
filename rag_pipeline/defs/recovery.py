"""Recovery from state: what should be is compared with what is, bounded per call, safe to repeat at any time."""

import time
from dataclasses import dataclass

import dagster as dg

from rag_pipeline.adapters.postgres.run_outcomes import finished_outcomes
from rag_pipeline.defs.assets import BATCH_TAG
from rag_pipeline.defs.generation import is_generation_run
from rag_pipeline.defs.golden import is_quality_run
from rag_pipeline.defs.metadata import event_of
from rag_pipeline.defs.reconciliation import is_reconciliation
from rag_pipeline.stages.cleanup import drop_retired, remove_superseded
from rag_pipeline.stages.services import Services

VERSIONS_PER_CALL = 50
REQUEUED_PER_CALL = 1_000
RUNS_PER_CALL = 100
EVENTS_PER_PAGE = 1_000
BATCHES_KEPT_SECONDS = 30 * 24 * 3_600.0
RUN_START_SECONDS = 180.0
"""A run process that has not begun its batch after this long, or lives on after its end, is dead.

The same as `start_timeout_seconds` in dagster.yaml.
"""

_ALIVE = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_WAITING = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]


@dataclass(kw_only=True)
class Recovered:
    """What one call put right."""

    taken_back: int = 0
    events_logged: int = 0
    dead_runs: int = 0
    requeued: int = 0
    versions_removed: int = 0
    collections_dropped: int = 0

    def describe(self) -> str:
        """One line for the sensor's page."""
        parts = [
            (self.taken_back, "documents taken back from dead runs"),
            (self.events_logged, "events logged that dead runs had no time for"),
            (self.dead_runs, "dead runs marked as failed"),
            (self.requeued, "temporary failures put back into the queue"),
            (self.versions_removed, "superseded versions removed"),
            (self.collections_dropped, "collections dropped that do not answer any more"),
        ]
        return ", ".join(f"{count} {what}" for count, what in parts if count) or "Nothing to put right."


def recover(instance: dg.DagsterInstance, services: Services) -> Recovered:
    """Take back what dead runs hold, retry what is due, remove what no query needs any more."""
    result = Recovered()
    _take_back_dead_batches(instance, services, result)
    result.dead_runs += _fail_dead_runs(instance, services)
    result.requeued = services.facts.waiting.requeue_due(limit=REQUEUED_PER_CALL)
    result.versions_removed = remove_superseded(services, limit=VERSIONS_PER_CALL)
    result.collections_dropped = drop_retired(services)
    services.facts.claims.forget_finished(older_than_seconds=BATCHES_KEPT_SECONDS)
    return result


def _take_back_dead_batches(instance: dg.DagsterInstance, services: Services, result: Recovered) -> None:
    lease = services.settings.lease_seconds
    starting = max(lease, RUN_START_SECONDS)
    for batch in services.facts.claims.open_batches():
        if batch["silent_seconds"] < lease:
            continue
        run = _run_of(instance, batch["id"], batch["run_id"])
        if batch["state"] == "QUEUED" and (run is None or run.status in _WAITING):
            continue  # not launched yet, or waiting for a slot: the sensor asks again, the queue moves on
        if batch["state"] == "QUEUED" and run is not None and run.status in _ALIVE and _age(instance, run) < starting:
            continue  # its process is just starting
        if batch["run_id"] is not None:
            result.events_logged += _finish_report(instance, services, batch["run_id"])
        result.taken_back += services.facts.claims.take_back(
            batch["id"],
            reason="the run that worked on it died",
            lease_seconds=lease,
        )
        if run is not None and run.status in _ALIVE:
            instance.report_run_failed(run, f"No heartbeat for {batch['silent_seconds']:.0f} s: its process is gone.")
            result.dead_runs += 1


def _finish_report(instance: dg.DagsterInstance, services: Services, run_id: str) -> int:
    """Log what a dead run had finished but not told Dagster: it may die between READY and its last events."""
    outcomes = finished_outcomes(services.facts.engine, run_id)
    logged = _logged(instance, run_id) if outcomes else set()
    missing = [each for each in outcomes if (each.stage.value, each.item.partition_key) not in logged]
    for outcome in missing:
        instance.report_runless_asset_event(event_of(outcome))
    return len(missing)


def _logged(instance: dg.DagsterInstance, run_id: str) -> set[tuple[str, str | None]]:
    """(asset, partition) of the materializations that a run has logged."""
    found: set[tuple[str, str | None]] = set()
    cursor = None
    while True:
        page = instance.get_records_for_run(
            run_id, cursor, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION, limit=EVENTS_PER_PAGE
        )
        events = [record.event_log_entry.get_dagster_event() for record in page.records]
        found.update((event.asset_key.to_user_string(), event.partition) for event in events if event.asset_key)
        cursor = page.cursor
        if not page.has_more:
            return found


def _fail_dead_runs(instance: dg.DagsterInstance, services: Services) -> int:
    """Runs whose process died before or after their batch keep a queue slot for ever unless they are ended here."""
    dead = 0
    open_runs = {batch["run_id"] for batch in services.facts.claims.open_batches()}
    for record in instance.get_run_records(dg.RunsFilter(statuses=_ALIVE), limit=RUNS_PER_CALL):
        run = record.dagster_run
        if is_reconciliation(run) or is_quality_run(run):
            continue
        if is_generation_run(run):
            if not services.facts.next_generations.is_being_filled() and _age(instance, run) > RUN_START_SECONDS:
                instance.report_run_failed(run, "Its process is gone: nothing fills the next generation.")
                dead += 1
            continue
        ended = services.facts.claims.seconds_since_end(run.run_id)
        silent = time.time() - record.update_timestamp.timestamp() if ended is None else ended
        if run.run_id not in open_runs and silent > RUN_START_SECONDS:
            instance.report_run_failed(run, "Its process is gone: no batch of documents is running in it.")
            dead += 1
    return dead


def _run_of(instance: dg.DagsterInstance, batch_id: str, run_id: str | None) -> dg.DagsterRun | None:
    if run_id is not None:
        return instance.get_run_by_id(run_id)
    runs = instance.get_runs(dg.RunsFilter(tags={BATCH_TAG: batch_id}), limit=1)
    return runs[0] if runs else None


def _age(instance: dg.DagsterInstance, run: dg.DagsterRun) -> float:
    record = instance.get_run_record_by_id(run.run_id)
    return 0.0 if record is None else time.time() - record.update_timestamp.timestamp()
