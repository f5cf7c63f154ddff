"""Commands of `rag-pipeline` as a user types them, in this process."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rag_pipeline.cli.documents import console
from rag_pipeline.cli.main import app
from rag_pipeline.settings import Settings

Command = Callable[..., Result]


def command_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line of somebody whose environment has these settings."""
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(console, "width", 200)  # it has read the width of the terminal already

    def run(*arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(app, list(arguments), input=answer)

    return run


def lines(result: Result) -> list[dict[str, Any]]:
    """The objects of `--json`."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]
