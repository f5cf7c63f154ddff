"""The resource that hands assets and sensors their services."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services


class ServicesResource(dg.ConfigurableResource[Services]):
    """Adapters built from the environment; opened when a run or a sensor tick needs them and closed after it."""

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[Services]:  # noqa: ARG002
        """Services for one run or tick; nothing is connected before it is used."""
        with Services.from_settings(Settings.load()) as services:
            yield services
