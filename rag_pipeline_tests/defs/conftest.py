"""The running system, one per module: starting Dagster takes some seconds."""

from collections.abc import Iterator

import pytest

from rag_pipeline.settings import Settings
from rag_pipeline_tests.conftest import own_settings
from rag_pipeline_tests.defs.system import System, running_system


@pytest.fixture(scope="module")
def system(servers: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system of the module's own, Dagster not started yet."""
    with own_settings(servers, tmp_path_factory.mktemp("system")) as own, running_system(own) as running:
        yield running
