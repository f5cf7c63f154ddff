import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_pipeline.errors import CorruptDocumentError
from rag_pipeline.parsing.structured import RECORD_CHARACTERS
from rag_pipeline_tests.parsing.documents import parse_bytes


def records(folder: Path, content: bytes | str, name: str = "a.json") -> list[tuple[str, str]]:
    document = parse_bytes(folder, content, name)
    return [(block.metadata["json_path"], document.block_text(block)) for block in document.blocks]


def test_each_element_of_a_list_is_a_record(tmp_path: Path) -> None:
    content = '[{"id": 1, "meta": {"tags": ["a", "b"], "deep": [{"x": null}]}}, {"id": 2, "empty": []}]'
    assert records(tmp_path, content) == [
        ("$[0]", "id: 1\nmeta.tags: a, b\nmeta.deep[0].x: null"),
        ("$[1]", "id: 2\nempty: []"),
    ]


def test_small_object_is_one_record(tmp_path: Path) -> None:
    assert records(tmp_path, '{"a": true, "b": {"c": 1.50}}') == [("$", "a: true\nb.c: 1.50")]


def test_large_object_is_divided_into_its_members(tmp_path: Path) -> None:
    value = {
        "name": "x",
        "items": [{"n": number, "text": "t" * 900} for number in range(3)],
        "odd key": {"a": "b" * 1000, "c": "d" * 1000},
        "last": 1,
    }
    found = records(tmp_path, json.dumps(value))
    assert [path for path, _ in found] == [
        "$",
        "$.items[0]",
        "$.items[1]",
        "$.items[2]",
        '$["odd key"]',
        '$["odd key"]',
        "$",
    ]
    assert found[1][1].startswith("items[0].n: 0\nitems[0].text: ttt")
    assert found[4][1].startswith("odd key.a: bbb")
    assert found[-1][1] == "last: 1"


@pytest.mark.parametrize("content", ['"asd"', "12", "null", "true"])
def test_single_value_is_a_document(tmp_path: Path, content: str) -> None:
    assert records(tmp_path, content) == [("$", content.strip('"'))]


def test_numbers_stay_as_written_and_escapes_are_resolved(tmp_path: Path) -> None:
    digits = "9" * 6000
    assert records(tmp_path, digits) == [("$", digits)]
    content = f'{{"big": {digits[:400]}, "x": NaN, "y": -Infinity, "z": 1e400, "s": "\\ua66d\\u0000\\ud800!"}}'
    ((_, text),) = records(tmp_path, content)
    assert text == f"big: {digits[:400]}\nx: NaN\ny: -Infinity\nz: 1e400\ns: ꙭ!"


def test_duplicate_keys_are_all_kept(tmp_path: Path) -> None:
    assert records(tmp_path, '{"a": 1, "a": 2}') == [("$", "a: 1\na: 2")]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"a": 1,}', "line 1, column 9"),
        ('{\n"a": 1', "line 2, column 7"),
        ('{"a": 1} garbage', "line 1, column 10"),
        ("[" * 100_000, "not closed"),
    ],
    ids=["trailing-comma", "cut", "garbage", "unclosed-brackets"],
)
def test_broken_json_is_corrupt_with_its_place(tmp_path: Path, content: str, place: str) -> None:
    with pytest.raises(CorruptDocumentError, match=place):
        parse_bytes(tmp_path, content, "a.json")


def test_deep_nesting_is_harmless(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, "[" * 50_000 + '"core"' + "]" * 50_000, "a.json")
    assert "core" in document.text
    assert "nested too deeply" in document.warnings[0]


def test_broken_line_of_json_lines_is_named_and_left_out(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, '{"id": "rec-0"}\n{"id": "rec-1"\n\n{"id": "rec-2"}\r\n', "a.jsonl")
    assert document.text == "id: rec-0\n\nid: rec-2"
    assert document.blocks[1].metadata == {"line": "4", "json_path": "$"}
    assert "line 2 " in document.warnings[0]


def test_json_lines_named_json_are_understood(tmp_path: Path) -> None:
    assert [text for _, text in records(tmp_path, '{"a": 1}\n{"a": 2}\n')] == ["a: 1", "a: 2"]


def test_one_json_text_named_jsonl_is_understood(tmp_path: Path) -> None:
    assert records(tmp_path, '{\n"a": 1\n}\n', "a.jsonl") == [("$", "a: 1")]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from("abc 字\n\"\\"), min_size=1, max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.sampled_from(["k", "a b", "名"]), children),
    max_leaves=20,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_every_leaf_of_any_json_is_in_the_text(tmp_path: Path, value: Any) -> None:
    document = parse_bytes(tmp_path, json.dumps(value), "a.json")

    def check(item: Any) -> None:
        if isinstance(item, dict):
            for key, member in item.items():
                assert key in document.text
                check(member)
        elif isinstance(item, list):
            for member in item:
                check(member)
        elif isinstance(item, str):
            assert not item.strip() or item in document.text
        else:
            assert json.dumps(item) in document.text

    check(value)


def test_yaml_keeps_its_source_with_comments(tmp_path: Path) -> None:
    source = "# head 注释\na: 1  # why\nb:\n  - x\n"
    document = parse_bytes(tmp_path, source, "a.yaml")
    assert document.text == source
    assert [block.metadata for block in document.blocks] == [{"json_path": "$"}]


def test_large_yaml_is_divided_at_its_keys(tmp_path: Path) -> None:
    filler = "".join(f"    key{number}: {'v' * 40} 😀\n" for number in range(60))
    source = (
        f"# about\nfirst: 1\n# on big\nbig:\n  one:\n{filler}  two:\n    - a\n    - b\nlast: z\n---\nsecond: document\n"
    )
    document = parse_bytes(tmp_path, source, "a.yml")
    assert document.text == source
    found = {block.metadata["json_path"]: document.block_text(block) for block in document.blocks[:-1]}
    assert found["$"].startswith("# about\nfirst: 1")
    assert found["$.big"].startswith("# on big\nbig:")
    assert found["$.big.two"].strip().startswith("two:")
    assert found["$.last"].startswith("last: z")
    assert document.blocks[-1].metadata == {"document": "2", "json_path": "$"}
    assert all(len(document.block_text(block)) <= RECORD_CHARACTERS for block in document.blocks)


@pytest.mark.parametrize(
    ("source", "place"),
    [("a:\n\tb: c\n", "line 2"), ("x: [1, 2\n", "line 2"), ("a: *missing\n", "line 1"), ("[" * 100_000, "line 1")],
    ids=["tab", "unclosed", "unknown-alias", "deep"],
)
def test_broken_yaml_is_corrupt_with_its_line(tmp_path: Path, source: str, place: str) -> None:
    with pytest.raises(CorruptDocumentError, match=place):
        parse_bytes(tmp_path, source, "a.yaml")


def test_aliases_and_tags_are_text(tmp_path: Path) -> None:
    lines = ["a0: &a0 [lol, lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    source = "\n".join([*lines, "loop: &l [*l]", 'run: !!python/object/apply:os.system ["echo pwned > /tmp/x"]', ""])
    document = parse_bytes(tmp_path, source, "bomb.yaml")
    assert document.text == source


def test_lists_of_small_lists_share_records(tmp_path: Path) -> None:
    found = records(tmp_path, json.dumps({"coordinates": [[number, number + 1] for number in range(400)]}))
    assert {path for path, _ in found} == {"$.coordinates"}
    assert found[0][1].startswith("coordinates[0]: 0, 1\ncoordinates[1]: 1, 2\n")
    assert len(found) < 20


def test_small_list_of_mixed_values(tmp_path: Path) -> None:
    assert records(tmp_path, '[1, [2, [3]], {"a": 4}]') == [("$", "[0]: 1\n[1][0]: 2\n[1][1]: 3"), ("$[2]", "a: 4")]


def test_numbers_that_are_no_json_and_escaped_nul_lose_nothing_after_them(tmp_path: Path) -> None:
    document = parse_bytes(tmp_path, '{"x": NaN, "y": Infinity, "z": 1e400, "n": "a\\u0000b", "t": "tail"}', "a.json")
    assert "tail" in document.text
    assert "ab" in document.text
    assert "\0" not in document.text
    assert {"NaN", "Infinity", "1e400"} <= set(document.text.replace(",", " ").split())
