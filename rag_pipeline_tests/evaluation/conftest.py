from collections.abc import Iterator

import pytest

from rag_pipeline.settings import Settings
from rag_pipeline_tests.stages.runner import Runner, running


@pytest.fixture
def runner(settings: Settings) -> Iterator[Runner]:
    """Batches on stores of the test's own."""
    with running(settings) as found:
        yield found
