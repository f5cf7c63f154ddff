"""The heartbeat of a running batch: a thread renews the lease, so a dead run is known by its silence."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rag_pipeline.adapters.postgres.claims import Claims
from rag_pipeline.errors import FactsUnavailableError

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 6


@contextmanager
def heartbeat(claims: Claims, batch_id: str, *, lease_seconds: float) -> Iterator[None]:
    """Renew the lease of a batch until the block ends.

    A batch that has been taken back is not stopped from here: its writes are refused by the claim.
    """
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(lease_seconds / BEATS_PER_LEASE):
            try:
                if not claims.heartbeat(batch_id):
                    logger.warning("batch %s was taken back; this run writes nothing more", batch_id)
                    return
            except FactsUnavailableError as error:
                logger.warning("no heartbeat for batch %s: %s", batch_id, error)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
