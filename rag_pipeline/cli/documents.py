"""Commands about documents: submit, status, documents, retry."""

import getpass
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rag_pipeline.core.documents import SETTLED, SHORTEST_ID, Document, Status
from rag_pipeline.errors import ConfigurationError, TemporaryError
from rag_pipeline.query.client import RagClient

console = Console(highlight=False, emoji=False)

KnowledgeBaseOption = Annotated[str, typer.Option("--kb", help="Name of the knowledge base.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")]

_STYLES = {
    Status.READY: "green",
    Status.FAILED: "red",
    Status.NO_CONTENT: "yellow",
    Status.CANCELED: "dim",
    Status.PENDING: "cyan",
}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(submit)
    app.command()(status)
    app.command("documents")(list_documents)
    app.command()(retry)


def submit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files, which keep a relative path as it is given, and folders, below which paths count.", exists=True
        ),
    ],
    kb: KnowledgeBaseOption = "default",
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            help="Kept with the documents: lang=en, or JSON: allowed_to='[\"alice\"]'. With a known file, what is "
            "given replaces what was kept.",
        ),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who submits them. Default: the login name.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until every document is done.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Submit files and folders into a knowledge base (made if it does not exist)."""
    facts = named_values("--metadata", metadata)
    with RagClient.from_env() as client:
        client.create_knowledge_base(kb)
        with _spinner("submitting", quiet=as_json) as advance:
            results = client.submit_many(
                kb,
                paths,
                metadata=facts,
                created_by=by or _login_name(),
                progress=lambda _: advance(),
            )
        for result in results:
            if as_json and result.document is not None:
                print_json(result.document)
            elif as_json:
                print(json.dumps({"source_path": result.source_path, **_error_fields(result.error)}))
            elif result.error is not None:
                verb = "not submitted" if isinstance(result.error, TemporaryError) else "refused"
                console.print(f"[red]{verb}[/] {escape(result.source_path)}: {escape(str(result.error))}")
        accepted = [result for result in results if result.document is not None]
        if not as_json:
            known = [result.document for result in accepted if result.document and result.document.duplicate]
            queued = sum(document.status is Status.PENDING for document in known)
            told = "their metadata updated, " if metadata and known else ""
            console.print(
                f"{len(accepted) - len(known)} new or changed, {len(known)} known already ({told}{queued} of them "
                f"waiting to be worked on), {len(results) - len(accepted)} refused"
            )
        failed = len(results) - len(accepted)
        if wait and accepted:
            done = wait_with_progress(client, [each for each in accepted if each.document], timeout, quiet=as_json)
            failed += sum(document.status is Status.FAILED for document in done)
    if failed:
        raise typer.Exit(1)


def status(
    kb: KnowledgeBaseOption = "default",
    watch: Annotated[bool, typer.Option("--watch", help="Redraw until everything is done (Ctrl-C to leave).")] = False,
    as_json: JsonOption = False,
) -> None:
    """How many documents are in each status, and what failed."""
    with RagClient.from_env() as client:
        if as_json:
            print(json.dumps({key.value: count for key, count in client.count_by_status(kb).items()}))
            return
        if not watch:
            console.print(_status_table(client, kb))
            return
        with Live(console=console, refresh_per_second=4) as live:
            while True:
                counts = client.count_by_status(kb)
                live.update(_status_table(client, kb))
                if counts and set(counts) <= SETTLED and client.next_retry(kb) is None:
                    return
                time.sleep(1.0)


def list_documents(
    kb: KnowledgeBaseOption = "default",
    status_filter: Annotated[str | None, typer.Option("--status", help="Only documents in this status.")] = None,
    page: Annotated[int, typer.Option(min=1)] = 1,
    page_size: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    as_json: JsonOption = False,
) -> None:
    """One page of the documents of a knowledge base."""
    with RagClient.from_env() as client:
        found = client.documents(kb, status=status_filter, page=page, page_size=page_size)
    if as_json:
        for document in found:
            print_json(document)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("path", overflow="fold")
    for name in ("status", "version", "live", "pages", "chunks"):
        table.add_column(name, no_wrap=True, justify="left" if name == "status" else "right")
    table.add_column("id", no_wrap=True)
    for document in found:
        table.add_row(
            escape(document.source_path),
            _colored(document.status),
            str(document.version),
            _number(document.live_version),
            _number(document.pages),
            _number(document.chunk_count),
            document.id[:SHORTEST_ID],
        )
    console.print(table if found else "[dim]no document here[/]")
    for document in found:
        if document.error is not None:
            console.print(
                f"[red]{escape(document.source_path)}[/] failed at {document.error.stage} "
                f"({document.error.error_class}): {escape(document.error.message)}{_retry(document)}",
                soft_wrap=True,
            )


def retry(
    document: Annotated[str, typer.Argument(help="Document id, partition key or path.")],
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Try a FAILED or CANCELED document again, from the stage that failed."""
    with RagClient.from_env() as client:
        before = client.document(document)
        again = client.retry(before.id)
        if not as_json:
            console.print(f"{escape(again.source_path)} is {_colored(again.status)}")
            if before.error is not None and before.error.error_class == "permanent":
                console.print(
                    "its error was permanent: unless the cause is gone it will fail again; mend the file and submit it"
                )
        if wait:
            [again] = wait_with_progress(client, [again], timeout, quiet=as_json) or [again]
    if as_json:
        print_json(again)
    if again.status is Status.FAILED:
        raise typer.Exit(1)


def wait_with_progress(
    client: RagClient, submitted: list[Any], timeout_seconds: float, *, quiet: bool
) -> list[Document]:
    """Wait for documents with a live line of counts; failures are printed as they happen."""
    reported: set[tuple[str, int]] = set()
    started = time.monotonic()
    settled_before: int | None = None
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, disable=quiet
    ) as progress:
        task = progress.add_task("waiting")

        def look(found: list[Document]) -> None:
            nonlocal settled_before
            settled = sum(each.is_settled and each.retry_at is None for each in found)
            counts: dict[Status, int] = {}
            for each in found:
                counts[each.status] = counts.get(each.status, 0) + 1
                attempt = (each.id, each.attempt)
                is_new = each.status is Status.FAILED and attempt not in reported
                if each.error is not None and is_new and not quiet:
                    reported.add(attempt)
                    progress.console.print(
                        f"[red]failed[/] {escape(each.source_path)} at {each.error.stage} ({each.error.error_class}): "
                        f"{escape(each.error.message)}{_retry(each)}"
                    )
            settled_before = settled if settled_before is None else settled_before
            rate = (settled - settled_before) / max(time.monotonic() - started, 0.001) * 60
            text = "  ".join(f"{_colored(each)} {count}" for each, count in sorted(counts.items()))
            progress.update(task, description=f"{settled}/{len(found)}  {text}  {rate:.0f} documents/min")

        return client.wait(submitted, timeout_seconds=timeout_seconds, progress=look)


def named_values(option: str, given: Sequence[str] | None) -> dict[str, Any]:
    """`name=value`; a value that is JSON is taken as such, anything else as text. Raises `ConfigurationError`."""
    found: dict[str, Any] = {}
    for each in given or ():
        name, equals, text = each.partition("=")
        if not equals:
            raise ConfigurationError(f"{option} {each!r}: write it as name=value")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def plain(value: Any) -> Any:
    """A value as JSON-serialisable data."""
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def print_json(value: Any) -> None:
    """One JSON object on one line."""
    print(json.dumps(plain(value), ensure_ascii=False))


def _login_name() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container the user may have no name
        return None


@contextmanager
def _spinner(text: str, *, quiet: bool) -> Iterator[Callable[[], None]]:
    with Progress(
        SpinnerColumn(),
        TextColumn(text + " {task.completed:.0f} files"),
        console=console,
        transient=True,
        disable=quiet,
    ) as progress:
        task = progress.add_task(text, total=None)
        yield lambda: progress.advance(task)


def _status_table(client: RagClient, kb: str) -> Table:
    counts = client.count_by_status(kb)
    table = Table(box=None)
    table.add_column(escape(kb))
    table.add_column("documents")
    for each in Status:
        if each in counts:
            table.add_row(_colored(each), str(counts[each]))
    table.add_row("all", str(sum(counts.values())))
    for document in client.documents(kb, status="FAILED", page_size=10) if Status.FAILED in counts else []:
        if document.error is not None:
            table.add_row(
                f"  [red]{document.error.stage}[/]",
                escape(f"{document.source_path}: {document.error.message}") + _retry(document),
            )
    return table


def _colored(status_value: Status) -> str:
    return f"[{_STYLES.get(status_value, 'blue')}]{status_value.value}[/]"


def _retry(document: Document) -> str:
    return "" if document.retry_at is None else f" [yellow]retries at {document.retry_at.astimezone():%H:%M:%S}[/]"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _error_fields(error: Exception | None) -> dict[str, object]:
    return {"error": {"code": getattr(error, "code", "error"), "message": str(error)}}
