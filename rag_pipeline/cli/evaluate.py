"""`rag-pipeline evaluate`: how good retrieval is, on a test set with known right answers."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rag_pipeline.cli import golden_sets
from rag_pipeline.cli.documents import JsonOption, console
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.evaluation.dataset import read_dataset
from rag_pipeline.evaluation.evaluation import EvaluationMode, ModeReport, Report, differences, evaluate
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings
from rag_pipeline.stages.services import Services

MODES: tuple[EvaluationMode, ...] = ("dense", "bm25", "hybrid", "rerank")
OWN_SERVERS = ("postgres_url", "dagster_postgres_url", "s3_endpoint", "milvus_uri")
"""Settings that are left out, so that a test set never gets into the stores of a deployment."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(command)


def command(
    folder: Annotated[
        Path | None, typer.Argument(help="BEIR layout: queries.jsonl, qrels.tsv, corpus.jsonl or pdfs/.")
    ] = None,
    as_json: JsonOption = False,
    queries: Annotated[int | None, typer.Option("--queries", min=1, help="Only so many, spread evenly.")] = None,
    mode: Annotated[str | None, typer.Option("--mode", help="dense, bm25, hybrid or rerank; else all.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Keep the documents and vectors here for the next run.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the report here as JSON.")] = None,
    compare: Annotated[Path | None, typer.Option("--compare", help="An earlier report of the same set.")] = None,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="KB", help="Attach DIR to a knowledge base as its golden set; nothing runs."),
    ] = None,
    detach: Annotated[
        str | None, typer.Option("--detach", metavar="KB", help="Forget the golden set of a knowledge base.")
    ] = None,
    ask: Annotated[
        str | None, typer.Option("--ask", metavar="KB", help="Ask the golden set of a knowledge base now.")
    ] = None,
    accept: Annotated[
        str | None, typer.Option("--accept", metavar="KB", help="Compare later results with the newest from now on.")
    ] = None,
    list_sets: Annotated[bool, typer.Option("--list", help="Golden sets and their newest results.")] = False,
) -> None:
    """Ingest a test set into a scratch knowledge base on servers of its own, ask its questions, print the figures.

    With --attach, --detach, --ask, --accept and --list: golden sets, which are asked of a knowledge base as it is.
    """
    chosen = sum((attach is not None, detach is not None, ask is not None, accept is not None, list_sets))
    wants_folder = not chosen or attach is not None
    if chosen > 1 or wants_folder != (folder is not None):
        raise ConfigurationError(
            "name the folder of a test set (with --attach KB to attach it), or one of --detach KB, --ask KB, "
            "--accept KB and --list"
        )
    if folder is not None and attach is None:
        _evaluate(
            folder, as_json=as_json, queries=queries, mode=mode, data_dir=data_dir, output=output, compare=compare
        )
        return
    with Services.from_settings(Settings.load()) as services:
        if attach is not None and folder is not None:
            golden_sets.attach_set(services, attach, read_dataset(folder, most_queries=queries), as_json=as_json)
        elif detach is not None:
            golden_sets.detach_set(services, detach, as_json=as_json)
        elif accept is not None:
            golden_sets.accept_result(services, accept, as_json=as_json)
        elif ask is not None:
            golden_sets.ask_set(services, ask, as_json=as_json)
        else:
            golden_sets.list_sets(services, as_json=as_json)


def _evaluate(
    folder: Path,
    *,
    as_json: bool,
    queries: int | None,
    mode: str | None,
    data_dir: Path | None,
    output: Path | None,
    compare: Path | None,
) -> None:
    earlier = None if compare is None else _read_report(compare)
    dataset = read_dataset(folder, most_queries=queries)
    with ExitStack() as stack:
        scratch = data_dir or Path(stack.enter_context(_temporary_folder()))
        settings = stack.enter_context(_scratch_system(Settings.load(), scratch / dataset.name))
        services = stack.enter_context(Services.from_settings(settings))
        client = stack.enter_context(RagClient(settings))
        progress = stack.enter_context(_progress())
        report = evaluate(
            services,
            client,
            dataset,
            scratch=scratch / dataset.name / "documents",
            modes=_modes(mode, settings),
            progress=progress,
        )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(report.as_json() + "\n", "utf-8")
    if as_json:
        print(json.dumps(json.loads(report.as_json()), ensure_ascii=False))
    else:
        _print(report)
    if earlier is not None:
        for line in differences(earlier, report):
            print(line, file=sys.stderr if as_json else sys.stdout)


def _modes(wanted: str | None, settings: Settings) -> tuple[EvaluationMode, ...]:
    """The one that is wanted, else all that these settings have.

    Raises:
        ConfigurationError: no such mode, or it needs an endpoint that is not set.
    """
    if wanted is not None and wanted not in MODES:
        raise ConfigurationError(f"--mode {wanted}: one of {', '.join(MODES)}")
    if wanted == "rerank" and settings.rerank_url is None:
        raise ConfigurationError("--mode rerank needs RAG_RERANK_URL")
    if wanted is not None:
        return tuple(mode for mode in MODES if mode == wanted)
    return MODES if settings.rerank_url is not None else MODES[:3]


@contextmanager
def _temporary_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rag-evaluate-") as folder:
        Path(folder).chmod(0o755)  # as root, PostgreSQL runs as another user and must reach its data
        yield folder


@contextmanager
def _scratch_system(settings: Settings, folder: Path) -> Iterator[Settings]:
    """Embedded servers in the folder, with the models of the usual data folder."""
    from rag_pipeline.adapters.object_store import MinioObjectStore
    from rag_pipeline.adapters.postgres.schema import migrate
    from rag_pipeline.local.servers import EmbeddedServers

    folder.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = dict.fromkeys(OWN_SERVERS)
    changes |= {"data_dir": folder, "models_dir": settings.models.resolve()}
    with EmbeddedServers() as servers:
        own = servers.start(settings.model_copy(update=changes))
        migrate(own.require_postgres())
        MinioObjectStore.from_settings(own).ensure_bucket()
        yield own


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on the error stream, so that the output stays clean."""
    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield show


def _read_report(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"--compare {path}: {error}") from error


def _print(report: Report) -> None:
    rate = "up to date" if report.documents_per_second is None else f"{report.documents_per_second} documents/s"
    console.print(f"[bold]{report.dataset}[/]: {report.documents} documents ({rate}), {report.queries} questions")
    for failure in report.failures:
        console.print(f"[red]not ingested[/] {failure}", markup=True)
    modes = report.modes.values()
    table = Table("", box=None, header_style="bold", pad_edge=False)
    for name in report.modes:
        table.add_column(name, justify="right", no_wrap=True)
    for measure in dict.fromkeys(name for mode in modes for name in mode.means):
        table.add_row(measure, *(_with_interval(mode, measure) for mode in modes))
    table.add_row("p50 ms", *(f"{mode.p50_milliseconds:.0f}" for mode in modes))
    table.add_row("p95 ms", *(f"{mode.p95_milliseconds:.0f}" for mode in modes))
    console.print(table)


def _with_interval(mode: ModeReport, measure: str) -> str:
    low, high = mode.intervals[measure]
    return f"{mode.means[measure]:.3f} [dim]{low:.2f}-{high:.2f}[/]"
