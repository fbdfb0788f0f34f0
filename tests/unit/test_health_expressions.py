"""The expressions of docs/install.md by which Flux waits for a job's end, over what a status says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs" / "install.md"


def expressions() -> dict[str, str]:
    (block,) = [part for part in PAGE.read_text().split("```") if part.startswith("yaml\n") and "inProgress:" in part]
    (found,) = yaml.safe_load(block.removeprefix("yaml\n"))
    return {name: str(found[name]) for name in ("inProgress", "failed", "current")}


def verdict(status: dict[str, Any]) -> str:
    """The first that holds, in Flux's order."""
    found = expressions().items()
    return next((name for name, text in found if cel.compile(text).execute({"status": status}) is True), "")


@pytest.mark.parametrize(
    ("succeeded", "expected"),
    [(None, "inProgress"), ("Unknown", "inProgress"), ("False", "failed"), ("True", "current")],
)
def test_flux_waits_for_the_end_of_a_job_and_names_its_failure(succeeded: str | None, expected: str) -> None:
    others = [{"type": "Validated", "status": "True"}, {"type": "Degraded", "status": "False"}]
    status = {} if succeeded is None else {"conditions": [*others, {"type": "Succeeded", "status": succeeded}]}
    assert verdict(status) == expected
