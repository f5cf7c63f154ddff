import unicodedata
import uuid

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.partitions import (
    MAX_FILE_NAME,
    MAX_PARTITION_KEY,
    MAX_SOURCE_PATH,
    artefact_key,
    file_name,
    image_key,
    original_key,
    partition_key,
    source_path,
)
from rag_pipeline.errors import InvalidFileNameError

DOCUMENT = "0123456789abcdef0123456789abcdef"

ids = st.uuids(version=4).map(lambda value: value.hex)
marks = st.characters(categories=["Mn", "Mc", "Me"])
texts = st.builds(str.__mul__, st.text(max_size=12), st.integers(1, 20))


@given(texts, texts, ids)
def test_partition_keys_hold_only_letters_digits_and_four_marks(kb_name: str, name: str, document_id: str) -> None:
    key = partition_key(kb_name, name, document_id)
    assert regex.fullmatch(r"[\p{L}\p{M}\p{N}._\-]*~[0-9a-f]{12}", key)
    assert len(key) <= MAX_PARTITION_KEY
    assert "..." not in key


@given(texts, ids, ids)
def test_partition_keys_of_two_documents_differ(name: str, one: str, other: str) -> None:
    if one[:12] != other[:12]:
        assert partition_key("kb", name, one) != partition_key("kb", name, other)


@given(
    st.lists(st.tuples(st.sampled_from("aé한नद字"), st.text(marks, max_size=4)).map("".join), min_size=1, max_size=4)
)
def test_a_long_name_is_cut_between_character_clusters(clusters: list[str]) -> None:
    name = unicodedata.normalize("NFC", "".join(clusters * MAX_PARTITION_KEY))
    readable = partition_key("kb", name, DOCUMENT).rpartition("~")[0].removeprefix("kb.")
    whole = regex.findall(r"\X", name)
    assert readable == "".join(whole[: len(regex.findall(r"\X", readable))])


@pytest.mark.parametrize(
    ("kb_name", "name", "expected"),
    [
        pytest.param("handbook", "report.pdf", "handbook.report.pdf~0123456789ab", id="plain"),
        pytest.param("手册", "年度报告（终稿）.pdf", "手册.年度报告-终稿-.pdf~0123456789ab", id="chinese"),
        pytest.param("kb", "a, b/c.txt", "kb.a-b-c.txt~0123456789ab", id="comma, blank and slash"),
        pytest.param("kb", "cafe\u0301.md", "kb.café.md~0123456789ab", id="decomposed accent"),
        pytest.param("kb", "and so on...txt", "kb.and-so-on.txt~0123456789ab", id="dots that mean a range"),
        pytest.param("kb", "a~b.txt", "kb.a-b.txt~0123456789ab", id="tilde"),
    ],
)
def test_partition_key_examples(kb_name: str, name: str, expected: str) -> None:
    assert partition_key(kb_name, name, DOCUMENT) == expected


def test_a_long_name_keeps_its_extension() -> None:
    key = partition_key("kb", "年" * 200 + ".pdf", DOCUMENT)
    assert len(key) == MAX_PARTITION_KEY
    assert key.endswith("年.pdf~0123456789ab")


def test_a_document_id_with_dashes_gives_twelve_digits() -> None:
    document_id = uuid.UUID(DOCUMENT)
    assert partition_key("kb", "a", str(document_id)) == partition_key("kb", "a", document_id.hex)


REFUSED = [
    pytest.param("", id="empty"),
    pytest.param("  ", id="blank"),
    pytest.param(".", id="dot"),
    pytest.param("docs/ ", id="blank name in a folder"),
    pytest.param("..", id="parent"),
    pytest.param("../a.txt", id="climbs at the start"),
    pytest.param("a/../../b.txt", id="climbs in the middle"),
    pytest.param("a/..", id="climbs at the end"),
    pytest.param("..\\a.txt", id="climbs with backslashes"),
    pytest.param("a\\..\\..\\b.txt", id="climbs inside backslashes"),
    pytest.param("a/..\\..\\b.txt", id="climbs with both slashes"),
    pytest.param("/etc/passwd", id="absolute"),
    pytest.param("//x", id="two slashes"),
    pytest.param("//server/share/x", id="network share"),
    pytest.param("\\\\server\\share\\x", id="network share with backslashes"),
    pytest.param("\\x", id="root with a backslash"),
    pytest.param("C:\\x.txt", id="drive with a backslash"),
    pytest.param("C:/x.txt", id="drive with a slash"),
    pytest.param("c:x.txt", id="relative to a drive"),
    pytest.param("./C:x.txt", id="drive behind a dot"),
    pytest.param("~/x.txt", id="home"),
    pytest.param("./~/x.txt", id="home behind a dot"),
    pytest.param("a\nb.txt", id="line break"),
    pytest.param("a\0b.txt", id="NUL"),
    pytest.param("a\x7fb.txt", id="delete character"),
    pytest.param("a\x85b.txt", id="next line"),
    pytest.param("a\u2028b.txt", id="line separator"),
    pytest.param("a\udcffb.txt", id="bytes that are no text"),
    pytest.param("a" * (MAX_FILE_NAME + 1), id="long name"),
    pytest.param("/".join(["字" * 100] * 7), id="long path"),
]


@pytest.mark.parametrize("given_path", REFUSED)
def test_paths_that_are_refused(given_path: str) -> None:
    with pytest.raises(InvalidFileNameError):
        source_path(given_path)
    with pytest.raises(InvalidFileNameError):
        file_name(given_path)


@pytest.mark.parametrize(
    ("given_path", "expected"),
    [
        pytest.param("a.txt", "a.txt", id="name"),
        pytest.param("docs/a.txt", "docs/a.txt", id="folder"),
        pytest.param("./docs//./a.txt", "docs/a.txt", id="dots and double slashes"),
        pytest.param("docs\\a.txt", "docs/a.txt", id="backslashes"),
        pytest.param("cafe\u0301/x", "café/x", id="decomposed"),
        pytest.param("a..b/...c", "a..b/...c", id="dots inside names"),
        pytest.param("年度 报告+终稿.pdf", "年度 报告+终稿.pdf", id="chinese, blank and plus"),
        pytest.param("👩‍👩‍👧/🎉.md", "👩‍👩‍👧/🎉.md", id="emoji with joiners"),
    ],
)
def test_paths_that_are_taken(given_path: str, expected: str) -> None:
    assert source_path(given_path) == expected


@given(st.text(max_size=60) | st.text("ab./\\:~C ", max_size=12))
def test_a_source_path_is_refused_or_safe(given_path: str) -> None:
    try:
        clean = source_path(given_path)
    except InvalidFileNameError:
        return
    parts = clean.split("/")
    assert all(part not in {"", ".", ".."} for part in parts)
    assert "\\" not in clean
    assert not regex.search(r"[\p{Cc}\p{Cs}\u2028\u2029]", clean)
    assert not regex.match(r"[A-Za-z]:|~", clean)
    assert unicodedata.is_normalized("NFC", clean)
    assert len(clean.encode()) <= MAX_SOURCE_PATH
    assert source_path(clean) == clean


@given(st.text(max_size=60) | st.text("ab./\\:~C ", max_size=12))
def test_a_file_name_is_refused_or_has_no_folder(given_name: str) -> None:
    try:
        clean = file_name(given_name)
    except InvalidFileNameError:
        return
    assert "/" not in clean
    assert "\\" not in given_name


@pytest.mark.parametrize("name", ["a/b.txt", "a\\b.txt", "a/b/c"])
def test_a_file_name_with_a_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidFileNameError, match="is a path"):
        file_name(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("report.PDF", "kb1/d1/v2/source.pdf", id="extension in lower case"),
        pytest.param("README", "kb1/d1/v2/source", id="no extension"),
        pytest.param("a.tar.gz", "kb1/d1/v2/source.gz", id="last extension"),
        pytest.param("a.年", "kb1/d1/v2/source", id="not ASCII"),
        pytest.param("a.p d", "kb1/d1/v2/source", id="blank"),
        pytest.param("a.abcdefghijk", "kb1/d1/v2/source", id="too long"),
    ],
)
def test_original_keys_use_only_a_plain_extension(name: str, expected: str) -> None:
    assert original_key("kb1", "d1", 2, name) == expected


def test_artefact_keys_differ_by_version_asset_and_attempt() -> None:
    keys = {
        artefact_key("kb", "d", version, asset, attempt)
        for version in (1, 2)
        for asset in ("chunks", "embeddings")
        for attempt in (1, 2)
    }
    assert len(keys) == 8
    assert "kb/kb/d/v2/chunks.a1.parquet" in keys


def test_image_keys_sort_by_position() -> None:
    assert image_key("kb", "d", 1, 7, "image/svg+xml") == "kb/kb/d/v1/images/00007.svg"
