"""Commands about versions: plan, reindex, rollback."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rag_pipeline.cli.documents import JsonOption, console, print_json
from rag_pipeline.core.staleness import GenerationPlan, ReindexPlan
from rag_pipeline.errors import ConfigurationError
from rag_pipeline.query.client import RagClient

DocumentArgument = Annotated[str, typer.Argument(help="Document id, partition key or path.")]
KnowledgeBaseOption = Annotated[str | None, typer.Option("--kb", help="Only this knowledge base.")]

DOCUMENTS_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(plan)
    app.command()(reindex)
    app.command()(rollback)


def plan(
    kb: KnowledgeBaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a change of parser, chunking, embedder or analyzer has made stale, and what it costs; nothing runs."""
    with RagClient.from_env() as client:
        found = client.plan(kb)
    if as_json:
        print_json(
            {
                "examined": found.examined,
                "stale": len(found.documents),
                "documents_by_stage": found.documents_by_stage,
                "tokens_to_embed": found.tokens_to_embed,
                "cost": found.cost,
                "seconds": found.seconds,
                "documents": found.documents,
                "next_generation": found.next_generation,
            }
        )
    else:
        _print_plan(found)
        if found.next_generation is not None:
            _print_generation(found.next_generation, price_per_million_tokens=found.price_per_million_tokens)


def reindex(
    document: Annotated[str | None, typer.Argument(help="Document id, partition key or path.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Everything that `plan` lists, instead of a document.")
    ] = False,
    kb: KnowledgeBaseOption = None,
    from_stage: Annotated[
        str | None, typer.Option(help="Do this stage and all after it, e.g. parsed_blocks, though nothing changed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Do every stage, though nothing changed.")] = False,
    to_next: Annotated[
        bool,
        typer.Option("--next", help="Move everything to the embedder and analyzer of the RAG_NEXT_ variables."),
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give up what --next began.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the next version of a document, or of all stale ones, while the live version answers."""
    if sum((document is not None, stale, to_next, abandon)) != 1:
        raise ConfigurationError(
            "name one document, or say --stale for everything that `rag-pipeline plan` lists, or --next or --abandon"
        )
    if to_next or abandon:
        _change_generation(is_start=to_next, as_json=as_json)
        return
    with RagClient.from_env() as client:
        if document is None:
            count = client.reindex_stale(kb)
            if as_json:
                print_json({"queued": count})
            else:
                console.print(f"{count} documents queued; `rag-pipeline status --watch` shows how far they are")
            return
        before = client.document(document, kb=kb)
        after = client.reindex(before.id, from_stage=from_stage, force=force)
    if as_json:
        print_json(after)
    elif (after.version, after.status, after.live_version) == (before.version, before.status, before.live_version):
        console.print(f"{escape(after.source_path)}: nothing is stale; --force does it all the same")
    else:
        console.print(f"{escape(after.source_path)} is {after.status}, version {after.version}")


def _change_generation(*, is_start: bool, as_json: bool) -> None:
    with RagClient.from_env() as client:
        if is_start:
            started = client.start_generation()
            if as_json:
                print_json(started)
            else:
                _print_generation(started)
            return
        abandoned = client.abandon_generation()
    if as_json:
        print_json({"abandoned": abandoned})
    else:
        console.print("the next collection is given up" if abandoned else "no next collection is being filled")


def rollback(
    document: DocumentArgument,
    as_json: JsonOption = False,
) -> None:
    """Let the version before answer again, while it is kept (RAG_VERSION_RETENTION_SECONDS)."""
    with RagClient.from_env() as client:
        found = client.rollback(document)
    if as_json:
        print_json(found)
    else:
        console.print(
            f"{escape(found.source_path)}: version {found.live_version} answers; `reindex` goes forward again"
        )


def _print_plan(found: ReindexPlan) -> None:
    if not found.documents:
        console.print(f"nothing is stale ({found.examined} documents looked at)")
        return
    console.print(f"[bold]{len(found.documents)}[/] of {found.examined} documents are stale")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("documents", justify="right")
    for stage, count in found.documents_by_stage.items():
        table.add_row(stage.value, f"{count:,}")
    console.print(table)
    price = f", at most {found.cost:,.2f} to pay" if found.price_per_million_tokens else ""
    console.print(
        f"at most {found.tokens_to_embed:,} tokens to embed{price} (texts that stay the same are not paid for again); "
        f"these stages took {found.seconds:,.0f} s last time"
    )
    for each in found.documents[:DOCUMENTS_SHOWN]:
        console.print(f"  {escape(f'{each.kb_name}/{each.source_path}')} from {each.first_stage}", soft_wrap=True)
    more = len(found.documents) - DOCUMENTS_SHOWN
    if more > 0:
        console.print(f"  ... and {more:,} more (--json lists all)")
    console.print("`rag-pipeline reindex --stale` does it")


def _print_generation(found: GenerationPlan, *, price_per_million_tokens: float = 0.0) -> None:
    cost = found.tokens_to_embed / 1e6 * price_per_million_tokens
    price = f", at most {cost:,.2f} to pay" if cost else ""
    console.print(
        f"next generation: [bold]{escape(found.embedder)}[/], analyzer {escape(found.analyzer)}: {found.documents:,} "
        f"documents to move, at most {found.tokens_to_embed:,} tokens to embed{price}"
    )
    if found.refusal is not None:
        console.print(f"the switch was refused: {escape(found.refusal)}; `rag-pipeline reindex --next` tries it again")
    elif found.is_started:
        console.print("the asset index_generation fills it, then it answers; `rag-pipeline plan` shows how far it is")
    else:
        console.print("`rag-pipeline reindex --next` does it")
