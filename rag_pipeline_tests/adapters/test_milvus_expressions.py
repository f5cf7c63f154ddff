from hypothesis import given
from hypothesis import strategies as st
from milvus_lite.search.filter.parser import parse_expr
from milvus_lite.search.filter.tokens import TokenKind, tokenize

from rag_pipeline.adapters import milvus_expressions as expressions
from rag_pipeline.core.ports import SearchScope

VALUES = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\"'\\\n\r\t %{}[]")))


def kinds_and_strings(expression: str) -> tuple[list[TokenKind], list[str]]:
    tokens = tokenize(expression)
    return [token.kind for token in tokens], [token.value for token in tokens if token.kind is TokenKind.STRING]


@given(VALUES)
def test_a_value_stays_one_string_literal(value: str) -> None:
    kinds, strings = kinds_and_strings(expressions.equals("kb_id", value))
    assert kinds == [TokenKind.IDENT, TokenKind.EQ, TokenKind.STRING, TokenKind.EOF]
    assert strings == [value]


@given(st.lists(VALUES, min_size=1, max_size=20))
def test_a_list_of_values_stays_a_list(values: list[str]) -> None:
    _, strings = kinds_and_strings(expressions.is_in("chunk_id", values))
    assert strings == values
    parse_expr(expressions.is_in("chunk_id", values))


@given(VALUES, st.lists(VALUES, max_size=30), st.integers(1, 7))
def test_the_expressions_of_a_scope_cover_each_document_once(kb_id: str, documents: list[str], group: int) -> None:
    scope = SearchScope(kb_id=kb_id, document_ids=tuple(documents))
    found: list[str] = []
    for expression in expressions.scope_expressions(scope, documents_per_expression=group):
        parse_expr(expression)
        kinds, (first, *rest) = kinds_and_strings(expression)
        assert kinds[:4] == [TokenKind.IDENT, TokenKind.EQ, TokenKind.STRING, TokenKind.AND]
        assert first == kb_id
        assert 1 <= len(rest) <= group
        found += rest
    assert found == list(dict.fromkeys(documents))


def test_no_document_list_is_the_whole_knowledge_base() -> None:
    scope = SearchScope(kb_id="kb")
    assert list(expressions.scope_expressions(scope, documents_per_expression=10)) == ['kb_id == "kb"']
