"""Commands that ask: search, ask, evidence."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import regex
import typer
from rich.markup import escape

from rag_pipeline.cli.documents import JsonOption, KnowledgeBaseOption, console, named_values, plain, print_json
from rag_pipeline.core.answers import Citation
from rag_pipeline.core.context import location_text
from rag_pipeline.query.answering import ANSWER_OPTIONS
from rag_pipeline.query.answers import Answer
from rag_pipeline.query.client import RagClient
from rag_pipeline.query.options import MOST_CANDIDATES, RetrievalOptions
from rag_pipeline.query.results import RetrievalResult, Trace

SHOWN_CHARACTERS = 400
"""Of one passage; `--json` has all of it."""
SHOWN_LINES = 8
_CONTROL = regex.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MARK = regex.compile(r"\[source (\d+)\]\(citation://\d+\)")
_TABLE_RULE = regex.compile(r"\|?[\s:|-]*-[\s:|-]*")

TopKOption = Annotated[int | None, typer.Option("--top-k", min=1, max=MOST_CANDIDATES, help="Passages wanted.")]
DocumentOption = Annotated[
    list[str] | None, typer.Option("--document", help="Only in these documents (id, key or path).")
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Metadata: lang=en, or with an operator year='{\"gte\": 2020}'; all must hold."),
]
PrincipalOption = Annotated[
    list[str] | None, typer.Option("--principal", help="Who asks: only what `allowed_to` lets them see.")
]
TraceOption = Annotated[bool, typer.Option("--trace", help="How the results came about.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(search)
    app.command()(ask)
    app.command()(evidence)


def search(
    question: Annotated[str, typer.Argument(help="What to look for.")],
    kb: KnowledgeBaseOption = "default",
    top_k: TopKOption = None,
    document: DocumentOption = None,
    filters: FilterOption = None,
    principal: PrincipalOption = None,
    expand: Annotated[bool, typer.Option("--expand", help="Show the section around each hit.")] = False,
    rewrite: Annotated[bool, typer.Option("--rewrite", help="Search a rewritten question as well.")] = False,
    show_trace: TraceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search a knowledge base."""
    with RagClient.from_env() as client:
        options = RetrievalOptions(
            top_k=top_k or RetrievalOptions().top_k,
            document_ids=_document_ids(client, kb, document),
            filters=named_values("--filter", filters),
            principals=None if principal is None else tuple(principal),
            expand=expand,
            rewrite=rewrite,
        )
        run = client.retrieve(kb, question, options=options)
    if as_json:
        for result in run.results:
            print_json(result)
    else:
        print_results(run.results)
        _print_degradations(run.trace)
    if show_trace:
        _print_trace(run.trace, as_json=as_json)


def ask(
    question: Annotated[str, typer.Argument(help="A question in any language.")],
    kb: KnowledgeBaseOption = "default",
    stream: Annotated[
        bool,
        typer.Option("--stream", help='Show the answer as it comes; with --json as lines {"piece": ...} before it.'),
    ] = False,
    top_k: TopKOption = None,
    document: DocumentOption = None,
    filters: FilterOption = None,
    principal: PrincipalOption = None,
    conversation: Annotated[
        str | None, typer.Option(help="Id of a conversation to go on with, or `new`; the answer is kept in it.")
    ] = None,
    show_trace: TraceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Answer a question from a knowledge base, with its sources."""
    with RagClient.from_env() as client:
        options = RetrievalOptions(
            top_k=top_k or ANSWER_OPTIONS.top_k,
            expand=True,
            expanded_characters=ANSWER_OPTIONS.expanded_characters,
            rewrite=conversation not in {None, "new"},
            document_ids=_document_ids(client, kb, document),
            filters=named_values("--filter", filters),
            principals=None if principal is None else tuple(principal),
        )
        if conversation == "new":
            conversation = client.conversations.create(kb).id
        if stream:
            with client.stream(kb, question, options=options, conversation_id=conversation) as pieces:
                if as_json:
                    _print_json_pieces(pieces)
                else:
                    _print_pieces(pieces)
                answer = pieces.answer
        else:
            answer = client.ask(kb, question, options=options, conversation_id=conversation)
            if not as_json:
                _print_pieces(iter([answer.text]))
    if as_json:
        print_json(answer)
        return
    _print_sources(answer)
    if show_trace:
        _print_trace(answer.trace, as_json=False)


def evidence(
    id: Annotated[str, typer.Argument(help="Id of an image, or of a passage (shown by `search`).")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="PNG to write; default: {id}.png.")] = None,
    kb: Annotated[str | None, typer.Option("--kb", help="Refuse what is in another knowledge base.")] = None,
    principal: PrincipalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the picture that proves a passage: a stored image, or its page with the passage outlined."""
    path = output or Path(f"{regex.sub(r'[^0-9A-Za-z_.-]', '-', id)[:100]}.png")
    with RagClient.from_env() as client:
        content = client.evidence(id, kb=kb, principals=principal)
    path.write_bytes(content)
    if as_json:
        print_json({"path": path, "bytes": len(content)})
        return
    console.print(f"{escape(str(path))}: {len(content) / 1000:.0f} kB")


def print_results(results: Sequence[RetrievalResult]) -> None:
    """Results for a person: rank, file, place, score, passage, id."""
    if not results:
        console.print("[yellow]nothing found[/]")
    for result in results:
        console.print(_result_line(result), soft_wrap=True)
        for line in _shown_lines(result):
            console.print(f"   {escape(line)}", style="default")
        console.print(f"   [dim]{result.chunk_id}[/]", soft_wrap=True)


def _result_line(result: RetrievalResult) -> str:
    score = result.score if result.rerank_score is None else result.rerank_score
    return (
        f"[bold]{result.rank}.[/] [cyan]{escape(_printable(result.source_path))}[/]{_place(result)}  "
        f"[dim]{'score' if result.rerank_score is None else 'rerank score'} {score:.4f}[/]"
    )


def _place(result: RetrievalResult | Citation) -> str:
    metadata = result.metadata if isinstance(result, RetrievalResult) else {}
    if result.page is None and not result.heading_path and not metadata.keys() & {"sheet", "row"}:
        return ""
    place = location_text(
        page=result.page, page_end=result.page_end, heading_path=result.heading_path, metadata=metadata
    )
    return f", {escape(_printable(place))}"


def _shown_lines(result: RetrievalResult) -> Iterator[str]:
    """The passage without the headings that the line above has; tables keep their lines, prose is run together."""
    lines = [line.strip() for line in _printable(result.text).splitlines() if line.strip()]
    headings = {" ".join(heading.split()) for heading in result.heading_path}
    while len(lines) > 1 and " ".join(lines[0].lstrip("#").split()) in headings:
        lines.pop(0)
    shown: list[str] = []
    for line in lines:
        if _TABLE_RULE.fullmatch(line) and "|" in line:
            continue
        is_row = line.startswith("|")
        if shown and not is_row and not shown[-1].startswith("|"):
            shown[-1] += " " + line
        else:
            shown.append(line)
    characters = 0
    for place, line in enumerate(shown):
        room = SHOWN_CHARACTERS - characters
        if place == SHOWN_LINES or room <= 0:
            yield "..."
            return
        yield line if len(line) <= room else line[:room].rstrip() + " ..."
        characters += len(line)


def _print_pieces(pieces: Iterator[str]) -> None:
    """The text of an answer as it comes, with short citation marks."""
    for piece in pieces:
        sys.stdout.write(_printable(_MARK.sub(r"[\1]", piece)))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _print_json_pieces(pieces: Iterator[str]) -> None:
    """The text of an answer as it comes, as lines that are there at once."""
    for piece in pieces:
        if piece:
            print_json({"piece": piece})
            sys.stdout.flush()


def _print_sources(answer: Answer) -> None:
    """The sources after the answer: what it cites, what else a model saw, and what is doubtful."""
    if answer.kind == "extractive":
        console.print("\n[yellow]These are sentences of the sources, word for word; no chat model wrote an answer.[/]")
    cited = [citation for citation in answer.citations if citation.is_cited]
    if answer.citations:
        console.print("\n[bold]Sources[/]" if cited else "\n[bold]Sources[/] (none is cited)")
    for citation in cited if answer.kind == "extractive" else answer.citations:
        style = "cyan" if citation.is_cited else "dim"
        path = escape(_printable(citation.source_path))
        console.print(f"\\[{citation.number}] [{style}]{path}[/]{_place(citation)}", soft_wrap=True)
        console.print(f"    [dim]{citation.chunk_id}[/]", soft_wrap=True)
        for image in citation.images:
            console.print(f"    [dim]image {image.id} {escape(_printable(image.description))}[/]", soft_wrap=True)
    for note in answer.notes:
        console.print(f"[yellow]note[/] {escape(_printable(note))}")
    _print_degradations(answer.trace)
    if answer.conversation_id is not None:
        console.print(f"[dim]conversation {answer.conversation_id}[/]", soft_wrap=True)


def _print_degradations(trace: Trace) -> None:
    for each in trace.degradations:
        console.print(f"[yellow]without {each.step}[/] [dim]({each.code})[/] {escape(_printable(each.message))}")


def _print_trace(trace: Trace, *, as_json: bool) -> None:
    if as_json:
        print_json(trace)
    else:
        console.print_json(data=plain(trace))


def _document_ids(client: RagClient, kb: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    return tuple(client.document(each, kb=kb).id for each in given) if given else None


def _printable(text: str) -> str:
    """Without control characters: text of documents and models must not steer the terminal."""
    return str(_CONTROL.sub("", text))
