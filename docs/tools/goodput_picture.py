"""`python -m docs.tools.goodput_picture`: goodput over time on one drawn trace, as docs/stragglers.md shows it.

The picture is what its command draws. `make pictures` runs it: half a minute, so no test draws it again.
"""

from __future__ import annotations

import os
import shlex

import typer
from typer.testing import CliRunner

from coxswain_cli.simulate import simulate_command
from docs.tools.plan_pictures import PICTURES

NAME = "goodput.svg"
COMMAND = "cox simulate --generate two --hours 2 --rivals rigid,restart,data-only,malleus --picture {file}"


def draw(file: str) -> None:
    """Runs the command."""
    app = typer.Typer()
    app.command()(simulate_command)
    command = COMMAND.format(file=file)
    done = CliRunner().invoke(app, [*shlex.split(command)[2:], "--output", os.devnull])
    if done.exit_code:
        raise SystemExit(f"{command}: {done.stderr}")


if __name__ == "__main__":
    draw(str(PICTURES / NAME))
