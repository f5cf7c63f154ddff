"""What the contract suite does not reach: names, modes, and a disk that does not take the file."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_pipeline.adapters.snapshots import FileSnapshotStore
from rag_pipeline.core.ports import SnapshotRef
from rag_pipeline.errors import SnapshotWriteError
from rag_pipeline_tests.conftest import clean_settings

REF = SnapshotRef(kb_id="kb1", document_id="doc1", version=3)


def test_file_names_and_modes(tmp_path: Path) -> None:
    store = FileSnapshotStore(tmp_path)
    folder = tmp_path / "kb1" / "doc1"

    assert store.write(REF, {"chunks": []}) == str(folder / "chunks.v3.json")
    assert stat.S_IMODE((folder / "chunks.v3.json").stat().st_mode) == 0o600
    assert store.publish(REF) == str(folder / "chunks.json")
    assert [path.name for path in folder.iterdir()] == ["chunks.json"]
    store.delete("kb1", "doc1")
    assert not folder.exists()


def test_settings_name_the_folder(tmp_path: Path) -> None:
    store = FileSnapshotStore.from_settings(clean_settings(data_dir=tmp_path))
    assert store.write(REF, {}).startswith(str(tmp_path / "chunk_snapshots"))


def test_the_file_is_readable_text(tmp_path: Path) -> None:
    path = Path(FileSnapshotStore(tmp_path).write(REF, {"chunks": [{"text": "机器学习"}]}))
    assert "机器学习" in path.read_text("utf-8")


@pytest.mark.parametrize("blocker", ["kb1", "kb1/doc1"], ids=["in the place of the knowledge base", "of the document"])
def test_a_folder_that_cannot_be_made_is_temporary(tmp_path: Path, blocker: str) -> None:
    (tmp_path / blocker).parent.mkdir(exist_ok=True)
    (tmp_path / blocker).write_text("a file")
    store = FileSnapshotStore(tmp_path)
    with pytest.raises(SnapshotWriteError, match="RAG_SNAPSHOT_DIR") as raised:
        store.write(REF, {"chunks": []})
    assert isinstance(raised.value.__cause__, OSError)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let this process write files of at most 100 kB, as on a full disk: the write itself fails."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_a_disk_that_refuses_the_bytes_leaves_the_old_snapshot(tmp_path: Path) -> None:
    store = FileSnapshotStore(tmp_path)
    store.write(REF, {"text": "old"})
    with pytest.raises(SnapshotWriteError):
        store.write(REF, {"text": "x" * 200_000})
    assert store.read(REF) == {"text": "old", "version": 3}
    assert os.listdir(tmp_path / "kb1" / "doc1") == ["chunks.v3.json"]  # noqa: PTH208 - dot files too


def test_a_damaged_file_is_reported_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    store = FileSnapshotStore(tmp_path)
    Path(store.write(REF, {})).write_bytes(b'{"version": 3, "chu')
    with pytest.raises(SnapshotWriteError, match="damaged"):
        store.read(REF)
