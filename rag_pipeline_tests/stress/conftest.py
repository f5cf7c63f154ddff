"""Servers of the stress suite's own, because it kills them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.local.servers import EmbeddedServers
from rag_pipeline_tests.conftest import clean_settings
from rag_pipeline_tests.stages.runner import running
from rag_pipeline_tests.stress.schedules import LEASE_SECONDS, Laboratory

FIELDS = {
    "postgres": ("postgres_url",),
    "s3": ("s3_endpoint", "s3_access_key", "s3_secret_key"),
    "milvus": ("milvus_uri",),
}
ELSEWHERE = {
    "postgres_url": "postgresql://127.0.0.1:1/none",
    "s3_endpoint": "http://127.0.0.1:1",
    "milvus_uri": "http://127.0.0.1:1",
}
"""A server whose address is set is not started."""


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    """Each server in a folder of its own, so that one can be killed and started alone."""
    folder = Path(tempfile.mkdtemp(prefix="rag-stress-"))
    folder.chmod(0o755)
    try:
        with ExitStack() as stack:
            settings = clean_settings(data_dir=folder / "data", **ELSEWHERE)
            servers = {}
            for name, fields in FIELDS.items():
                own = settings.model_copy(update={"data_dir": folder / name, fields[0]: None})
                one = stack.enter_context(EmbeddedServers())
                started = one.start(own)
                settings = settings.model_copy(update={field: getattr(started, field) for field in fields})
                servers[name] = (one, own)
            MinioObjectStore.from_settings(settings).ensure_bucket()
            with running(
                settings,
                embedding_timeout_seconds=1.0,
                lease_seconds=LEASE_SECONDS,
                retry_base_seconds=0.01,
                chunk_tokens=64,
                chunk_overlap_tokens=0,
            ) as runner:
                yield Laboratory(runner=runner, servers=servers)
    finally:
        shutil.rmtree(folder)
