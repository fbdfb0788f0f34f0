"""`python -m docs.tools.plan_pictures`: one step planned by each balance, beside `makespan`, as docs/parallelism.md shows it.

Each picture is what its command draws: `make generate` runs them, and a test demands that the pictures are current.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer
from typer.testing import CliRunner

from coxswain.plan.planners import BALANCES
from coxswain_cli.plan.step import step_command

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
COMMAND = (
    "cox plan step --lengths examples/lengths.json --replicas 32 --capacity 8192 --beside {balance} --picture {file}"
)
BESIDE = tuple(balance for balance in BALANCES if balance != "makespan")


def name(balance: str) -> str:
    return f"plan-{balance}.svg"


def draw(balance: str, folder: Path) -> Path:
    """Runs the command of one picture."""
    file, cox_plan_step = folder / name(balance), typer.Typer()
    cox_plan_step.command()(step_command)
    command = COMMAND.format(balance=balance, file=file).replace("examples/", f"{ROOT}/examples/")
    done = CliRunner().invoke(cox_plan_step, [*shlex.split(command)[3:], "--output", os.devnull])
    if done.exit_code:
        raise SystemExit(f"{command}: {done.stderr}")
    return file


def main() -> None:
    for balance in BESIDE:
        draw(balance, PICTURES)


if __name__ == "__main__":
    main()
