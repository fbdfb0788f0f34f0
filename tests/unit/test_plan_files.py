"""Commands that plan and simulate take a file of a sensible size, and end with one line for any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from coxswain_cli.plan.files import MOST_BYTES
from coxswain_cli.plan.layout import layout_command
from coxswain_cli.plan.step import step_command
from coxswain_cli.plan.strategy import strategy_command
from coxswain_cli.simulate import simulate_command
from tests.unit.plan_commands import invoke

_COMMANDS: list[tuple[str, Callable[..., object], tuple[str | int, ...]]] = [
    ("--lengths", step_command, ("--replicas", 8, "--capacity", 8192)),
    ("--lengths", strategy_command, ("--devices", 8)),
    ("--cluster", layout_command, ("--model", "llama-1b")),
    ("", simulate_command, ()),
]


def refused(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1, "one line"
    return result.stderr


@pytest.mark.parametrize(("option", "command", "others"), _COMMANDS)
def test_a_file_without_end_is_refused_by_its_size_and_not_read_until_memory_is_full(
    option: str, command: Callable[..., object], others: tuple[str | int, ...]
) -> None:
    said = refused(invoke(command, *others, *filter(None, [option]), "/dev/zero"))
    assert f"{option} /dev/zero has more than {MOST_BYTES} bytes; give ".lstrip() in said


@pytest.mark.parametrize(("option", "command", "others"), _COMMANDS)
def test_a_folder_or_no_file_at_all_is_refused_with_the_form_of_one(
    option: str, command: Callable[..., object], others: tuple[str | int, ...], tmp_path: Path
) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file or directory")):
        said = refused(invoke(command, *others, *filter(None, [option]), path))
        assert f"{option} {path}: {why}; give ".lstrip() in said
