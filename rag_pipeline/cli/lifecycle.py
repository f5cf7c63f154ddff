"""Commands about the life of documents: cancel, delete, deletions, node-log, reconcile."""

import time
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rag_pipeline.adapters.postgres.node_log import NodeLogEntry
from rag_pipeline.cli.documents import JsonOption, console, print_json
from rag_pipeline.core.documents import Deletion
from rag_pipeline.core.reconciliation import Reconciled
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.query.client import RagClient

DocumentArgument = Annotated[str | None, typer.Argument(help="Document id, partition key or path.")]
WholeOption = Annotated[str | None, typer.Option("--kb", help="The whole knowledge base of that name instead.")]
ReasonOption = Annotated[str | None, typer.Option(help="Why; kept with the document or its deletion record.")]

_STYLES = {
    "SUCCESS": "green",
    "FAILED": "red",
    "CANCELED": "dim",
    "SKIPPED": "dim",
    "WAITING": "cyan",
    "RUNNING": "blue",
}
HASH_DIGITS = 12
"""Of a SHA-256 in a table."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(cancel)
    app.command()(delete)
    app.command()(deletions)
    app.command("node-log")(show_node_log)
    app.command()(reconcile)


def cancel(
    document: DocumentArgument = None,
    kb: WholeOption = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the work on a document or a whole knowledge base; live versions go on answering, `retry` goes on."""
    _one_of(document, kb)
    with RagClient.from_env() as client:
        if kb is not None:
            count = client.cancel_knowledge_base(kb, reason=reason)
            _print(as_json, {"knowledge_base": kb, "canceled": count}, f"{count} documents of {escape(kb)} canceled")
        elif document is not None:
            canceled = client.cancel(document, reason=reason)
            _print(as_json, canceled, f"{escape(canceled.source_path)} is {canceled.status}")


def delete(
    document: DocumentArgument = None,
    kb: WholeOption = None,
    reason: ReasonOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until nothing is left in any store.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Delete a document or a whole knowledge base: hidden at once, removed from every store by a sensor."""
    _one_of(document, kb)
    what = f"the knowledge base {kb!r} with all its documents" if kb is not None else repr(document)
    if not yes and not as_json:
        _confirm_delete(what)
    with RagClient.from_env() as client:
        if kb is not None:
            deletion = client.delete_knowledge_base(kb, reason=reason)
        else:
            deletion = client.delete(document or "", reason=reason)
        if wait:
            deletion = _wait(client, deletion, timeout)
    _print(as_json, deletion, _deletion_line(deletion))


def deletions(
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only those with something left.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    as_json: JsonOption = False,
) -> None:
    """What was deleted, when, how much from each store, and what hinders it."""
    with RagClient.from_env() as client:
        found = client.deletions(only_unfinished=unfinished, limit=limit)
    for each in found:
        _print(as_json, each, _deletion_line(each))
    if not found and not as_json:
        console.print("[dim]every deletion is finished[/]" if unfinished else "[dim]nothing was deleted[/]")


def show_node_log(
    document: Annotated[str, typer.Argument(help="Document id, partition key or path.")],
    as_json: JsonOption = False,
) -> None:
    """What every stage did for a document, attempt by attempt, and what is still to come."""
    with RagClient.from_env() as client:
        found = client.document(document)
        log = client.node_log(found.id)
    if as_json:
        for entry in log:
            print_json(entry)
        return
    title = f"{found.source_path}: {found.status}, version {found.version}, {found.progress:.0%}"
    table = Table(title=escape(title), box=None, title_justify="left", header_style="bold", pad_edge=False)
    for name in ("node", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("version", "attempt", "ms"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("input", overflow="fold", ratio=2)
    table.add_column("output", overflow="fold", ratio=3)
    for entry in log:
        table.add_row(*_node_cells(entry))
    console.print(table)


def reconcile(
    repair: Annotated[bool, typer.Option("--repair", help="Remove orphans; rebuild what lacks something.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare PostgreSQL with objects, vectors and snapshots; exit code 1 while they disagree."""
    with RagClient.from_env() as client:
        found = client.reconcile(repair=repair)
    if as_json:
        print_json(found)
    else:
        _print_reconciled(found)
    if not found.agrees:
        raise typer.Exit(1)


def _confirm_delete(what: str) -> None:
    try:
        typer.confirm(f"Delete {what}?", abort=True)
    except typer.Abort:
        console.print("nothing was deleted; [bold]--yes[/] answers where nobody can")
        raise typer.Exit(1) from None


def _print(as_json: bool, value: object, line: str) -> None:
    if as_json:
        print_json(value)
    else:
        console.print(line)


def _one_of(document: str | None, kb: str | None) -> None:
    if (document is None) == (kb is None):
        raise ConfigurationError("name one document, or one knowledge base with --kb")


def _wait(client: RagClient, deletion: Deletion, timeout_seconds: float) -> Deletion:
    deadline = time.monotonic() + timeout_seconds
    while deletion.finished_at is None:
        if time.monotonic() > deadline:
            hindrance = deletion.last_error or "does the Dagster daemon run? (`rag-pipeline up`)"
            raise TimeoutError(f"{deletion.name} is not gone from every store yet: {hindrance}")
        time.sleep(1.0)
        deletion = client.deletion(deletion.target_id)
    return deletion


def _deletion_line(deletion: Deletion) -> str:
    counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(deletion.counts.items()))
    what = f"{deletion.kind.replace('_', ' ')} [bold]{escape(deletion.name)}[/]"
    if deletion.finished_at is not None:
        return f"[green]deleted[/] {what} at {deletion.finished_at:%Y-%m-%d %H:%M:%S}: {counts or 'nothing was stored'}"
    hindrance = f"; {escape(deletion.last_error)}" if deletion.last_error else ""
    since = f"{deletion.requested_at:%Y-%m-%d %H:%M:%S}"
    return f"[yellow]deleting[/] {what} since {since}: {counts or 'just begun'}{hindrance}"


def _node_cells(entry: NodeLogEntry) -> list[str]:
    outcome = f"[red]{escape(entry.error)}[/]" if entry.error else escape(_summary(entry.output_summary))
    return [
        entry.node,
        f"[{_STYLES[entry.status]}]{entry.status}[/]",
        str(entry.version),
        str(entry.attempt),
        "" if entry.duration_ms is None else str(entry.duration_ms),
        escape(_summary(entry.input_summary)),
        outcome,
    ]


def _summary(facts: Mapping[str, object]) -> str:
    """`pages=10, characters=23000`: what fits on a line."""
    shown = {key: value for key, value in facts.items() if isinstance(value, str | int | float) and key != "preview"}
    return ", ".join(f"{key}={str(value)[:HASH_DIGITS] if key == 'sha256' else value}" for key, value in shown.items())


def _print_reconciled(found: Reconciled) -> None:
    checked = ", ".join(f"{count} {store.replace('_', ' ')}" for store, count in sorted(found.checked.items()))
    console.print(f"compared {checked or 'nothing: the stores are empty'} in {found.seconds:.1f} s")
    for each in found.drift:
        color = "green" if each.repaired == each.count else "yellow"
        examples = ", ".join(each.examples)
        console.print(
            f"[{color}]{each.count} {each.store.replace('_', ' ')} {each.problem}[/], {each.repaired} repaired: "
            f"{escape(examples)}"
        )
    if found.rebuilt:
        console.print(f"{found.rebuilt} documents are rebuilt beside their live version")
    for note in found.notes:
        console.print(f"[dim]{escape(note)}[/]")
    console.print("[green]the stores agree[/]" if found.agrees else "[red]the stores disagree[/]")
