r"""Filter expressions for Milvus. Every value reaches an expression through `quoted`; nothing else builds one.

Milvus has filter templates, but Milvus Lite does not (tried with 3.2.2), so values are escaped here. The escapes are
those that both understand: `\\`, `\"`, `\n`, `\r`, `\t`.
"""

from collections.abc import Iterator, Sequence

from rag_pipeline.core.ports import SearchScope

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def quoted(value: str) -> str:
    """The value as a string literal."""
    return f'"{value.translate(_ESCAPES)}"'


def equals(field: str, value: str) -> str:
    """Rows whose field has exactly this value."""
    return f"{field} == {quoted(value)}"


def is_in(field: str, values: Sequence[str]) -> str:
    """Rows whose field has one of the values; `values` must not be empty."""
    return f"{field} in [{','.join(quoted(value) for value in values)}]"


def scope_expressions(scope: SearchScope, *, documents_per_expression: int) -> Iterator[str]:
    """Expressions that together cover the scope, each row in exactly one; none for an empty document list."""
    base = equals("kb_id", scope.kb_id)
    if scope.document_ids is None:
        yield base
        return
    documents = list(dict.fromkeys(scope.document_ids))
    for start in range(0, len(documents), documents_per_expression):
        yield f"{base} and {is_in('document_id', documents[start : start + documents_per_expression])}"
