from collections.abc import Mapping

import pytest

from rag_pipeline.core.filters import Condition, DocumentScope, parse_filters
from rag_pipeline.errors import ConfigurationError


def test_the_forms_in_which_filters_are_written() -> None:
    assert parse_filters({"lang": "en", "year": {"gte": 2020, "lt": 2024}, "tag": ["a", "b"], "old": False}) == (
        Condition(field="lang", operator="eq", values=("en",)),
        Condition(field="year", operator="gte", values=(2020,)),
        Condition(field="year", operator="lt", values=(2024,)),
        Condition(field="tag", operator="in", values=("a", "b")),
        Condition(field="old", operator="eq", values=(False,)),
    )


REFUSED: Mapping[str, Mapping[str, object]] = {
    "unknown operator": {"lang": {"like": "e%"}},
    "operator in capitals": {"lang": {"EQ": "en"}},
    "no operator": {"lang": {}},
    "operator that is no text": {"lang": {1: "en"}},
    "null": {"lang": None},
    "nested list": {"lang": [["en"]]},
    "bytes": {"lang": b"en"},
    "not a number": {"year": float("nan")},
    "infinity": {"year": {"lt": float("inf")}},
    "list for one value": {"lang": {"eq": ["en"]}},
    "text for a list": {"lang": {"in": "en"}},
    "exists with a text": {"lang": {"exists": "yes"}},
    "order of booleans": {"old": {"lt": True}},
    "NUL": {"lang": "e\0n"},
    "half a character": {"lang": "\ud800"},
    "empty field": {"": "en"},
    "field with NUL": {"la\0ng": "en"},
    "long field": {"x" * 201: "en"},
}


@pytest.mark.parametrize("filters", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_compared_is_refused(filters: Mapping[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="filter on"):
        parse_filters(filters)


@pytest.mark.parametrize(
    ("scope", "is_everything", "is_nothing"),
    [
        (DocumentScope(), True, False),
        (DocumentScope(document_ids=("a",)), False, False),
        (DocumentScope(document_ids=()), False, True),
        (DocumentScope(principals=()), False, False),
        (DocumentScope(conditions=parse_filters({"lang": []})), False, True),
        (DocumentScope(conditions=parse_filters({"lang": {"not_in": []}})), False, False),
    ],
    ids=["all", "ids", "no ids", "no principals", "no values", "all but none"],
)
def test_what_a_scope_leaves_out(scope: DocumentScope, is_everything: bool, is_nothing: bool) -> None:
    assert (scope.is_everything, scope.is_nothing) == (is_everything, is_nothing)
