"""`cox`: the table of commands. A command's module is imported when it is called: help is fast."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

app = typer.Typer(
    help="Coxswain: one operator for a whole language-model training run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich would double its time
)
plan = typer.Typer(
    help="Plan one step, and compare the plan with its lower bound.", no_args_is_help=True, rich_markup_mode=None
)

COMMANDS = {
    "run": ("coxswain_cli.run:run_command", "Run a TrainingJob on this machine, or resume it."),
    "status": ("coxswain_cli.status:status_command", "Show what a job does, and why it waits."),
    "validate": (
        "coxswain_cli.validate:validate_command",
        "Check files offline and print every fault at once.",
    ),
    "report": ("coxswain_cli.report:report_command", "Write one self-contained HTML page about a run."),
    "crds": ("coxswain_cli.crds:crds_command", "Print the CustomResourceDefinitions."),
}
PLAN_COMMANDS = {"step": ("coxswain_cli.plan:step_command", "Plan one step for a file of sequence lengths.")}


INTERRUPTED = 130  # exit code after Ctrl-C, as in shells


def _add(group: typer.Typer, name: str, target: str, text: str) -> None:
    """Adds a command that passes all its arguments, --help too, to the function `module:name`."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @group.command(name, help=text, add_help_option=False, context_settings=settings)
    def forward(context: typer.Context) -> None:
        module, function = target.split(":")
        inner = typer.Typer(add_completion=False, rich_markup_mode=None)
        try:
            inner.command(help=text)(getattr(importlib.import_module(module), function))
        except KeyboardInterrupt:  # importing may take a second
            raise SystemExit(INTERRUPTED) from None
        typer.main.get_command(inner)(args=context.args, prog_name=context.command_path)


@app.callback(invoke_without_command=True)
def version_option(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"cox {_installed_version()}")
        raise typer.Exit


def _installed_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("coxswain")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"


for _name, (_target, _text) in COMMANDS.items():
    _add(app, _name, _target, _text)
for _name, (_target, _text) in PLAN_COMMANDS.items():
    _add(plan, _name, _target, _text)
app.add_typer(plan, name="plan")


def main() -> None:
    app(prog_name="cox")


if __name__ == "__main__":
    main()
