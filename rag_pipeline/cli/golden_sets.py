"""What `rag-pipeline evaluate` does with golden sets: attach, detach, ask, accept, list."""

import typer
from rich.markup import escape
from rich.table import Table

from rag_pipeline.cli.documents import console, print_json
from rag_pipeline.core.golden import GoldenSet
from rag_pipeline.errors import ResourceNotFoundError
from rag_pipeline.evaluation.dataset import Dataset
from rag_pipeline.evaluation.golden_sets import Standing, attach, measure, missing_documents, names_shown, standing
from rag_pipeline.stages.services import Services


def attach_set(services: Services, kb: str, dataset: Dataset, *, as_json: bool) -> None:
    """Attach a test set, and say which of its documents the knowledge base does not have."""
    golden = attach(services, kb, dataset)
    missing = missing_documents(services, golden)
    if as_json:
        print_json({**_shown(golden), "missing": missing})
        return
    console.print(
        f"[bold]{escape(golden.name)}[/] is attached to {escape(kb)}: {len(golden.questions)} questions about "
        f"{len(golden.documents)} documents; the asset retrieval_quality asks them every night, --ask {escape(kb)} now"
    )
    if missing:
        console.print(f"[yellow]not there, or not READY:[/] {escape(names_shown(missing))}")


def detach_set(services: Services, kb: str, *, as_json: bool) -> None:
    """Forget the set and its results."""
    is_detached = services.facts.golden_sets.detach(services.facts.knowledge_bases.active(kb).id)
    if as_json:
        print_json({"knowledge_base": kb, "detached": is_detached})
    else:
        console.print(f"the golden set of {escape(kb)} is forgotten" if is_detached else f"{escape(kb)} has none")


def accept_result(services: Services, kb: str, *, as_json: bool) -> None:
    """Compare later results with the newest one."""
    golden = _attached(services, kb)
    if services.facts.golden_sets.accept(golden) is None:
        raise ResourceNotFoundError(f"{golden.name} was never asked: `rag-pipeline evaluate --ask {kb}`")
    _print(standing(services, golden), as_json=as_json)


def ask_set(services: Services, kb: str, *, as_json: bool) -> None:
    """Ask now and keep the result; exit code 1 if it is worse than allowed."""
    found = measure(services, _attached(services, kb))
    _print(found, as_json=as_json)
    if found.fallen:
        raise typer.Exit(1)


def list_sets(services: Services, *, as_json: bool) -> None:
    """All sets with their newest results."""
    found = services.facts.golden_sets.all()
    for golden in found:
        _print(standing(services, golden), as_json=as_json)
    if not found and not as_json:
        console.print("[dim]no golden set is attached; `rag-pipeline evaluate FOLDER --attach KB` does it[/]")


def _attached(services: Services, kb: str) -> GoldenSet:
    found = services.facts.golden_sets.of(services.facts.knowledge_bases.active(kb).id)
    if found is None:
        raise ResourceNotFoundError(f"no golden set is attached to {kb}: `rag-pipeline evaluate DIR --attach {kb}`")
    return found


def _shown(golden: GoldenSet) -> dict[str, object]:
    return {
        "knowledge_base": golden.kb_name,
        "set": golden.name,
        "questions": len(golden.questions),
        "documents": len(golden.documents),
        "judged": "pages" if golden.has_pages else "documents",
        "attached_at": golden.attached_at,
    }


def _print(found: Standing, *, as_json: bool) -> None:
    golden, newest, accepted = found.golden, found.newest, found.accepted
    if as_json:
        fallen = [str(each) for each in found.fallen]
        print_json({**_shown(golden), "newest": newest, "accepted": accepted, "fallen": fallen})
        return
    head = f"[bold]{escape(golden.kb_name)}[/]: {escape(golden.name)}, {len(golden.questions)} questions"
    if newest is None or accepted is None:
        console.print(f"{head}, not asked yet")
        return
    console.print(f"{head}, asked {newest.measured_at:%Y-%m-%d %H:%M}, accepted {accepted.measured_at:%Y-%m-%d %H:%M}")
    measures = list(next(iter(newest.figures.values()), {}))
    table = Table("leg", *measures)
    for leg, values in newest.figures.items():
        before = accepted.figures.get(leg, {})
        cells = [
            f"{value:.3f} [dim]{value - before.get(measure_name, value):+.3f}[/]"
            for measure_name, value in values.items()
        ]
        table.add_row(leg, *cells)
    console.print(table)
    if newest.missing:
        console.print(f"[yellow]not there, or not READY:[/] {escape(names_shown(newest.missing))}")
    for fall in found.fallen:
        console.print(f"[red]worse:[/] {fall}")
