"""Cases name-01 (long and non-Latin names) and sec-02 (names that climb out of the upload folder)."""

from pathlib import Path

import pytest

from rag_pipeline.core.documents import Document, Status
from rag_pipeline.core.partitions import MAX_FILE_NAME, MAX_PARTITION_KEY
from rag_pipeline.errors import ConfigurationError, InvalidDocumentError
from rag_pipeline_tests.cases.book import Book


def cut(text: str, size: int, extension: str) -> str:
    """The text cut to a number of bytes, with the extension, on a character boundary."""
    return text.encode()[: size - len(extension)].decode(errors="ignore") + extension


LONG_NAMES = [
    cut("a" * 400, 255, ".md"),
    cut("a" * 400, 256, ".md"),
    "b" * 300 + ".md",
    cut("水" * 200, 255, ".md"),
    "水" * 100 + ".md",
    "😀" * 70 + ".md",
    "e\u0301" * 90 + ".md",
    "same" * 62 + "-one.md",
    "same" * 62 + "-two.md",
    "n" * 1100 + ".md",
    "noext" * 20,
    "a." * 100 + "md",
]
HOSTILE_NAMES = [
    "../../../../tmp/canary",
    "/tmp/canary",
    "..\\..\\win.txt",
    "C:\\temp\\x.txt",
    "a/../../b.txt",
    "....//....//x.txt",
    "%2e%2e%2fx.txt",
    "..%c0%afx.txt",
    "file:///etc/hostname",
    "..",
    ".",
    "",
    "   ",
    "x.txt\u0000.pdf",
    "\u202etxt.exe",
    "//double//slash.txt",
    "~/x.txt",
    "$(touch x).txt",
    "-rf.txt",
    "CON",
    "xxxxxxxxxx/..",
    ".hidden",
    "a\nb.txt",
    "a\rSet-Cookie: x.txt",
]


def try_upload(book: Book, name: str, text: str) -> Document | InvalidDocumentError:
    try:
        return book.upload(name, text)
    except InvalidDocumentError as error:
        return error


def test_long_names_are_kept_as_given_or_refused_with_the_limit(book: Book) -> None:
    uploads = {name: try_upload(book, name, f"# Title\n\nText of file {name[-9:]}.") for name in LONG_NAMES}
    accepted = {name: upload for name, upload in uploads.items() if isinstance(upload, Document)}
    assert {name for name in LONG_NAMES if len(name) <= MAX_FILE_NAME} == accepted.keys()
    assert all(str(MAX_FILE_NAME) in str(upload) for name, upload in uploads.items() if name not in accepted)
    book.runner.run_queued()
    for name, document in accepted.items():
        done = book.client.document(document.id)
        assert done.status is Status.READY
        # Names are compared in one normal form; what is shown is that form.
        assert done.file_name in {name, name.replace("e\u0301", "é")}
        assert len(done.partition_key) <= MAX_PARTITION_KEY
        item = book.runner.services.facts.reconciliation.live_item(document.id)
        assert item is not None
        assert len(item.object_key.encode()) <= 1024
        if name.endswith(".md"):
            assert [hit.heading_path for hit in book.hits("Title") if hit.document_id == done.id] == [("Title",)]
    assert len({document.partition_key for document in accepted.values()}) == len(accepted)
    assert book.sources("Text of a file") == sorted(
        book.client.document(each.id).source_path for each in accepted.values()
    )


def test_hostile_names_are_refused_or_stay_below_their_document(book: Book, tmp_path: Path) -> None:
    objects = book.runner.services.objects
    before = {info.key for info in objects.list("")}
    uploads = [try_upload(book, name, "ten bytes.") for name in HOSTILE_NAMES]
    documents = [upload for upload in uploads if isinstance(upload, Document)]
    refusals = {upload.code for upload in uploads if not isinstance(upload, Document)}
    assert refusals <= {"invalid_name", "unsupported"}
    book.runner.run_queued()
    new = {info.key for info in objects.list("")} - before
    for key in new:
        owner = [document for document in documents if f"{document.kb_id}/{document.id}/" in key]
        assert len(owner) == 1, key
        assert "/.." not in key
    assert len({document.id for document in documents}) == len(documents)
    for document in documents:
        assert "/" not in document.file_name
        assert "\\" not in document.file_name
        assert not any(character < " " for character in document.file_name)
    assert not Path("/tmp/canary").exists()
    snapshots = book.runner.services.settings.snapshots
    assert all(path.resolve().is_relative_to(snapshots.resolve()) for path in snapshots.rglob("*"))


@pytest.mark.parametrize("name", ["../up", "a/b", "", "  ", "a\nb", "x" * 101])
def test_hostile_names_of_knowledge_bases_are_refused(book: Book, name: str) -> None:
    with pytest.raises(ConfigurationError):
        book.client.create_knowledge_base(name)
