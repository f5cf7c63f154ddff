"""The product as a benchmark runs it: servers and Dagster of its own, and a loopback service with hashed vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.schema import migrate
from rag_pipeline.local.dagster import DagsterProcesses, start_dagster
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings

KB = "bench"
DIMENSIONS = 384


@dataclass(frozen=True, kw_only=True)
class System:
    """What runs."""

    settings: Settings
    client: RagClient
    dagster: DagsterProcesses


@contextmanager
def running(folder: Path, embedding_url: str, **changes: object) -> Iterator[System]:
    """Servers, Dagster and a client with the knowledge base `KB`; what earlier calls left in the folder is there."""
    with EmbeddedServers() as servers:
        settings = servers.start(
            Settings(
                data_dir=folder / "data",
                embedder="openai",
                embedding_url=embedding_url,
                embedding_model="hashed",
                embedding_dimensions=DIMENSIONS,
                webserver_port=0,
            ).model_copy(update=changes)
        )
        migrate(settings.require_postgres())
        MinioObjectStore.from_settings(settings).ensure_bucket()
        with RagClient(settings) as client, start_dagster(settings) as dagster:
            client.create_knowledge_base(KB)
            yield System(settings=settings, client=client, dagster=dagster)
