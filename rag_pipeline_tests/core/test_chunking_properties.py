"""What holds for the chunks of every document, whatever the parser found and however tokens are counted."""

import string
from collections.abc import Callable
from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from rag_pipeline.core.chunk import Chunk
from rag_pipeline.core.chunking import ChunkingOptions, chunk
from rag_pipeline.core.parsed_document import BlockType, DocumentBuilder, ParsedDocument, is_blank
from rag_pipeline.core.tokens import TokenCounter, estimate_tokens

LEFT_OUT = {BlockType.PAGE_HEADER, BlockType.PAGE_FOOTER}
COUNTERS: dict[str, TokenCounter] = {
    "estimate": estimate_tokens,
    "characters": len,
    "words": lambda text: len(text.split()),
}

atoms = st.sampled_from(
    [
        *string.ascii_letters, *"0189 ,;:.!?|`#-\"'()", "word ", "Sentence here. ", "Dr. ", "e.g. ", "3.14 ",
        "\n", "\n\n",
        "中文", "句子。", "？”", "；", "é", "e\u0301", " \u0301", "👨‍👩‍👧‍👦", "🇩🇪", "👋🏽", "क्षि", "각",
        "ẞ", "\u200b", "\u3000",
        "| a | b |\n|---|---|\n| 1 | 2 |\n", "```py\nx = 1\n", "- item\n", "longunbrokenstring" * 3,
    ]
)  # fmt: skip
texts = st.lists(atoms, max_size=40).map("".join)
separators = st.sampled_from(["\n\n", "\n", " ", "", "\n\n# ", "\n```\n\n", " **\n\n- ", "\n\n---\n\n"])
blocks = st.lists(st.tuples(st.sampled_from(BlockType), texts, separators, st.integers(1, 3)), max_size=12)


@st.composite
def documents(draw: Callable[..., list[tuple[BlockType, str, str, int]]]) -> ParsedDocument:
    builder = DocumentBuilder(parser="test", parser_version="1")
    for block_type, text, separator, level in draw(blocks):
        if not is_blank(text):
            builder.add_gap(separator)
        builder.add_block(block_type, text, separator="", level=level)
    return builder.build()


@st.composite
def options(draw: Callable[..., int]) -> ChunkingOptions:
    target = draw(st.integers(24, 120))
    return ChunkingOptions(
        target_tokens=target,
        max_tokens=target + draw(st.integers(0, 60)),
        overlap_tokens=draw(st.integers(0, target - 1)),
    )


@pytest.mark.parametrize("counter", COUNTERS)
@given(document=documents(), options=options())
def test_chunks_keep_every_promise(document: ParsedDocument, options: ChunkingOptions, counter: str) -> None:
    count_tokens = COUNTERS[counter]
    chunks = chunk(document, options, count_tokens)
    text = document.text
    assert chunk(document, options, count_tokens) == chunks
    assert [each.index for each in chunks] == list(range(len(chunks)))
    for left, right in pairwise(chunks):
        assert left.start < right.start
        assert left.end < right.end
        assert left.section <= right.section <= left.section + 1
    boundaries = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    for each in chunks:
        assert not is_blank(text[each.start : each.end])
        assert text_is_exact(each, text)
        assert each.tokens == count_tokens(each.embedded_text) <= options.max_tokens
        assert {each.start, each.end} <= boundaries
    assert uncovered(document, chunks) == ""


def text_is_exact(each: Chunk, text: str) -> bool:
    """The span itself, or the span with lines of a table or code block of the document in front."""
    span = text[each.start : each.end]
    header = each.text.removesuffix(span)
    may_have_header = {"table", "code"} & set(each.block_types)
    return each.text == header + span and (not header or bool(may_have_header and header.rstrip("\n") in text))


def uncovered(document: ParsedDocument, chunks: list[Chunk]) -> str:
    """Visible characters outside all chunks that do not lie in or around a page header or footer."""
    covered = bytearray(len(document.text))
    for each in chunks:
        covered[each.start : each.end] = b"\1" * (each.end - each.start)
    previous_end = 0
    for block, following in zip(document.blocks, [*document.blocks[1:], None], strict=False):
        if block.type in LEFT_OUT:
            end = following.start if following else len(document.text)
            covered[previous_end:end] = b"\1" * (end - previous_end)
        previous_end = block.end
    return "".join(
        mark for mark, is_covered in zip(document.text, covered, strict=True) if not is_covered and not is_blank(mark)
    )
