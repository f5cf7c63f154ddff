from dataclasses import replace

from rag_pipeline.core.passages import StoredChunk
from rag_pipeline.query.expansion import expand, joined
from rag_pipeline.query.results import Candidate, RetrievalResult, beginning_of, result_of

TEXT = "".join(f"Sentence number {number:02d} of the text. " for number in range(40))
WORDS = 32
"""Characters of one sentence."""


def chunk(index: int, *, size: int = 2, overlap: int = 0, section: int = 0, document: str = "a") -> StoredChunk:
    """Chunk number `index` of `TEXT`: `size` sentences, the first `overlap` of which the chunk before has too."""
    start = index * (size - overlap) * WORDS
    return StoredChunk(
        chunk_id=f"{document}_1_{index}",
        document_id=document,
        kb_id="kb",
        version=1,
        file_name="a.pdf",
        source_path="a.pdf",
        text=TEXT[start : start + size * WORDS].strip(),
        start=start,
        end=start + len(TEXT[start : start + size * WORDS].strip()),
        parent_id=f"{document}_1_s{section}",
        index=index,
        heading_path=("Chapter", f"Part {index // 2}"),
        page=index + 1,
        page_end=index + 1,
    )


def candidates(*chunks: StoredChunk) -> list[Candidate]:
    return [Candidate(chunk=each, score=1.0 / place, channels={"bm25": place}) for place, each in enumerate(chunks, 1)]


def run(
    hits: list[StoredChunk], section: list[StoredChunk], *, top_k: int = 5, characters: int = 10_000
) -> tuple[RetrievalResult, ...]:
    return expand(candidates(*hits), {section[0].parent_id: section}, top_k=top_k, characters=characters)


def test_a_hit_becomes_its_section_with_the_locators_of_all() -> None:
    section = [chunk(index) for index in range(4)]
    (result,) = run([section[1]], section)
    assert result.chunk_id == section[1].chunk_id
    assert result.text == "\n\n".join(each.text for each in section)
    assert (result.start, result.end) == (section[0].start, section[3].end)
    assert (result.page, result.page_end) == (1, 4)
    assert result.heading_path == ("Chapter",)
    assert result.is_expanded


def test_what_chunks_share_is_given_once() -> None:
    section = [chunk(index, size=4, overlap=1) for index in range(5)]
    text, parts = joined(section)
    assert text == TEXT[: section[-1].end]
    assert [(part.begin, part.until) for part in parts] == [(part.start, part.end) for part in parts]
    assert [part.end for part in parts] == [each.end for each in section]


def test_a_repeated_header_is_given_once() -> None:
    first, second = chunk(0), chunk(1)
    second = replace(second, text="| header |\n" + second.text, start=first.end - 5)
    text, parts = joined([first, second])
    assert text == first.text + second.text[-(second.end - first.end) :]
    assert [(part.start, part.end) for part in parts] == [(first.start, first.end), (first.end, second.end)]


def test_the_beginning_of_a_passage_ends_where_its_text_ends() -> None:
    section = [chunk(index) for index in range(4)]
    (result,) = run([section[1]], section)
    for characters in range(1, len(result.text) + 10):
        seen = beginning_of(result, characters)
        assert seen.text == result.text[:characters]
        shown = seen.text.removesuffix("\n").removesuffix("\n")
        assert TEXT[seen.parts[-1].start : seen.end] == shown[seen.parts[-1].begin :]
        page = sum(each.start < seen.end for each in section)
        assert (seen.start, seen.page, seen.page_end) == (result.start, 1, page)
    assert beginning_of(result, len(result.text)) == result


def test_the_beginning_of_a_passage_within_a_repeated_header_has_nothing_of_the_document() -> None:
    hit = chunk(1)
    hit = replace(hit, text="| header |\n" + hit.text)
    result = result_of(1, candidates(hit)[0])
    assert (beginning_of(result, 5).start, beginning_of(result, 5).end) == (hit.start, hit.start)
    assert beginning_of(result, len("| header |\n") + 8).end == hit.start + 8


def test_hits_of_one_section_become_one_result() -> None:
    section = [chunk(index) for index in range(4)]
    other = chunk(0, document="b")
    results = run([section[2], other, section[0]], section)
    assert [result.document_id for result in results] == ["a", "b"]
    assert results[0].matches == (section[2].chunk_id, section[0].chunk_id)
    assert [result.rank for result in results] == [1, 2]
    assert not results[1].is_expanded
    assert results[1].text == other.text


def test_a_long_section_is_bounded_around_the_hit() -> None:
    section = [chunk(index) for index in range(20)]
    characters = 3 * (len(section[0].text) + 2)
    (result,) = run([section[10]], section, characters=characters)
    assert (result.page, result.page_end) == (10, 12)
    assert len(result.text) <= characters


def test_far_hits_of_a_long_section_stay_apart_and_share_nothing() -> None:
    section = [chunk(index) for index in range(20)]
    results = run([section[10], section[2], section[11], section[12]], section, characters=200)
    assert [(result.page, result.page_end) for result in results] == [(10, 12), (2, 4), (13, 15)]
    assert results[0].matches == (section[10].chunk_id, section[11].chunk_id)


def test_a_hit_that_is_longer_than_the_bound_stays_whole() -> None:
    section = [chunk(index) for index in range(3)]
    (result,) = run([section[1]], section, characters=10)
    assert result.text == section[1].text
    assert not result.is_expanded


def test_no_more_results_than_wanted_but_later_hits_still_count_as_matches() -> None:
    section = [chunk(index) for index in range(2)]
    others = [chunk(0, document=name) for name in "bcd"]
    results = run([section[0], *others, section[1]], section, top_k=2)
    assert [result.document_id for result in results] == ["a", "b"]
    assert results[0].matches == (section[0].chunk_id, section[1].chunk_id)


def test_a_section_that_is_not_known_leaves_the_hit_alone() -> None:
    (result,) = expand(candidates(chunk(0)), {}, top_k=5, characters=1000)
    assert result.text == chunk(0).text
