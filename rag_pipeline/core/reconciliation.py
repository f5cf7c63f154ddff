"""What a comparison of the stores found. Pure values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One kind of disagreement between PostgreSQL and another store."""

    store: str
    """`objects`, `vectors`, `chunk_rows`, `snapshots` or `partitions`."""
    problem: str
    """`missing` (PostgreSQL names it, the store has it not), `orphaned` (nothing names it), or `foreign` (it belongs to
    a knowledge base that this database has never had; it is reported and never removed)."""
    count: int
    repaired: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The result of one comparison."""

    drift: tuple[Drift, ...]
    checked: Mapping[str, int]
    """How much was looked at, by store."""
    rebuilt: int
    """READY documents for which a new version was opened, because the stores lack something of the live one."""
    notes: tuple[str, ...]
    """What was not compared, and what cannot be repaired."""
    seconds: float

    @property
    def unrepaired(self) -> int:
        """Disagreements that are still there, foreign things left out."""
        return sum(each.count - each.repaired for each in self.drift if each.problem != "foreign")

    @property
    def agrees(self) -> bool:
        """Whether the stores agree now, as far as this database is concerned."""
        return self.unrepaired == 0


@dataclass(kw_only=True)
class Tally:
    """Counts disagreements while they are found."""

    checked: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _found: dict[tuple[str, str], tuple[int, int, list[str]]] = field(default_factory=dict)

    def look(self, store: str, count: int = 1) -> None:
        """Things of a store were compared."""
        self.checked[store] = self.checked.get(store, 0) + count

    def add(self, store: str, problem: str, example: str, *, repaired: bool, count: int = 1) -> None:
        """A disagreement was found."""
        found, mended, examples = self._found.get((store, problem), (0, 0, []))
        if len(examples) < EXAMPLES:
            examples.append(example)
        self._found[store, problem] = (found + count, mended + count * repaired, examples)

    def note(self, text: str) -> None:
        """Something that a person should know, once."""
        if text not in self.notes and len(self.notes) < EXAMPLES:
            self.notes.append(text)

    def result(self, *, rebuilt: int, seconds: float) -> Reconciled:
        """What was found."""
        return Reconciled(
            drift=tuple(
                Drift(store=store, problem=problem, count=count, repaired=repaired, examples=tuple(examples))
                for (store, problem), (count, repaired, examples) in sorted(self._found.items())
            ),
            checked=dict(self.checked),
            rebuilt=rebuilt,
            notes=tuple(self.notes),
            seconds=seconds,
        )
