import os
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from rag_pipeline.adapters.object_store import MinioObjectStore
from rag_pipeline.adapters.postgres.facts import Facts
from rag_pipeline.adapters.postgres.schema import document_versions, documents, knowledge_bases
from rag_pipeline.core.documents import Document, KnowledgeBase, Status
from rag_pipeline.errors import (
    DocumentBusyError,
    DocumentTooLargeError,
    EmptyDocumentError,
    FactsUnavailableError,
    InvalidDocumentError,
    InvalidFileNameError,
    KnowledgeBaseInactiveError,
    ObjectStoreUnavailableError,
    RagPipelineError,
    ResourceNotFoundError,
    UnsupportedFormatError,
)
from rag_pipeline.intake.submission import Submission
from rag_pipeline.settings import Settings
from rag_pipeline_tests.intake.stores import (
    EXECUTABLE,
    LIMIT,
    InterruptedStore,
    assert_nothing_stored,
    assert_originals_are_those_of_the_rows,
    keys,
    set_all,
)


def test_a_file_becomes_a_pending_document_with_its_original(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    path = tmp_path / "年度 report+1.TXT"
    path.write_bytes(b"text")
    document = submission.submit(kb.name, path, metadata={"lang": "zh"}, created_by="me")
    assert (document.status, document.version, document.file_name) == (Status.PENDING, 1, "年度 report+1.TXT")
    assert (document.metadata, document.size_bytes, document.kb_name) == ({"lang": "zh"}, 4, kb.name)
    assert document.created_by == "me"
    assert facts.documents.get(document.id) == document
    assert document.partition_key == f"handbook.年度-report-1.TXT~{document.id[:12]}"
    assert keys(objects) == [f"{kb.id}/{document.id}/v1/source.txt"]
    assert_originals_are_those_of_the_rows(facts, objects)


@pytest.mark.parametrize(
    ("content", "name", "error"),
    [
        pytest.param(b"", "a.txt", EmptyDocumentError, id="empty"),
        pytest.param(b"x" * (LIMIT + 1), "a.txt", DocumentTooLargeError, id="oversized"),
        pytest.param(EXECUTABLE, "a.exe", UnsupportedFormatError, id="unsupported"),
        pytest.param(b"PK\x03\x04 something", "a.zip", UnsupportedFormatError, id="archive"),
        pytest.param(b"text", "../a.txt", InvalidFileNameError, id="climbing name"),
        pytest.param(b"text", "docs/a.txt", InvalidFileNameError, id="name with a folder"),
        pytest.param(b"text", "docs\\a.txt", InvalidFileNameError, id="name with a backslash"),
        pytest.param(b"text", "/etc/a.txt", InvalidFileNameError, id="absolute name"),
        pytest.param(b"text", "C:a.txt", InvalidFileNameError, id="drive"),
        pytest.param(b"text", "a\0.txt", InvalidFileNameError, id="NUL in the name"),
        pytest.param(b"text", None, InvalidFileNameError, id="no name"),
    ],
)
def test_what_is_refused_leaves_nothing(
    facts: Facts,
    objects: MinioObjectStore,
    submission: Submission,
    kb: KnowledgeBase,
    content: bytes,
    name: str | None,
    error: type[RagPipelineError],
) -> None:
    with pytest.raises(error):
        submission.submit(kb.name, content, file_name=name)
    assert_nothing_stored(facts, objects)


def test_a_file_of_exactly_the_limit_is_taken(submission: Submission, kb: KnowledgeBase) -> None:
    assert submission.submit(kb.name, b"x" * LIMIT, file_name="a.txt").size_bytes == LIMIT


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"when": object()}, id="object"),
        pytest.param({"score": float("nan")}, id="NaN"),
        pytest.param({"name": "a\0b"}, id="NUL"),
        pytest.param({"name": "a\ud800b"}, id="lone surrogate"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_before_anything_is(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase, metadata: dict[str, object]
) -> None:
    with pytest.raises(InvalidDocumentError, match="metadata"):
        submission.submit(kb.name, b"text", file_name="a.txt", metadata=metadata)
    assert_nothing_stored(facts, objects)


def test_unknown_and_inactive_knowledge_bases_are_refused(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    with pytest.raises(ResourceNotFoundError, match="create_knowledge_base"):
        submission.submit("unknown", b"text", file_name="a.txt")
    with facts.engine.begin() as connection:
        connection.execute(sa.update(knowledge_bases).values(status="DELETING"))
    with pytest.raises(KnowledgeBaseInactiveError):
        submission.submit(kb.name, b"text", file_name="a.txt")
    with pytest.raises(KnowledgeBaseInactiveError):
        submission.submit_many(kb.name, [tmp_path])
    assert_nothing_stored(facts, objects)


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_path_that_is_no_file_is_not_found(
    submission: Submission, kb: KnowledgeBase, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "a.txt"
    if what == "folder":
        path.mkdir()
    with pytest.raises(ResourceNotFoundError, match=r"a\.txt"):
        submission.submit(kb.name, path)


def test_ten_gigabytes_are_refused_without_reading_them(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    path = tmp_path / "huge.txt"
    path.touch()
    os.truncate(path, 10_000_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DocumentTooLargeError, match="100,000"):
            submission.submit(kb.name, path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert_nothing_stored(facts, objects)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs a file whose size is not known beforehand")
def test_a_file_that_says_it_is_empty_is_read_up_to_the_limit(
    facts: Facts, objects: MinioObjectStore, kb: KnowledgeBase
) -> None:
    small = Submission(facts=facts, objects=objects, max_upload_bytes=100)
    with pytest.raises(DocumentTooLargeError):
        small.submit(kb.name, Path("/proc/self/maps"), file_name="maps.txt")
    assert_nothing_stored(facts, objects)


def test_same_path_and_bytes_are_a_duplicate(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase
) -> None:
    first = submission.submit(kb.name, b"one", file_name="a.txt")
    again = submission.submit(kb.name, b"one", file_name="a.txt")
    assert (again.id, again.version, again.duplicate) == (first.id, 1, True)
    assert len(keys(objects)) == 1


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELED], ids=str)
def test_a_duplicate_of_what_failed_waits_again(
    facts: Facts, submission: Submission, kb: KnowledgeBase, status: Status
) -> None:
    first = submission.submit(kb.name, b"one", file_name="a.txt")
    set_all(facts, status)
    again = submission.submit(kb.name, b"one", file_name="a.txt")
    assert (again.id, again.status, again.duplicate) == (first.id, Status.PENDING, True)


def test_new_bytes_are_the_next_version_beside_the_old_original(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase
) -> None:
    first = submission.submit(kb.name, b"one", file_name="a.txt")
    set_all(facts, Status.READY)
    second = submission.submit(kb.name, b"two", file_name="a.txt")
    assert (second.id, second.version, second.status) == (first.id, 2, Status.PENDING)
    assert keys(objects) == [f"{kb.id}/{first.id}/v{version}/source.txt" for version in (1, 2)]
    assert_originals_are_those_of_the_rows(facts, objects)


def test_new_bytes_of_a_busy_document_leave_no_object(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase
) -> None:
    submission.submit(kb.name, b"one", file_name="a.txt")
    set_all(facts, Status.EMBEDDING)
    with pytest.raises(DocumentBusyError):
        submission.submit(kb.name, b"two", file_name="a.txt")
    assert len(keys(objects)) == 1
    assert_originals_are_those_of_the_rows(facts, objects)


def test_same_bytes_under_another_path_are_a_second_document(submission: Submission, kb: KnowledgeBase) -> None:
    found = [submission.submit(kb.name, b"one", source_path=path) for path in ("a/README.md", "b/README.md")]
    assert len({document.id for document in found}) == 2
    assert [document.file_name for document in found] == ["README.md", "README.md"]
    assert not any(document.duplicate for document in found)


def attempt(submission: Submission, kb: KnowledgeBase, content: bytes) -> Document | None:
    try:
        return submission.submit(kb.name, content, file_name="a.txt")
    except DocumentBusyError:
        return None


def test_eight_submits_of_the_same_bytes_at_once_make_one_document(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase
) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: submission.submit(kb.name, b"same", file_name="a.txt"), range(8)))
    assert len({document.id for document in found}) == 1
    assert sorted(document.duplicate for document in found) == [False] + [True] * 7
    assert_originals_are_those_of_the_rows(facts, objects)


@pytest.mark.parametrize("status", [None, Status.READY], ids=["new path", "next version"])
def test_eight_submits_of_different_bytes_at_once_overwrite_no_original(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase, status: Status | None
) -> None:
    if status:
        submission.submit(kb.name, b"old", file_name="a.txt")
        set_all(facts, status)
    contents = [str(number).encode() * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda content: attempt(submission, kb, content), contents))
    (winner,) = (document for document in found if document is not None)
    assert facts.documents.get(winner.id).sha256 == winner.sha256
    assert_originals_are_those_of_the_rows(facts, objects)


@contextmanager
def refusing_commits(facts: Facts) -> Iterator[None]:
    """Every transaction that inserts a version fails at its commit."""
    with facts.engine.begin() as connection:
        connection.exec_driver_sql(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON document_versions
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
            """
        )
    try:
        yield
    finally:
        with facts.engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER refuse ON document_versions; DROP FUNCTION refuse")


def test_a_transaction_that_fails_after_the_upload_leaves_no_object(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase
) -> None:
    with refusing_commits(facts), pytest.raises(exc.DBAPIError, match="refused"):
        submission.submit(kb.name, b"one", file_name="a.txt")
    assert_nothing_stored(facts, objects)
    assert submission.submit(kb.name, b"one", file_name="a.txt").version == 1


def test_a_next_version_that_fails_after_the_upload_leaves_the_old_original(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase
) -> None:
    document = submission.submit(kb.name, b"one", file_name="a.txt")
    set_all(facts, Status.READY)
    with refusing_commits(facts), pytest.raises(exc.DBAPIError, match="refused"):
        submission.submit(kb.name, b"two", file_name="a.txt")
    found = facts.documents.get(document.id)
    assert (found.version, found.status, found.sha256) == (1, Status.READY, document.sha256)
    assert_originals_are_those_of_the_rows(facts, objects)


def cut_other_connections(facts: Facts) -> None:
    """End every other session of the database that is inside a transaction, as a restart of the server would."""
    with facts.engine.connect() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND state = 'idle in transaction'"
            )
        )


def test_a_connection_that_is_cut_during_the_upload_leaves_nothing(
    facts: Facts, bucket: Settings, kb: KnowledgeBase
) -> None:
    store = InterruptedStore.of(bucket)
    store.after_put = lambda _: cut_other_connections(facts)
    with pytest.raises(FactsUnavailableError):
        Submission(facts=facts, objects=store, max_upload_bytes=LIMIT).submit(kb.name, b"one", file_name="a.txt")
    assert_nothing_stored(facts, store)


def test_cleaning_up_after_a_cut_connection_never_takes_the_original_of_another_submit(
    facts: Facts, bucket: Settings, submission: Submission, kb: KnowledgeBase
) -> None:
    """The cut connection gave up its lock, so another submit of the same path came in and used the same key."""
    submission.submit(kb.name, b"one", file_name="a.txt")
    set_all(facts, Status.READY)
    store = InterruptedStore.of(bucket)

    def overtake(_: str) -> None:
        cut_other_connections(facts)
        submission.submit(kb.name, b"winner", file_name="a.txt")

    store.after_put = overtake
    with pytest.raises(FactsUnavailableError):
        Submission(facts=facts, objects=store, max_upload_bytes=LIMIT).submit(kb.name, b"loser", file_name="a.txt")
    assert_originals_are_those_of_the_rows(facts, store)


def test_an_object_store_that_is_down_leaves_no_row(facts: Facts, servers: Settings, kb: KnowledgeBase) -> None:
    down = MinioObjectStore.from_settings(servers.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"}))
    with pytest.raises(ObjectStoreUnavailableError):
        Submission(facts=facts, objects=down, max_upload_bytes=LIMIT).submit(kb.name, b"one", file_name="a.txt")
    assert facts.documents.list(kb.id) == []


def test_a_file_that_is_written_meanwhile_is_refused(
    facts: Facts, bucket: Settings, kb: KnowledgeBase, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one")
    store = InterruptedStore.of(bucket)

    def write_again(_: str) -> None:
        path.write_bytes(b"another")

    store.before_put = write_again
    with pytest.raises(InvalidDocumentError, match="changed"):
        Submission(facts=facts, objects=store, max_upload_bytes=LIMIT).submit(kb.name, path)
    assert_nothing_stored(facts, store)


def test_a_file_that_goes_away_meanwhile_is_refused(
    facts: Facts, bucket: Settings, kb: KnowledgeBase, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one")
    store = InterruptedStore.of(bucket)
    store.before_put = lambda _: path.unlink()
    with pytest.raises(ResourceNotFoundError, match="cannot read"):
        Submission(facts=facts, objects=store, max_upload_bytes=LIMIT).submit(kb.name, path)
    assert_nothing_stored(facts, store)


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")


def test_folders_keep_relative_paths_and_pass_over_hidden_files(
    submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    docs = tmp_path / ".projects" / "docs"
    write(docs, "b.txt", "a/README.md", "b/README.md", ".hidden.txt", ".git/config.txt", "a/.cache/x.txt")
    write(tmp_path, "single.txt")
    results = submission.submit_many(kb.name, [docs, str(tmp_path / "single.txt")])
    assert [result.source_path for result in results] == ["a/README.md", "b/README.md", "b.txt", "single.txt"]
    assert [result.path for result in results] == [
        docs / "a/README.md",
        docs / "b/README.md",
        docs / "b.txt",
        tmp_path / "single.txt",
    ]
    assert [result.document.source_path for result in results if result.document] == [
        result.source_path for result in results
    ]


def test_links_out_of_a_folder_are_refused(submission: Submission, kb: KnowledgeBase, tmp_path: Path) -> None:
    write(tmp_path, "docs/a.txt", "docs/below/b.txt", "secret.txt")
    docs = tmp_path / "docs"
    (docs / "inside.txt").symlink_to("below/b.txt")
    for name, target in (("out.txt", "../secret.txt"), ("nothing.txt", "gone"), ("loop.txt", "loop.txt"), ("up", "..")):
        (docs / name).symlink_to(target)
    results = {result.source_path: result for result in submission.submit_many(kb.name, [docs])}
    assert {path for path, result in results.items() if result.error is None} == {"a.txt", "below/b.txt", "inside.txt"}
    refused = {path: str(result.error) for path, result in results.items() if result.error is not None}
    assert refused.keys() == {"out.txt", "nothing.txt", "loop.txt", "up"}
    assert all("symbolic link" in message for message in refused.values())
    [named] = submission.submit_many(kb.name, [docs / "out.txt"])
    assert named.error is None, "who names a link means its target"


def test_a_file_keeps_the_relative_path_that_was_given(
    submission: Submission, kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a/README.md", "b/README.md", "work/c.txt")
    monkeypatch.chdir(tmp_path / "work")
    given = ["../a/README.md", str(tmp_path / "b/../work/c.txt")]
    assert [result.source_path for result in submission.submit_many(kb.name, given)] == ["README.md", "c.txt"]
    monkeypatch.chdir(tmp_path)
    given = ["a/README.md", "./b/README.md"]
    results = submission.submit_many(kb.name, given)
    assert [result.source_path for result in results] == ["a/README.md", "b/README.md"]
    documents = [result.document for result in results if result.document]
    assert len({document.id for document in documents}) == 2
    assert [submission.submit(kb.name, Path(path)).id for path in given] == [document.id for document in documents]
    assert submission.submit(kb.name, tmp_path / "a/README.md").source_path == "README.md"


def test_every_version_keeps_who_submitted_it(facts: Facts, submission: Submission, kb: KnowledgeBase) -> None:
    document = submission.submit(kb.name, b"one", file_name="a.txt", created_by="a\0lice")
    set_all(facts, Status.READY)
    assert submission.submit(kb.name, b"one", file_name="a.txt", created_by="bob").created_by == "alice"
    assert submission.submit(kb.name, b"two", file_name="a.txt", created_by="bob").created_by == "bob"
    set_all(facts, Status.READY)
    (item,) = facts.claims.items(partition_keys=[document.partition_key])
    facts.claims.open_versions([item], {document.id: {}})
    assert facts.documents.get(document.id).created_by == "bob"
    with facts.engine.connect() as connection:
        rows = connection.execute(sa.select(document_versions.c.version, document_versions.c.created_by))
        assert sorted(map(tuple, rows)) == [(1, "alice"), (2, "bob"), (3, "bob")]


def test_a_name_and_a_path_at_once_are_refused_and_so_are_bytes_without(
    submission: Submission, kb: KnowledgeBase
) -> None:
    with pytest.raises(InvalidFileNameError, match="with bytes"):
        submission.submit(kb.name, b"text")
    with pytest.raises(InvalidFileNameError, match="not both"):
        submission.submit(kb.name, b"text", file_name="a.txt", source_path="b/a.txt")


def test_one_result_per_file_in_order_and_a_bad_file_stops_no_other(
    facts: Facts, objects: MinioObjectStore, submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    write(tmp_path, *(f"{number:02}.txt" for number in range(20)))
    (tmp_path / "05.txt").write_bytes(b"")
    (tmp_path / "06.exe").write_bytes(EXECUTABLE)
    (tmp_path / "07.txt").write_bytes(b"x" * (LIMIT + 1))
    (tmp_path / "10.txt").unlink()
    (tmp_path / "10.txt").symlink_to(tmp_path / "10.txt")
    (tmp_path / "11.txt").rename(tmp_path / os.fsdecode(b"11\xff.txt"))
    paths = [
        *sorted(tmp_path.iterdir()),
        tmp_path / "missing.txt",
        tmp_path / ("n" * 300 + ".txt"),
        tmp_path / "a\0.txt",
    ]
    seen: list[Path] = []
    results = submission.submit_many(kb.name, paths, progress=lambda result: seen.append(result.path))
    assert [result.path for result in results] == paths
    assert sorted(seen) == sorted(paths)
    errors = {result.path.name: type(result.error) for result in results if result.error}
    assert errors == {
        "05.txt": EmptyDocumentError,
        "06.exe": UnsupportedFormatError,
        "07.txt": DocumentTooLargeError,
        "10.txt": ResourceNotFoundError,
        "11\udcff.txt": InvalidFileNameError,
        "missing.txt": ResourceNotFoundError,
        "n" * 300 + ".txt": InvalidFileNameError,
        "a\0.txt": InvalidFileNameError,
    }
    assert all((result.document is None) == (result.error is not None) for result in results)
    assert facts.documents.count_by_status(kb.id) == {Status.PENDING: len(paths) - len(errors)}
    assert_originals_are_those_of_the_rows(facts, objects)


def test_a_path_that_the_file_system_refuses_is_the_error_of_one_file(
    submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    write(tmp_path, "good.txt", "folder.txt/x.txt")
    deep = tmp_path / ("d" * 300) / "a.txt"
    below_a_file = tmp_path / "good.txt" / "b.txt"
    results = submission.submit_many(kb.name, [deep, below_a_file, tmp_path / "good.txt"])
    assert [type(result.error) for result in results] == [ResourceNotFoundError, ResourceNotFoundError, type(None)]


def test_files_of_one_name_listed_separately_do_not_replace_each_other(
    facts: Facts, submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    write(tmp_path, "a/README.md", "b/README.md", "c/caf\u00e9.md", "d/cafe\u0301.md")
    names = ["a/README.md", "b/README.md", "c/caf\u00e9.md", "d/cafe\u0301.md"]
    results = submission.submit_many(kb.name, [tmp_path / name for name in names])
    assert [type(result.error) for result in results] == [type(None), InvalidFileNameError] * 2
    assert "common folder" in str(results[1].error)
    with facts.engine.connect() as connection:
        assert set(connection.execute(sa.select(documents.c.source_path)).scalars()) == {"README.md", "café.md"}


def test_progress_that_raises_stops_the_files_that_wait(
    facts: Facts, submission: Submission, kb: KnowledgeBase, tmp_path: Path
) -> None:
    write(tmp_path, *(f"{number}.txt" for number in range(300)))

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submission.submit_many(kb.name, [tmp_path], progress=stop)
    assert 0 < facts.documents.count_by_status(kb.id)[Status.PENDING] < 300


def test_an_empty_folder_has_no_results(submission: Submission, kb: KnowledgeBase, tmp_path: Path) -> None:
    assert submission.submit_many(kb.name, [tmp_path]) == []
