"""Which documents a query may use: a list of ids, conditions on their metadata, and who asks. Pure values, no I/O.

The conditions become SQL in `adapters.postgres.passages`; values are bound there, never pasted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rag_pipeline.core.parsed_document import clean_text
from rag_pipeline.errors import ConfigurationError

Operator = Literal["eq", "ne", "in", "not_in", "lt", "lte", "gt", "gte", "contains", "exists"]
Scalar = str | int | float | bool

FILE_FIELDS = frozenset({"file_name", "source_path"})
"""Facts of the document itself; metadata of the same name cannot be filtered."""
ACCESS_FIELD = "allowed_to"
"""Metadata with the principals that may see a document. Without it everybody may; a value that is neither a text nor a
list of texts lets nobody."""
FIELD_CHARACTERS = 200

_LISTS = frozenset({"in", "not_in"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition on a document: its metadata value under `field`, compared with `values`."""

    field: str
    operator: Operator
    values: tuple[Scalar, ...]
    """Exactly one, except for `in` and `not_in`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentScope:
    """The documents of one knowledge base that a query may use: those for which all of this holds."""

    document_ids: tuple[str, ...] | None = None
    """None: any; empty: none."""
    conditions: tuple[Condition, ...] = ()
    principals: tuple[str, ...] | None = None
    """Who asks (a user and their groups), see `ACCESS_FIELD`. None: access is not checked."""

    @property
    def is_everything(self) -> bool:
        """Whether no document is left out."""
        return self.document_ids is None and not self.conditions and self.principals is None

    @property
    def is_nothing(self) -> bool:
        """Whether no document can be meant: an empty list of ids or of values."""
        return self.document_ids == () or any(
            condition.operator == "in" and not condition.values for condition in self.conditions
        )


def parse_filters(filters: Mapping[str, object]) -> tuple[Condition, ...]:
    """Conditions from the form in which people write them; all must hold.

    `{"lang": "en"}` is equality, `{"lang": ["en", "de"]}` any of them (of an empty list: nothing), and
    `{"year": {"gte": 2020, "lt": 2024}}` names operators: `eq`, `ne`, `in`, `not_in`, `lt`, `lte`, `gt`, `gte`,
    `contains` (a list that has the value), `exists` (true or false). `ne` and `not_in` hold for documents without the
    field too. Numbers compare with numbers and texts with texts, by code point, as ISO dates need it. The fields
    `file_name` and `source_path` are those of the document.

    Raises:
        ConfigurationError: a field or operator is unknown, or a value cannot be compared.
    """
    conditions: list[Condition] = []
    for field, wanted in filters.items():
        if not isinstance(field, str) or not 0 < len(field) <= FIELD_CHARACTERS or not _is_storable(field):
            raise ConfigurationError(f"filter on {field!r}: a field is a text of 1 to {FIELD_CHARACTERS} characters")
        if isinstance(wanted, Mapping):
            if not wanted:
                raise ConfigurationError(f"filter on {field!r}: name an operator, one of {', '.join(_operators())}")
            conditions += [_condition(field, operator, value) for operator, value in wanted.items()]
        elif _is_list(wanted):
            conditions.append(_condition(field, "in", wanted))
        else:
            conditions.append(_condition(field, "eq", wanted))
    return tuple(conditions)


def _condition(field: str, operator: object, value: object) -> Condition:
    known = next((each for each in _operators() if each == operator), None)
    if known is None:
        raise ConfigurationError(f"filter on {field!r}: {operator!r} is no operator; one of {', '.join(_operators())}")
    if known in _LISTS:
        if not isinstance(value, Sequence | set | frozenset) or isinstance(value, str | bytes):
            raise ConfigurationError(f"filter on {field!r}: {known} takes a list of values, not {value!r}")
        return Condition(field=field, operator=known, values=tuple(_scalar(field, each) for each in value))
    scalar = _scalar(field, value)
    if known == "exists" and not isinstance(scalar, bool):
        raise ConfigurationError(f"filter on {field!r}: exists takes true or false, not {value!r}")
    if known in {"lt", "lte", "gt", "gte"} and isinstance(scalar, bool):
        raise ConfigurationError(f"filter on {field!r}: {known} takes a number or a text, not {value!r}")
    return Condition(field=field, operator=known, values=(scalar,))


def _scalar(field: str, value: object) -> Scalar:
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and _is_storable(value):
        return value
    raise ConfigurationError(f"filter on {field!r}: {value!r} is no text, finite number or boolean")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _is_storable(text: str) -> bool:
    return clean_text(text) == text


def _operators() -> tuple[Operator, ...]:
    return get_args(Operator)
