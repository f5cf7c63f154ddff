"""`rag-pipeline demo`: the main job on embedded servers and the sample documents, with answers printed."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.markup import escape

from rag_pipeline.cli.documents import console, wait_with_progress
from rag_pipeline.cli.questions import print_results
from rag_pipeline.core.documents import Status
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.query.client import RagClient
from rag_pipeline.settings import Settings

KNOWLEDGE_BASE = "demo"
QUESTIONS_ASKED = 3
WAIT_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with its right answer."""

    question: str
    expected_path: str
    expected_page: int | None
    answer_contains: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo() -> None:
    """Ingest the sample documents on embedded servers and answer three questions; a second run does no work twice."""
    samples = sample_folder()
    questions = read_questions(samples)[:QUESTIONS_ASKED]
    started = time.monotonic()
    with ExitStack() as stack:
        settings = _start_servers(Settings.load(), stack)
        client = stack.enter_context(RagClient(settings))
        client.create_knowledge_base(KNOWLEDGE_BASE)
        results = client.submit_many(KNOWLEDGE_BASE, [samples])
        for result in results:
            if result.error is not None:
                console.print(f"[red]refused[/] {escape(result.source_path)}: {escape(str(result.error))}")
        accepted = [result for result in results if result.document is not None]
        open_count = sum(not each.document.is_settled for each in accepted if each.document)
        console.print(f"{len(accepted)} documents submitted, {len(accepted) - open_count} of them done already")
        if open_count:
            _start_dagster(settings, stack)
        done = wait_with_progress(client, accepted, WAIT_SECONDS, quiet=False)
        ready = sum(document.status is Status.READY for document in done)
        console.print(f"[green]{ready} of {len(done)} documents READY[/] after {time.monotonic() - started:.0f} s\n")
        right = sum(_ask(client, question) for question in questions)
        console.print(f"{right} of {len(questions)} top hits are right")
        console.print("stopping; `make up` runs everything with the Dagster UI")
    if ready < len(done) or right < len(questions):
        raise typer.Exit(1)


def sample_folder() -> Path:
    """Where the sample documents lie: below the working directory, or beside the package.

    Raises:
        ConfigurationError: nowhere.
    """
    candidates = [Path("data/samples"), Path(__file__).parents[2] / "data" / "samples"]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise ConfigurationError("there is no data/samples here: run the demo in a checkout of the project")


def read_questions(samples: Path) -> list[Question]:
    """The questions that come with the samples."""
    return [Question(**each) for each in json.loads((samples.parent / "questions.json").read_text("utf-8"))]


def _start_servers(settings: Settings, stack: ExitStack) -> Settings:
    from rag_pipeline.adapters.object_store import MinioObjectStore
    from rag_pipeline.adapters.postgres.schema import migrate
    from rag_pipeline.local.servers import EmbeddedServers

    with console.status("starting PostgreSQL, S3 and Milvus Lite"):
        settings = stack.enter_context(EmbeddedServers()).start(settings)
        migrate(settings.require_postgres())
        MinioObjectStore.from_settings(settings).ensure_bucket()
    console.print("servers are up: PostgreSQL, S3, Milvus Lite on 127.0.0.1")
    return settings


def _start_dagster(settings: Settings, stack: ExitStack) -> None:
    from rag_pipeline.local.dagster import running_webserver, start_dagster

    url = running_webserver(settings.data_dir)
    if url is None:
        with console.status("starting the Dagster webserver and daemon"):
            url = stack.enter_context(start_dagster(settings)).webserver_url
    console.print(f"Dagster is up: {url}")


def _ask(client: RagClient, question: Question) -> bool:
    results = client.search(KNOWLEDGE_BASE, question.question, top_k=3)
    console.print(f"[bold]{escape(question.question)}[/]")
    print_results(results)
    console.print()
    if not results:
        return False
    top = results[0]
    is_page_right = question.expected_page is None or top.page == question.expected_page
    return top.source_path == question.expected_path and is_page_right
