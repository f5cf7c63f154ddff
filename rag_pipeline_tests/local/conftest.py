"""Fixtures for tests that start, kill and stop servers of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_pipeline.local.dagster import stop_left_behind
from rag_pipeline.local.files import ServerFolders
from rag_pipeline.local.servers import stop_servers


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder with a space and Chinese characters, open to other users; its servers are stopped at the end."""
    parent = Path(tempfile.mkdtemp(prefix="rag-local-"))
    parent.chmod(0o755)
    path = parent / "data folder 数据"
    yield path
    if path.exists():
        stop_left_behind(ServerFolders(path))
        stop_servers(path)
    shutil.rmtree(parent)
