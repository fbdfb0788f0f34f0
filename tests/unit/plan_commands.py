"""Runs one command of `cox plan` in this process."""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.testing import CliRunner, Result


def invoke(command: Any, *args: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [*map(str, args)])


def printed(result: Result) -> dict[str, Any]:
    """The JSON that it printed; it must have succeeded."""
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded
