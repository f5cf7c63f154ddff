"""The command line: `rag-pipeline --help`.

Exit codes: 0 done, 1 something failed (its message says what to do), 2 wrong usage, 130 interrupted, 143 terminated.
"""

import signal
import sys
from types import FrameType
from typing import Never

import typer
from rich.console import Console
from rich.markup import escape

from rag_pipeline.cli import demo, documents, evaluate, inspect, lifecycle, questions, servers, versions
from rag_pipeline.errors import RagPipelineError
from rag_pipeline.settings import Settings

app = typer.Typer(
    name="rag-pipeline",
    help="Documents to a searchable, citable knowledge base, as Dagster assets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (servers, demo, documents, questions, lifecycle, versions, inspect, evaluate):
    module.register(app)


def main() -> None:
    """Run the command line; an error of ours is one line, never a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    for warning in Settings.unknown_variables():
        Console(stderr=True, emoji=False).print(f"[bold yellow]warning[/] {escape(warning)}", highlight=False)
    try:
        app()
    except (RagPipelineError, OSError) as error:  # TimeoutError is one
        code = f" [dim]({error.code})[/]" if isinstance(error, RagPipelineError) else ""
        Console(stderr=True, emoji=False).print(f"[bold red]error[/]{code} {escape(str(error))}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _terminate(number: int, _frame: FrameType | None) -> Never:
    """End as after an error, so that temporary folders and processes go."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
