"""`python -m docs.tools.plan_pictures`: one step planned by each balance, beside `makespan`, as docs/parallelism.md shows it.

Each picture is what its command draws: `make generate` runs them, and a test demands that the pictures are current.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer
from typer.testing import CliRunner

from coxswain.config import ParallelConfig
from coxswain.cost.constants import MODELS
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.planners import BALANCES
from coxswain.plan.step import loss_layers, plan_step
from coxswain_cli.plan.step import step_command
from coxswain_cli.reporting import plan_picture

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
COMMAND = (
    "cox plan step --lengths examples/lengths.json --replicas 32 --capacity 8192 --beside {balance} --picture {file}"
)
STAGES = "plan-stages.svg"
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


def draw_stages(folder: Path) -> Path:
    """A step on two pipelines of four stages of eight layers, planned as a job plans it, a row a stage."""
    model = MODELS["llama-7b"]
    stages = [[Stage((Device(4 * r + s, 0),), 8 * s, 8 * s + 8) for s in range(4)] for r in range(2)]
    layout = Layout(tuple(Replica(tuple(each)) for each in stages))
    parallel = ParallelConfig(tokens_per_replica=8192, max_degree=2, hardware="h100-80g")
    placement = plan_step([12000, 9000, *range(8000, 500, -500)], layout, parallel, model)
    panel = plan_picture.stage_panel(placement, layout, loss_layers(model))
    file = folder / STAGES
    file.write_text(plan_picture.picture_of([panel]) + "\n")
    return file


def main() -> None:
    for balance in BESIDE:
        draw(balance, PICTURES)
    draw_stages(PICTURES)


if __name__ == "__main__":
    main()
