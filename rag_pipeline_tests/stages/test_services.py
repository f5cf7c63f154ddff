from dataclasses import replace

import pytest

from rag_pipeline.adapters.milvus import MilvusIndex
from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services


class WatchedIndex(MilvusIndex):
    closed = 0

    def close(self) -> None:
        super().close()
        self.closed += 1


@pytest.fixture
def index(servers: Settings) -> WatchedIndex:
    uri, token = servers.require_milvus()
    return WatchedIndex(uri=uri, token=token)


def test_closed_services_hold_no_connection_to_milvus(servers: Settings, index: WatchedIndex) -> None:
    with replace(Services.from_settings(servers), vectors=index):
        assert index.closed == 0
    assert index.closed == 1


def test_what_cannot_be_closed_leaves_nothing_else_open(servers: Settings) -> None:
    class Stuck(MilvusIndex):
        def close(self) -> None:
            raise RuntimeError("stuck")

    services = replace(Services.from_settings(servers), vectors=Stuck(uri="http://127.0.0.1:9"))
    engine = services.facts.engine
    with engine.connect():
        pass
    assert engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="stuck"):
        services.close()
    assert services.facts.engine.pool.checkedin() == 0  # type: ignore[attr-defined]
